"""`gagent df`: the directory facilitator from the command line."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.output import note, print_json, print_table, printable

if TYPE_CHECKING:
    from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
    from gagent_grpc.cli.settings import Settings

app = typer.Typer(help="Ask the directory who offers what.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def df() -> None:
    """Ask the directory who offers what."""


@app.command()
def search(
    service_type: Annotated[
        str | None, typer.Argument(metavar="[TYPE]", help="Type of the service; every one when absent.")
    ] = None,
    max_results: Annotated[int, typer.Option(metavar="N", help="Largest number of agents; negative for all.")] = -1,
    as_json: options.Json = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """List the agents that offer a service now.

    An agent that is not connected or is suspended offers nothing.
    """
    import asyncio

    from gagent_grpc.acl.management_json import description_to_json
    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    found = asyncio.run(_search(settings, service_type, max_results))
    if as_json:
        print_json([description_to_json(description) for description in found])
    elif found:
        rows = [_row(description, service) for description in found for service in _shown(description, service_type)]
        print_table(("AGENT", "SERVICE", "NAME", "SPEAKS", "PROPERTIES"), rows)
    else:
        note("Nobody offers anything." if service_type is None else f"Nobody offers {printable(service_type)}.")


async def _search(settings: Settings, service_type: str | None, max_results: int) -> list[DFAgentDescription]:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return await operator.df.search(service_type, max_results=max_results)


def _shown(description: DFAgentDescription, service_type: str | None) -> list[ServiceDescription | None]:
    """Return the services of an entry that were asked for; None for an entry without any."""
    found = [one for one in description.services if service_type is None or one.type == service_type]
    return list(found) or [None]


def _row(description: DFAgentDescription, service: ServiceDescription | None) -> tuple[str, ...]:
    if service is None:
        return (description.name or "", "", "", "", "")
    speaks = [
        *sorted(description.protocols | service.protocols),
        *sorted(description.ontologies | service.ontologies),
        *sorted(description.languages | service.languages),
    ]
    properties = [prop.name if prop.value is None else f"{prop.name}={prop.value}" for prop in service.properties]
    return (description.name or "", service.type or "", service.name or "", ", ".join(speaks), ", ".join(properties))
