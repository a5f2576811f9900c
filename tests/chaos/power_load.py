"""The clients of one life of a platform: senders, readers that come and go, and what they note in a ledger.

Owns: what is asked of the platform, drawn at random. Leaves to others: the platform and its store (`power_cut`), what
has to come of it (`power_check`).
"""

from __future__ import annotations

import asyncio
import random

from gagent_grpc.acl.descriptions import DFAgentDescription, ServiceDescription
from gagent_grpc.bus.holds import Holds
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import Receipt
from gagent_grpc.bus.platform import Caller, Hello, Platform
from gagent_grpc.bus.session import Nack, Session
from gagent_grpc.envelope import Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from tests.chaos.crash_vfs import Disk
from tests.chaos.power_ledger import READERS, SENDERS, Ledger, Sent, Version

WAIT = 20.0
"""Seconds after which something that should have come will not come any more."""


class Origin:
    """A sender that notes its receipts the moment they are there."""

    def __init__(self, aid: str) -> None:
        self.aid = aid
        self.holds = Holds()
        self.wants_failures = True
        self.reached: list[tuple[int, str]] = []
        self.refusals: list[Receipt] = []
        self._waiting = 0
        self._changed = asyncio.Event()

    def expect(self, number: int) -> None:
        self._waiting += 1

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        self._waiting -= waited
        self._changed.set()
        self.reached.append((number, receiver))

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        self._waiting -= waited
        self._changed.set()
        self.refusals.append(receipt)

    async def answered(self) -> None:
        """Wait until nothing that was sent is without a receipt."""
        async with asyncio.timeout(WAIT):
            while self._waiting:
                self._changed.clear()
                await self._changed.wait()


class _NotingOrigin(Origin):
    """One that writes its receipts into the ledger."""

    def __init__(self, aid: str, ledger: Ledger, disk: Disk, problems: list[str]) -> None:
        super().__init__(aid)
        self._ledger = ledger
        self._disk = disk
        self._problems = problems
        self.ids: dict[int, str] = {}

    def accepted(self, number: int, receiver: str, *, waited: bool, lazy: bool) -> None:
        super().accepted(number, receiver, waited=waited, lazy=lazy)
        self._reached(number, receiver)

    def refuse(self, receipt: Receipt, *, waited: bool) -> None:
        super().refuse(receipt, waited=waited)
        if receipt.outcome is Outcome.DUPLICATE:
            # It promises as much as ACCEPTED.
            self._reached(receipt.number, receipt.receiver)
        else:
            self._problems.append(f"refused under load: {receipt.outcome.name} {receipt.detail}")

    def _reached(self, number: int, receiver: str) -> None:
        one = self._ledger.sent[self.aid, self.ids[number], receiver]
        if one.accepted is None:
            one.accepted = self._disk.position


class _Reader:
    """One agent that reads: a session, and what it has in hand."""

    def __init__(self, name: str, load: Load) -> None:
        self._name = name
        self._load = load
        self._token = ""
        self._session: Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._in_hand: dict[int, Sent] = {}

    async def come(self, *, resume: bool) -> None:
        """Open a session; a resumed one goes on with half of what is in hand."""
        load = self._load
        held = [sequence for sequence in self._in_hand if load.drawn.random() < 0.5] if resume else []
        token = self._token if resume else ""
        opened = await load.platform.attach(Hello(self._name, resume_token=token, held=frozenset(held)), "local")
        load.ledger.agents.setdefault(self._name, load.disk.position)
        self._in_hand = {sequence: self._in_hand[sequence] for sequence in opened.held}
        self._token, self._session = opened.resume_token, opened.session
        self._task = asyncio.create_task(self._read(opened.session))

    async def go(self) -> None:
        """Lose the session, as when the connection breaks."""
        if self._session is not None and self._task is not None:
            self._load.platform.detach(self._session)
            await self._task
        self._session = self._task = None

    def catch_up(self) -> None:
        """Acknowledge some of what is still in hand."""
        if self._session is not None:
            self._settle(self._session, acks=[one for one in self._in_hand if self._load.drawn.random() < 0.3])

    async def _read(self, session: Session) -> None:
        while (out := await session.outgoing()) is not None:
            for sequence in out.returned:
                self._in_hand.pop(sequence, None)
            acks, nacks, rejects = [], [], []
            for letter in out.letters:
                one = self._load.note_delivery(self._name, letter)
                if one is None:
                    acks.append(letter.sequence)
                    continue
                self._in_hand[letter.sequence] = one
                what = self._load.drawn.random()
                if what < 0.5:
                    acks.append(letter.sequence)
                elif what < 0.55:
                    nacks.append(letter.sequence)
                elif what < 0.58:
                    rejects.append(letter.sequence)
            self._settle(session, acks, nacks, rejects)
            # Lets the senders go on, so that settles and accepts share commits.
            await asyncio.sleep(0)

    def _settle(
        self, session: Session, acks: list[int], nacks: list[int] | None = None, rejects: list[int] | None = None
    ) -> None:
        nacks, rejects = nacks or [], rejects or []
        for sequence in [*acks, *rejects]:
            one = self._in_hand.pop(sequence, None)
            if one is not None:
                one.settled = self._load.disk.position
                one.rejected = sequence in rejects
        session.settle(
            ack_through_tag=0,
            acks=acks,
            nacks=[Nack(sequence, 0.0, "try again") for sequence in nacks],
            rejects=[(sequence, "not wanted") for sequence in rejects],
        )


