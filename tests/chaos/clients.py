"""Senders, receivers and the collector: clients in processes of their own, which write down what they see.

Owns: the command `python -m tests.chaos.clients KIND ...`, and `Client`, by which a scenario starts, stops and kills one.
Leaves to others: the file format (`tests.chaos.history`), what the clients do (`tests.chaos.sdk_clients`,
`tests.chaos.raw_clients`).

    sender     sends from each of its agents to all receivers in turn, with the SDK: one by one with ids of its own, and now
               and then many at once; ends when told to, once every message has its receipt
    visitors   are agents that come, send a few messages with the SDK, and go for good, one after the other
    sdk        receives with the SDK; a handler run is one `delivered`, and `handled` once the handler is through. The SDK
               drops redeliveries of what it has handled, as it promises, so they do not show here
    raw        receives on the wire; every delivery is recorded, so that one which comes twice without a flag shows
    collector  reads and acknowledges what is left in the mailboxes, and ends by itself when they are empty

A client says `ready` on stdout once all its agents are connected, and stops at a line on stdin, at the end of stdin (so that
none outlives a harness that is killed), and at SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.chaos import raw_clients, sdk_clients
from tests.chaos.bus_process import ROOT, clean_environment
from tests.chaos.history import History, history_path
from tests.chaos.sdk_clients import ANSWERS_WITHIN

READY_WITHIN = 30.0
"""Seconds after which a client that has not connected never will."""
STOP_WITHIN = ANSWERS_WITHIN + 15.0
"""Seconds that a polite stop may take: the sender waits for its last receipts."""
COLLECT_WITHIN = 120.0
"""Seconds within which the collector has every name, and again until every mailbox is empty."""


class ClientFailed(Exception):
    """A client did not connect, or did not stop; the message ends with the last lines of its log."""


# ---- what a scenario uses --------------------------------------------------------------------------------------------


class Client:
    """One client process. Started on entering, ready on return; ended and reaped on leaving, whatever happened.

        async with Client.sender(folder, bus.address, ["s0"], to=["r0"], rate=200) as sender:
            ...
            await sender.stop()

    A sender that is told to stop has its receipts when it has ended; a receiver has settled what it had in hand.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        name: str,
        agents: Sequence[str],
        arguments: Sequence[str],
        env: dict[str, str] | None = None,
    ) -> None:
        """Make a client; the class methods below know the arguments of each kind."""
        self.name = name
        """Of its history and log."""
        self.agents = list(agents)
        """Names of its agents."""
        self.log = folder / f"{name}.log"
        self.history = history_path(folder, name)
        """File that this life writes."""
        command = [sys.executable, "-m", "tests.chaos.clients", kind, "--history", str(self.history)]
        self._command = [*command, "--names", ",".join(agents), *arguments]
        self._env = {**clean_environment(folder), **(env or {})}
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    def sender(
        cls,
        folder: Path,
        bus: str,
        names: Sequence[str],
        *,
        to: Sequence[str],
        rate: float = 200.0,
        bulk: float = 0.3,
        count: int = 0,
        act: str = "inform",
        seed: int = 0,
        client: str = "",
        env: dict[str, str] | None = None,
    ) -> Self:
        """Return a sender with an agent for each of ``names``.

        Args:
            folder: Where its history and log go.
            bus: Address of the bus, or of a proxy before it.
            names: Its agents.
            to: Receivers, each in its turn. They must be registered before.
            rate: Messages per second, of all its agents together.
            bulk: Share of the messages that goes out by `send_all`.
            count: Messages after which it sends no more, all agents together; 0 for no end.
            act: Performative; an answer to one that expects an answer is not waited for.
            seed: Of sizes and conversations.
            client: Name of history and log; the first agent's by default.
            env: Environment variables, such as LD_PRELOAD.
        """
        arguments = ["--bus", bus, "--to", ",".join(to), "--rate", str(rate)]
        arguments += ["--bulk", str(bulk), "--count", str(count), "--act", act, "--seed", str(seed)]
        return cls(folder, "sender", client or f"sender-{names[0]}", names, arguments, env)

    @classmethod
    def visitors(cls, folder: Path, bus: str, *, to: Sequence[str], rate: float = 40.0, seed: int = 0) -> Self:
        """Return visitors that send ``rate`` messages per second in all, ten each; their names begin with `v`."""
        arguments = ["--bus", bus, "--to", ",".join(to), "--rate", str(rate), "--seed", str(seed)]
        made = cls(folder, "visitors", "visitors", ["v"], arguments)
        # They are gone for good, so there is no mail of theirs to look for.
        made.agents = []
        return made

    @classmethod
    def receiver(
        cls,
        folder: Path,
        bus: str,
        names: Sequence[str],
        *,
        kind: str = "raw",
        delay: float = 0.0,
        fail_every: int = 0,
        nack_every: int = 0,
        retry_delay: float = 0.05,
        window: int = 4096,
        client: str = "",
        env: dict[str, str] | None = None,
    ) -> Self:
        """Return a receiver with an agent for each of ``names``.

        Args:
            folder: Where its history and log go.
            bus: Address of the bus, or of a proxy before it.
            names: Its agents.
            kind: `sdk` or `raw`.
            delay: Seconds between a delivery and its acknowledgement: how long a handler takes.
            fail_every: Messages whose number is a multiple of it fail each time that they are delivered; 0 for none.
            nack_every: The same, but only at the first attempt. A `raw` receiver sends both back, a handler raises.
            retry_delay: Seconds after which a failed one comes again; the SDK doubles it each time.
            window: Unsettled deliveries of each agent.
            client: Name of history and log; the first agent's by default.
            env: Environment variables, such as LD_PRELOAD.
        """
        arguments = ["--bus", bus, "--delay", str(delay), "--window", str(window)]
        arguments += ["--fail-every", str(fail_every), "--nack-every", str(nack_every)]
        arguments += ["--retry-delay", str(retry_delay)]
        return cls(folder, kind, client or f"{kind}-{names[0]}", names, arguments, env)

    async def __aenter__(self) -> Self:
        """Start the client and wait until it is connected.

        Raises:
            ClientFailed: It is not in time.
        """
        try:
            await self.start()
            await self.ready()
        except BaseException:
            await self.reap()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the client, politely when it is alive and nothing went wrong, and wait until it is gone."""
        try:
            if self.running and error is None:
                await self.stop()
        finally:
            await self.reap()

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the process; nobody waits until it is connected."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                env=self._env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )

    async def ready(self, *, within: float = READY_WITHIN) -> None:
        """Wait until it says that it is connected.

        Raises:
            ClientFailed: It does not.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        if line.strip() != b"ready":
            raise ClientFailed(f"{self.name} is not ready: {self.tail()}")

    def tell_to_stop(self) -> None:
        """Tell it to end politely; nobody waits for its end here."""
        if self.running and self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"stop\n")

    async def wait(self, *, within: float = STOP_WITHIN) -> int:
        """Wait for its end; return its exit code.

        Raises:
            ClientFailed: It is still there.
        """
        assert self._process is not None
        try:
            async with asyncio.timeout(within):
                return await self._process.wait()
        except TimeoutError:
            raise ClientFailed(f"{self.name} is still there after {within:g} s: {self.tail()}") from None

    async def stop(self, *, within: float = STOP_WITHIN) -> None:
        """End it politely: a sender has all its receipts then, a receiver has settled what it had in hand.

        Raises:
            ClientFailed: It does not end, or not with 0.
        """
        self.tell_to_stop()
        code = await self.wait(within=within)
        if code:
            raise ClientFailed(f"{self.name} ended with {code}: {self.tail()}")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the process a signal, by its id: the harshest one by default."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def reap(self) -> None:
        """Have nothing of the process left; idempotent."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def tail(self, lines: int = 8) -> str:
        """Return the last lines that it wrote to stderr."""
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


async def stop_all(clients: Sequence[Client]) -> list[str]:
    """End clients politely, side by side; return in words which ones did not."""
    for one in clients:
        one.tell_to_stop()
    done = await asyncio.gather(*(one.stop() for one in clients if one.running), return_exceptions=True)
    return [str(error) for error in done if isinstance(error, BaseException)]


async def collect(folder: Path, bus: str, names: Sequence[str]) -> list[str]:
    """Read what is left in the mailboxes of ``names`` into a history; return in words what went wrong.

    Receivers and senders have to be gone, and the bus has to serve.
    """
    client = Client(folder, "collector", "collector", names, ["--bus", bus])
    try:
        await client.start()
        # A client that was cut off holds its name until the bus notices.
        await client.ready(within=COLLECT_WITHIN)
        code = await client.wait(within=COLLECT_WITHIN)
    except ClientFailed as error:
        return [str(error)]
    finally:
        await client.reap()
    return [f"the collector ended with {code}: {client.tail()}"] if code else []


def names_of(letter: str, count: int) -> list[str]:
    """Return `count` names of agents: r0, r1, ..."""
    return [f"{letter}{number}" for number in range(count)]


# ---- the command -----------------------------------------------------------------------------------------------------


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a client."""

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(prog="python -m tests.chaos.clients", description=__doc__)
    parser.add_argument("kind", choices=("sender", "visitors", "sdk", "raw", "collector"))
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--bus", required=True, metavar="HOST:PORT")
    parser.add_argument("--names", type=words, required=True, metavar="NAME,...")
    parser.add_argument("--to", type=words, default=[], metavar="NAME,...")
    parser.add_argument("--rate", type=float, default=200.0, metavar="MESSAGES/S")
    parser.add_argument("--bulk", type=float, default=0.3, metavar="SHARE")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--act", default="inform")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outstanding", type=int, default=1000, metavar="SENDINGS")
    parser.add_argument("--delay", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--window", type=int, default=4096, metavar="MESSAGES")
    parser.add_argument("--fail-every", type=int, default=0)
    parser.add_argument("--nack-every", type=int, default=0)
    parser.add_argument("--retry-delay", type=float, default=0.05, metavar="SECONDS")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Be the client that the arguments describe."""
    options = parsed(arguments)
    works = {
        "sender": sdk_clients.send,
        "visitors": sdk_clients.visit,
        "sdk": sdk_clients.receive,
        "raw": raw_clients.receive,
        "collector": raw_clients.collect,
    }
    with History(options.history, kind=options.kind) as history, asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(works[options.kind](options, history))


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415  # It is not there on every system.
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
