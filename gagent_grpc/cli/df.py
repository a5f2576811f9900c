"""`gagent df`: the directory facilitator from the command line."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gagent_grpc.cli import options
from gagent_grpc.cli.exits import describe, ended_by_ams, exit_code
from gagent_grpc.cli.output import note, print_json, print_table, printable

if TYPE_CHECKING:
    from gagent_grpc.acl.descriptions import DFAgentDescription, Property, ServiceDescription
    from gagent_grpc.cli.settings import Settings
    from gagent_grpc.client.df import DescriptionEvent

app = typer.Typer(
    help="Ask the directory who offers what, watch it, and offer something.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def df() -> None:
    """Ask the directory who offers what, watch it, and offer something."""


Type = Annotated[
    str | None,
    typer.Argument(metavar="[TYPE]", callback=options.readable, help="Type of the service; every one when absent."),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="NAME[=VALUE]",
        callback=options.readable,
        help="Property of the service; may be repeated.",
    ),
]


@app.command()
def search(
    service_type: Type = None,
    properties: Properties = None,
    max_results: Annotated[
        int, typer.Option("--max", "--max-results", metavar="N", help="Largest number of agents; negative for all.")
    ] = -1,
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
    wanted = _wanted(service_type, properties)
    found = asyncio.run(_search(settings, wanted, max_results))
    if as_json:
        print_json([description_to_json(description) for description in found])
    elif found:
        rows = [_row(description, service) for description in found for service in _shown(description, wanted)]
        print_table(("AGENT", "SERVICE", "NAME", "SPEAKS", "PROPERTIES"), rows)
    else:
        what = "anything" if service_type is None else printable(service_type)
        note(f"Nobody offers {what} with such properties." if properties else f"Nobody offers {what}.")


@app.command()
def watch(
    service_type: Type = None,
    properties: Properties = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for programs.")] = False,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Watch who offers a service: first those that do now, then every change, until Ctrl-C.

    An agent that is lost, suspended or lets its lease end is removed, and added when it is there again.
    """
    from gagent_grpc.cli.following import follow
    from gagent_grpc.cli.settings import resolve

    settings = resolve(config, bus=bus, timeout=timeout)
    wanted = _wanted(service_type, properties)
    show = _print_event if as_json else lambda event: _print_change(event, wanted)
    follow(settings, lambda operator: operator.df.watch(wanted), show)


@app.command()
def register(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent.")],
    service_types: Annotated[
        list[str], typer.Argument(metavar="TYPE...", callback=options.readable, help="Types of the services.")
    ],
    properties: Properties = None,
    lease: Annotated[
        float | None, typer.Option("--lease", metavar="SECONDS", help="Lease to ask for; it is renewed by itself.")
    ] = None,
    timeout: options.Timeout = None,
    bus: options.Bus = None,
    config: options.Config = None,
) -> None:
    """Offer services as an agent, for as long as this command runs.

    Only an agent itself may register what it offers, so this is that agent: it holds the name and reads no mail, which
    waits. Ctrl-C withdraws the offer; name and mail stay (gagent kill NAME frees them).
    """
    import asyncio

    from gagent_grpc.acl.aid import split_aid
    from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
    from gagent_grpc.cli.settings import resolve
    from gagent_grpc.errors import AgentAlreadyRegistered

    settings = resolve(config, bus=bus, timeout=timeout)
    split_aid(name)
    made = _properties(properties, valued=True)
    services = tuple(ServiceDescription(type=one, properties=made) for one in service_types)
    try:
        asyncio.run(_register(settings, name, DFAgentDescription(services=services, lease_seconds=lease)))
    except AgentAlreadyRegistered as error:
        note(describe(error, name_setting="gagent df register NAME"))
        raise typer.Exit(exit_code(error)) from None


async def _search(settings: Settings, wanted: ServiceDescription | None, max_results: int) -> list[DFAgentDescription]:
    from gagent_grpc.client.operator import Operator

    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        return await operator.df.search(wanted, max_results=max_results)