class Load:
    """The clients of one life."""

    def __init__(self, platform: Platform, disk: Disk, ledger: Ledger, drawn: random.Random, first: int) -> None:
        self.platform = platform
        self.disk = disk
        self.ledger = ledger
        self.drawn = drawn
        self.problems: list[str] = []
        self.number = first
        self._origins = [_NotingOrigin(f"{name}@local", ledger, disk, self.problems) for name in SENDERS]
        self._readers = [_Reader(name, self) for name in READERS]

    async def run(self, bursts: int) -> None:
        """Send, read, and change things until ``bursts`` were sent and receipted."""
        for name in SENDERS:
            self.platform.register(name, "", _caller(self.platform, None))
        await self._flush()
        for name in SENDERS:
            self.ledger.agents.setdefault(name, self.disk.position)
        for reader in self._readers:
            await reader.come(resume=False)
        for _ in range(bursts):
            for _ in range(self.drawn.randint(1, 12)):
                self._send()
            await self._something_else()
        for origin in self._origins:
            await origin.answered()
        for reader in self._readers:
            await reader.go()

    async def _something_else(self) -> None:
        what = self.drawn.random()
        reader = self.drawn.choice(self._readers)
        if what < 0.3:
            await self.drawn.choice(self._origins).answered()
        elif what < 0.45:
            reader.catch_up()
        elif what < 0.55:
            await reader.go()
            # Mail comes meanwhile.
            for _ in range(self.drawn.randint(0, 10)):
                self._send()
            await reader.come(resume=self.drawn.random() < 0.6)
        elif what < 0.65:
            self._describe(self.drawn.choice(READERS))
        elif what < 0.8:
            await self._flush()
        elif what < 0.85:
            await self._visit()
        await asyncio.sleep(0)

    def note_delivery(self, reader: str, letter: Letter) -> Sent | None:
        """Note that a reader has a letter; return what is known of it, None for a notice of the platform."""
        one = self.ledger.sent.get((letter.sender, letter.message_id, reader))
        if one is None:
            if letter.sender != "ams@local":
                self.problems.append(f"from nowhere: {letter.message_id} of {letter.sender} for {reader}")
            return None
        if one.deliveries and not letter.redelivered:
            self.problems.append(f"delivered again unflagged under load: {letter.message_id} for {reader}")
        if letter.envelope.payload != one.payload:
            self.problems.append(f"another body under load: {letter.message_id} for {reader}")
        one.deliveries.append(self.disk.position)
        one.sequence = letter.sequence
        return one

    def _send(self) -> None:
        origin = self.drawn.choice(self._origins)
        again = self.drawn.random() < 0.08 and bool(origin.ids)
        if again:
            message_id = origin.ids[self.drawn.choice(list(origin.ids))]
            readers = [name for name in READERS if (origin.aid, message_id, name) in self.ledger.sent]
            one = self.ledger.sent[origin.aid, message_id, readers[0]]
            if one.transient:
                return
            payload = one.payload
        else:
            message_id = f"m{self.number}"
            readers = self.drawn.sample(READERS, 1 if self.drawn.random() < 0.8 else 2)
            priority, transient = self.drawn.choice([2, 2, 2, 1, 3, 4]), self.drawn.random() < 0.05
            payload = self._made(message_id, readers, priority, transient=transient)
            for name in readers:
                self.ledger.sent[origin.aid, message_id, name] = Sent(
                    self.number, payload, priority, transient, self.disk.position
                )
        number = self.number
        self.number += 1
        origin.ids[number] = message_id
        self.platform.router.submit(payload, origin, number)

    def _made(self, message_id: str, receivers: list[str], priority: int, *, transient: bool) -> bytes:
        size = int(self.drawn.paretovariate(0.7) * 60)
        made = pb.BusMessage(to=receivers, id=message_id, priority=priority, transient=transient)
        made.acl.performative = 8
        made.acl.conversation_id = self.drawn.choice("abc")
        # Not one letter again and again: a page that ended up elsewhere must look different.
        made.acl.data = self.drawn.randbytes(min(size, 20_000))
        return made.SerializeToString()

    def _describe(self, name: str) -> None:
        record = self.platform.ams.get(name)
        versions = self.ledger.versions[name]
        version = Version(f"v{self.number}", self.disk.position)
        self.number += 1
        described = DFAgentDescription(services=(ServiceDescription(type="read", name=version.name),))
        caller = _caller(self.platform, name)
        if self.platform.df.get(record.aid) is None:
            self.platform.register_description(described, caller)
        else:
            self.platform.modify_description(described, caller)
        versions.append(version)

    async def _visit(self) -> None:
        """Have an agent come for the first time, and go."""
        name = f"guest{self.number}"
        self.number += 1
        opened = await self.platform.attach(Hello(name), "local")
        self.ledger.agents[name] = self.disk.position
        self.platform.detach(opened.session)

    async def _flush(self) -> None:
        settled = [one for one in self.ledger.sent.values() if one.settled is not None and one.forgotten is None]
        described = [versions[-1] for versions in self.ledger.versions.values() if versions]
        await self.platform.flush()
        for one in settled:
            one.forgotten = self.disk.position
        for version in described:
            version.durable = self.disk.position if version.durable is None else version.durable


def _caller(platform: Platform, name: str | None) -> Caller:
    return Caller(agent=platform.ams.get(name) if name else None, principal="local", operator=True)
