"""`gagent auth`: credentials from the command line."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from pathlib import Path

    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.security.tokens import Token, TokenFile

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

app = typer.Typer(help="Look after credentials.", no_args_is_help=True, rich_markup_mode=None)
token_app = typer.Typer(
    help="Look after the tokens that WebSocket clients show.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(token_app, name="token")

Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="FILE", help="File of tokens. [default: one in your state folder]")
]
Platform = Annotated[
    str | None, typer.Option("--platform", metavar="NAME", help="Platform whose file it is. [default: local]")
]


@app.callback()
def auth() -> None:
    """Look after credentials."""


@token_app.callback()
def token() -> None:
    """Look after the tokens that WebSocket clients show."""


@token_app.command()
def issue(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Agents that the token may act for; 'sales-*' is for all whose names begin so. The first one that is no"
            " such pattern is the agent of a client that names none.",
        ),
    ],
    label: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.", callback=options.readable)] = "",
    ttl: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long it is valid, as 90s, 15m, 12h, 30d or 4w. [default: for ever]"),
    ] = None,
    as_json: options.Json = False,
    tokens: Tokens = None,
    platform: Platform = None,
    config: options.Config = None,
) -> None:
    """Make a token and print it: this once, since only its hash is kept.

    From the first one on, every WebSocket client of the bus has to show one.
    """
    file = _file(_settings(config, tokens, platform))
    made, text = file.issue(names, label=label, ttl=_duration(ttl))
    if as_json:
        print_json({"token": text, **_to_json(made)})
    else:
        typer.echo(text)
        note(f"Token {made.id} for {', '.join(made.agents)}, {_until(made)}. It is not shown again; keep it safe.")


@token_app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as gagent auth token list shows it.")],
    as_json: options.Json = False,
    tokens: Tokens = None,
    platform: Platform = None,
    config: options.Config = None,
) -> None:
    """Make a token invalid for good. Sockets that were opened with it are closed within seconds."""
    found = _file(_settings(config, tokens, platform)).revoke(token_id)
    if as_json:
        print_json(_to_json(found))
    else:
        typer.echo(f"{found.id}: revoked")


@token_app.command("list")
def list_tokens(
    as_json: options.Json = False,
    tokens: Tokens = None,
    platform: Platform = None,
    config: options.Config = None,
) -> None:
    """List the tokens, oldest first; never the secrets."""
    file = _file(_settings(config, tokens, platform))
    file.read()
    found = file.tokens
    if as_json:
        print_json([_to_json(one) for one in found])
    elif found:
        columns = ("ID", "AGENTS", "STATE", "CREATED", "EXPIRES", "LABEL")
        print_table(columns, [_row(one) for one in found])
    else:
        note(f"No token in {file.path}. Make one: gagent auth token issue NAME")


def _settings(config: Path | None, tokens: str | None, platform: str | None) -> Settings:
    from gagent_grpc.cli.settings import resolve

    return resolve(config, tokens=tokens, platform=platform)


def _file(settings: Settings) -> TokenFile:
    from gagent_grpc.security.tokens import TokenFile

    return TokenFile(settings.tokens_path)


def _duration(text: str | None) -> timedelta | None:
    """Return the time that ``text`` says.

    Raises:
        typer.BadParameter: It says none.
    """
    from datetime import timedelta

    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None or not int(found[1]):
        raise typer.BadParameter(f"{text!r}; expected a time such as 90s, 15m, 12h, 30d or 4w", param_hint="--ttl")
    try:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long", param_hint="--ttl") from None


def _until(token: Token) -> str:
    return f"valid until {_local(token.expires_at)}" if token.expires_at is not None else "valid until it is revoked"


def _row(token: Token) -> tuple[str, ...]:
    expires = _local(token.expires_at) if token.expires_at is not None else "never"
    return token.id, ", ".join(token.agents), token.state(), _local(token.created_at), expires, token.label


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _to_json(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "agents": list(token.agents),
        "label": token.label,
        "state": token.state(),
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at.isoformat() if token.expires_at is not None else None,
        "revoked_at": token.revoked_at.isoformat() if token.revoked_at is not None else None,
    }