async def _register(settings: Settings, name: str, description: DFAgentDescription) -> None:
    """Be the agent until Ctrl-C, SIGTERM, or its end by somebody else."""
    import asyncio
    import signal

    from gagent_grpc.acl.descriptions import DFAgentDescription as Template
    from gagent_grpc.cli.logs import set_up_logs
    from gagent_grpc.client.agent import Agent
    from gagent_grpc.client.operator import Operator
    from gagent_grpc.errors import PreconditionFailed, SessionSuperseded

    class Placeholder(Agent):
        """Holds a name, and leaves its mail to whoever bears it next."""

        async def setup(self) -> None:
            self.pause()

    set_up_logs()
    # A person should hear at once that there is no bus, where an agent would try again for a while.
    async with Operator(settings.bus, timeout=settings.call_timeout) as operator:
        endpoint = operator.endpoint
    async with Placeholder(name, bus=endpoint, description=description) as agent:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked.set)
        (entry,) = await agent.df.search(Template(name=agent.aid)) or (description,)
        granted = "" if entry.lease_seconds is None else f" for {entry.lease_seconds:g} s at a time"
        offered = ", ".join(printable(service.type or "") for service in description.services)
        typer.echo(f"{printable(agent.aid)} offers {offered}{granted}; Ctrl-C ends it")
        ended, stopped = asyncio.ensure_future(agent.wait()), asyncio.ensure_future(asked.wait())
        try:
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                try:
                    ended.result()
                except PreconditionFailed as error:
                    if isinstance(error, SessionSuperseded):
                        raise
                    note(ended_by_ams(agent.name))
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            for one in (ended, stopped):
                one.cancel()
            await asyncio.wait({ended, stopped})


def _wanted(service_type: str | None, properties: list[str] | None) -> ServiceDescription | None:
    """Return the template that a command names; None for every entry."""
    from gagent_grpc.acl.descriptions import ServiceDescription

    if service_type is None and not properties:
        return None
    return ServiceDescription(type=service_type, properties=_properties(properties, valued=False))


def _properties(given: list[str] | None, *, valued: bool) -> tuple[Property, ...]:
    """Return the properties that `--property` gives; where they need not be ``valued``, one without matches any value.

    Raises:
        typer.BadParameter: One has no name, or no value where it needs one.
    """
    from gagent_grpc.acl.descriptions import Property

    made = []
    for one in given or ():
        name, sign, value = one.partition("=")
        if not name or (valued and not sign):
            expected = "NAME=VALUE" if valued else "NAME=VALUE, or NAME for any value"
            raise typer.BadParameter(f"{one!r}: expected {expected}", param_hint="--property")
        made.append(Property(name, value if sign else None))
    return tuple(made)


def _print_change(event: DescriptionEvent, wanted: ServiceDescription | None) -> None:
    """Print an event as a line; the end of a snapshot is none."""
    from gagent_grpc.cli.following import print_line

    if event.description is None:
        return
    services = [service for service in _shown(event.description, wanted) if service is not None]
    offered = ", ".join(_offered(service) for service in services)
    print_line(event.at, str(event.kind), event.name, offered, f"({event.cause})" if event.cause else "")


def _offered(service: ServiceDescription) -> str:
    return " ".join([service.type or "", *(f"{prop.name}={prop.value}" for prop in service.properties)])


def _print_event(event: DescriptionEvent) -> None:
    from gagent_grpc.acl.management_json import description_to_json
    from gagent_grpc.cli.following import print_json_line

    made: dict[str, Any] = {"event": str(event.kind), "at": event.at.isoformat()}
    if event.description is not None:
        made["description"] = description_to_json(event.description)
    if event.cause:
        made["cause"] = event.cause
    print_json_line(made)


def _shown(description: DFAgentDescription, wanted: ServiceDescription | None) -> list[ServiceDescription | None]:
    """Return the services of an entry that were asked for; None for an entry without any."""
    from gagent_grpc.acl.matching import matches_service

    found = [one for one in description.services if wanted is None or matches_service(wanted, one)]
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
