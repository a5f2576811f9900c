"""`gagent config`: the settings in force, and where each comes from."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

from gagent_grpc.cli import options
from gagent_grpc.cli.output import print_json, print_table


def config(as_json: options.Json = False, config: options.Config = None) -> None:
    """Show the settings in force and where each comes from."""
    from gagent_grpc.cli.settings import resolve_with_origins

    resolved = resolve_with_origins(config)
    # These in full, since they are what a person looks for.
    settings = resolved.settings
    values = {**settings.model_dump(), "store": settings.store_address, "tokens": str(settings.tokens_path)}
    if as_json:
        print_json({name: {"value": value, "from": resolved.origins[name]} for name, value in values.items()})
        return
    rows = [(name, "" if value is None else str(value), resolved.origins[name]) for name, value in values.items()]
    print_table(("SETTING", "VALUE", "FROM"), rows)
