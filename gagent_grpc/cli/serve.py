"""`gagent serve`: a bus in this process, from its store to its last farewell."""
# ruff: noqa: PLC0415  # Commands import what they need when they run, so that help and version answer at once.

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagent_grpc.cli import options
from gagent_grpc.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

    from gagent_grpc.bus.ports import Store
    from gagent_grpc.cli.settings import Settings


def serve(
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one. [default: 127.0.0.1:50051]"),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="sqlite:PATH|memory", help="Where mail and names are kept. [default: a file in your state folder]"
        ),
    ] = None,
    web: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Take ACP messages over WebSocket there, at /acp; port 0 takes a free one."
        ),
    ] = None,
    web_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Let pages of this origin connect there, too; may be repeated."),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File of tokens. [default: one in your state folder; see gagent auth token]"),
    ] = None,
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Ask for a token over WebSocket also while none was issued.")
    ] = False,
    platform: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the platform. [default: local]")] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow an address that other machines reach, without TLS and credentials."),
    ] = False,
    max_turns: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Turns after which a conversation of two agents is ended; 0 for no bound. [default: 200]"
        ),
    ] = None,
    max_hops: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Messages that may lead to another one, each answering or forwarding the one before, beyond the turns of"
            " its conversation; 0 for no bound. [default: 64]",
        ),
    ] = None,
    conversation_policy: Annotated[
        str | None,
        typer.Option(
            metavar="observe|warn|enforce",
            help="What is done about a message out of sequence in its protocol: told to gagent watch, to its sender, too,"
            " or refused. [default: observe]",
        ),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="console|json", help="How log lines on stderr look. [default: console]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. [default: info]")
    ] = None,
    port_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write HOST:PORT there once the bus listens; removed when it stops."),
    ] = None,
    config: options.Config = None,
) -> None:
    """Run a bus until SIGTERM or Ctrl-C; a second one exits at once. What was accepted is kept either way."""
    import asyncio

    from gagent_grpc.cli.settings import resolve

    settings = resolve(
        config,
        listen=listen,
        store=store,
        web=web,
        web_origin=",".join(web_origin) if web_origin else None,
        tokens=tokens,
        require_token=require_token or None,
        platform=platform,
        insecure=insecure or None,
        max_turns=max_turns,
        max_hops=max_hops,
        conversation_policy=conversation_policy,
        log_format=log_format,
        log_level=log_level,
    )
    # gRPC writes lines of its own to stderr, such as the addresses that it could not bind, which we report ourselves.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gagent_grpc.cli.logs import set_up_logs

    set_up_logs(settings.log_format, settings.log_level)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, port_file))


async def _serve(settings: Settings, port_file: Path | None) -> None:
    import asyncio
    import logging

    from gagent_grpc.config import BusLimits, ConversationPolicy
    from gagent_grpc.server.app import is_loopback, open_bus
    from gagent_grpc.server.process import raise_descriptor_limit, tune_collector

    log = logging.getLogger(__name__)
    stop = asyncio.Event()
    signals: list[int] = []

    def on_signal(number: int) -> None:
        signals.append(number)
        if len(signals) > 1:
            # Nothing that was accepted is lost: its commit was synced before its receipt.
            log.warning("second signal, %s: exit at once", signal.Signals(number).name)
            os._exit(128 + number)
        log.info("stopping: %s", signal.Signals(number).name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, int(number))
    address = settings.store_address
    # Before the bus opens, which says how many connections fit.
    raise_descriptor_limit()
    tune_collector()
    async with contextlib.AsyncExitStack() as stack:
        opening = open_bus(
            open_store(address),
            listen=settings.listen,
            platform=settings.platform,
            limits=BusLimits(
                max_turns=settings.max_turns,
                max_hops=settings.max_hops,
                conversation_policy=ConversationPolicy(settings.conversation_policy),
            ),
            insecure=settings.insecure,
        )
        try:
            bus = await stack.enter_async_context(opening)
        except ConfigurationError as error:
            raise _with_way_out(error) from error
        if is_loopback(settings.listen.rpartition(":")[0]):
            log.info("no TLS and no credentials: the developer's default, since only this machine reaches the bus")
        else:
            log.warning("INSECURE: no TLS and no credentials; whoever reaches the bus can read and send everything")
        if settings.web:
            # Left before the bus is, so that its sockets end while there is a bus to say goodbye to.
            url = await stack.enter_async_context(_gateway(settings, bus.address))
            typer.echo(f"gagent: gateway listens at {url}")
        with _written(port_file, bus.address):
            typer.echo(f"gagent: bus {settings.platform!r} listens at {bus.address}, store {address}")
            await _any_of(stop, bus.stop_requested)


@contextlib.asynccontextmanager
async def _gateway(settings: Settings, bus: str) -> AsyncIterator[str]:
    """Serve the bus over WebSocket while the block lasts; give the URL."""
    from gagent_grpc.gateway.app import open_gateway

    opening = open_gateway(
        _reachable(bus),
        listen=settings.web,
        tokens=settings.tokens_path,
        origins=[one.strip() for one in settings.web_origin.split(",") if one.strip()],
        require_token=settings.require_token,
        insecure=settings.insecure,
    )
    async with opening as gateway:
        yield gateway.url


def _reachable(address: str) -> str:
    """Return where this process reaches a bus that listens at ``address``, which may stand for all of its addresses."""
    host, _, port = address.rpartition(":")
    return f"{_LOOPBACK.get(host, host)}:{port}"


_LOOPBACK = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  # Nothing listens by this.


async def _any_of(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    import asyncio

    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _with_way_out(error: ConfigurationError) -> ConfigurationError:
    """Return the error with what a person at the command line can do about it, where that is known."""
    # The store knows of no commands, and says what it found in words only.
    held = re.search(r"another bus has it open \(process (\w+)\)", str(error))
    if held is None:
        return error
    return ConfigurationError(
        f"A bus already runs on this store (process {held[1]}). Use it, or start another one:"
        " gagent serve --store sqlite:OTHER.db --listen 127.0.0.1:0"
    )


def open_store(address: str) -> Store:
    """Return the store that ``address`` names, not opened yet.

    Raises:
        ConfigurationError: No store of this version.
    """
    kind, _, rest = address.partition(":")
    if address == "memory":
        from gagent_grpc.storage.memory import MemoryStore

        return MemoryStore()
    if kind == "sqlite" and rest:
        from gagent_grpc.storage.sqlite import SqliteStore

        return SqliteStore(Path(rest).expanduser())
    if kind == "nats":
        raise ConfigurationError(
            f"store {address!r}: NATS comes with a later version of gagent-grpc; expected sqlite:PATH or memory"
        )
    raise ConfigurationError(f"store {address!r}: expected sqlite:PATH or memory")


@contextlib.contextmanager
def _written(path: Path | None, text: str) -> Iterator[None]:
    """Have ``text`` in the file while the block lasts; it appears whole or not at all."""
    if path is None:
        yield
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_text(f"{text}\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"--port-file {path}: cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
