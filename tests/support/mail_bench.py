"""A whole platform without a wire, driven step by step: each step ends when all that it leads to is done and written.

Owns: the platform's lives, its senders and readers, and waiting for it. Leaves to others: what is right (`mail_model`).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from fakes import NotingOrigin

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.platform import Platform
from gagent_grpc.bus.ports import Store, StoredDeadLetter
from gagent_grpc.bus.session import Outgoing, Session
from gagent_grpc.bus.sessions import Hello
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.envelope import Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import FakeClock

MakeStore = Callable[[Path], Store]
"""Returns a store that keeps what it keeps in a folder, of which a copy is what is left after a crash."""
STORES: dict[str, MakeStore] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "bus.db"),
}


class MailBench:
    """One platform over several lives, with senders that always listen and readers that come and go."""

    def __init__(self, make: MakeStore, folder: Path, limits: BusLimits, senders: Iterable[str]) -> None:
        self.keeps = make(folder).durable
        """What was accepted is there after a stop, and after a crash."""
        self.clock = FakeClock()
        self.told: Counter[tuple[str, str, str]] = Counter()
        """Failures that senders were told of, as (sender, receiver, id)."""
        self._make = make
        self._folder = folder
        self._limits = limits
        self._codec = EnvelopeCodec(max_id_bytes=limits.max_id_bytes)
        # With the number of the last message of the present session.
        self._senders = dict.fromkeys(senders, 0)
        self._tokens: dict[str, str] = {}
        self._unheard_before = 0
        folder.mkdir()

    # ---- lives

    async def start(self) -> None:
        self.platform = Platform("local", self._make(self._folder), self._codec, self.clock, self._limits)
        self._life = contextlib.AsyncExitStack()
        await self._life.enter_async_context(self.platform.running())
        for name in self._senders:
            await self.platform.attach(Hello(name), "local")
            self._senders[name] = 0

    async def stop(self, *, crash: bool = False) -> None:
        """End this life; after a ``crash`` the store holds what it held before that."""
        kept = self._folder.with_suffix(".kept")
        self._unheard_before = self.unheard
        if crash:
            await self.platform.flush()
            # Without what belongs to the process that dies.
            shutil.copytree(self._folder, kept, ignore=shutil.ignore_patterns("*-shm", "*.lock"))
        await self._life.aclose()
        if crash:
            shutil.rmtree(self._folder)
            kept.rename(self._folder)

    @property
    def unheard(self) -> int:
        """Failures that found no room, in all lives; asked in one that runs."""
        return self._unheard_before + self.platform.post.unheard_failures

    def advance(self, seconds: float) -> None:
        """Let time pass, during which everybody showed signs of life."""
        self.clock.advance(seconds)
        for record in self.platform.ams:
            if record.session is not None:
                record.session.heard()

    async def settle_down(self) -> None:
        """Do what is due by the clock, and have senders hear of it."""
        self.platform.keep_house()
        self.platform.release_lanes()
        for sender in self._senders:
            for out in await self._said(self._session(sender)):
                self._hear(sender, out)

    # ---- senders

    async def submit(self, sender: str, messages: Sequence[pb.BusMessage]) -> list[dict[str, Outcome]]:
        """Send messages; return the outcome of each for each receiver."""
        first = self._senders[sender] + 1
        self._senders[sender] += len(messages)
        taken = self._session(sender).submit([message.SerializeToString() for message in messages])
        assert taken == len(messages)
        outcomes = [dict.fromkeys(message.to, Outcome.ACCEPTED) for message in messages]
        through = 0
        for out in await self._said(self._session(sender)):
            through = max(through, out.accepted_through or 0)
            for one in out.exceptions:
                assert one.receiver in outcomes[one.number - first], f"a receipt for nothing: {one}"
                outcomes[one.number - first][one.receiver] = one.outcome
            self._hear(sender, out)
        assert through == self._senders[sender] or not messages, "there are messages without a receipt"
        return outcomes

    async def redrive(self, dead: StoredDeadLetter) -> Outcome:
        caller = NotingOrigin("ams@local")
        self.platform.redrives.redrive(dead, caller)
        await self._quiet()
        (outcome,) = [Outcome[name] for _, _, name in caller.outcomes] or [Outcome.ACCEPTED] * len(caller.reached)
        return outcome

    def _hear(self, sender: str, out: Outgoing) -> None:
        for letter in out.letters:
            message = self._codec.decode_acl(letter.envelope.payload)
            assert message is not None
            assert (letter.sender, str(message.performative)) == ("ams@local", "failure")
            about = message.user_parameters
            self.told[sender, about["X-failed-receiver"].partition("@")[0], about["X-failed-id"]] += 1
        self.settle(sender, acks=[letter.sequence for letter in out.letters])

    # ---- readers

    async def attach(self, reader: str, *, resume: bool, held: Iterable[int]) -> frozenset[int]:
        """Open a session; return what counts as in hand. Who does not ``resume`` must have no session."""
        token = self._tokens.get(reader, "") if resume else ""
        opened = await self.platform.attach(Hello(reader, resume_token=token, held=frozenset(held)), "local")
        self._tokens[reader] = opened.resume_token
        return opened.held

    def leave(self, reader: str) -> None:
        self.platform.detach(self._session(reader))

    async def take(self, reader: str, window: int) -> tuple[list[Letter], Counter[int]]:
        """Set a reader's window; return what came, and the sequences that it heard to be returned."""
        self._session(reader).set_window(window, 0)
        said = await self._said(self._session(reader))
        letters = [letter for out in said for letter in out.letters]
        return letters, Counter(sequence for out in said for sequence in out.returned)

    def settle(self, name: str, **settles: Any) -> None:
        """Say what became of deliveries; as `Session.settle`, of which all is optional here."""
        self._session(name).settle(**{"ack_through_tag": 0, "acks": (), "nacks": (), "rejects": (), **settles})

    def _session(self, name: str) -> Session:
        session = self.platform.ams.get(name).session
        assert session is not None
        return session

    # ---- waiting

    async def _quiet(self) -> None:
        """Wait until all that was done so far is written, and known to be so."""
        await self.platform.flush()
        for _ in range(10):
            # A commit is made known by one task, and a session says it in another.
            await asyncio.sleep(0)

    async def _said(self, session: Session) -> list[Outgoing]:
        """Return all that a session has to say after what was done so far."""
        await self._quiet()
        said: list[Outgoing] = []
        while True:
            task = asyncio.ensure_future(session.outgoing())
            await asyncio.wait({task}, timeout=0)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
                return said
            out = task.result()
            assert out is not None
            said.append(out)
