"""Whether a platform that opens what a power cut left keeps what was promised before.

Owns: the comparison, on what the store holds and on what the platform then does with it. Leaves to others: making the
cut (`power_cut`), and the promises (`power_ledger`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.bus.ports import StoredPlatform
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb
from gagent_grpc.storage.sqlite import SqliteStore
from gagent_grpc.testing import FakeClock
from tests.chaos.power_ledger import READERS, Key, Ledger, by, key_of, version_of
from tests.chaos.power_load import WAIT, Origin

_LIMITS = BusLimits(max_deliveries=1_000_000)
"""Nothing is given up here, since that would leave open what has to be there."""


_CODEC = EnvelopeCodec(max_id_bytes=_LIMITS.max_id_bytes)


class _TellingStore(SqliteStore):
    """The store, which also tells what it found."""

    found: StoredPlatform

    async def open(self) -> StoredPlatform:
        self.found = await super().open()
        return self.found


@contextlib.asynccontextmanager
async def platform_on(store: SqliteStore) -> AsyncIterator[Platform]:
    platform = Platform("local", store, _CODEC, FakeClock(), _LIMITS)
    async with platform.running():
        yield platform


@dataclass(slots=True)
class Verdict:
    """What one cut left."""

    promised: int = 0
    """Messages whose receipt had been seen."""
    stored: int = 0
    """Of these, in a mailbox."""
    lost: list[str] = field(default_factory=list)
    doubled_unflagged: int = 0
    problems: list[str] = field(default_factory=list)
    found: StoredPlatform = field(default_factory=StoredPlatform)

    @property
    def good(self) -> bool:
        """Whether everything is as promised."""
        return not (self.lost or self.doubled_unflagged or self.problems)


async def check(folder: Path, ledger: Ledger, cut: int, drawn: random.Random) -> Verdict:
    """Open the files in ``folder`` with a platform and compare it with what was promised by ``cut``."""
    verdict = Verdict()
    store = _TellingStore(folder / "bus.db")
    try:
        async with platform_on(store) as platform:
            verdict.found = store.found
            _check_stored(store.found, ledger, cut, verdict)
            await _check_platform(platform, ledger, cut, verdict, drawn)
    except Exception as error:
        verdict.problems.append(f"{type(error).__name__}: {error}")
        return verdict
    connection = apsw.Connection(str(folder / "bus.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    if (whole := connection.pragma("integrity_check")) != "ok":
        verdict.problems.append(f"integrity_check: {whole}")
    connection.close()
    return verdict


def _check_stored(found: StoredPlatform, ledger: Ledger, cut: int, verdict: Verdict) -> None:
    messages = {key_of(message): message for message in found.messages}
    keys = {(sender, key, receiver) for sender, key, receiver, *_ in found.keys}
    dead = {(one.sender, one.message_id, one.receiver) for one in found.dead_letters}
    told = _told(found)
    problems = verdict.problems
    for key, one in ledger.sent.items():
        stored = messages.get(key)
        promised = by(one.accepted, cut) and not one.transient
        verdict.promised += promised
        verdict.stored += promised and stored is not None
        if stored is None:
            if promised and (one.settled is None or one.settled >= cut):
                verdict.lost.append("/".join(key))
            elif promised and key not in keys:
                problems.append(f"the key of a settled message is forgotten: {key}")
            elif promised and one.rejected and key not in dead:
                problems.append(f"rejected, and no dead letter: {key}")
            elif promised and one.rejected and key not in told:
                problems.append(f"rejected, and its sender is not told: {key}")
            continue
        if stored.payload != one.payload or stored.key != key[1]:
            problems.append(f"another body: {key}")
        if one.submitted >= cut or one.transient:
            problems.append(f"from nowhere: {key}, submitted at {one.submitted}, cut at {cut}")
        if by(one.forgotten, cut):
            problems.append(f"settled durably, and there again: {key}")
        if one.delivered_by(cut) and stored.sequence != one.sequence:
            problems.append(f"another sequence: {key}")
    for key in messages.keys() - ledger.sent.keys():
        if key[0] != "ams@local":
            problems.append(f"from nowhere: {key}")
    next_sequences = {agent.name: agent.next_sequence for agent in found.agents}
    for name, position in ledger.agents.items():
        if position > cut:
            continue
        if name not in next_sequences:
            problems.append(f"a registered agent is gone: {name}")
        elif name in READERS and next_sequences[name] <= ledger.highest_seen(name, cut):
            problems.append(f"{name}: sequence {ledger.highest_seen(name, cut)} was seen, next {next_sequences[name]}")
    for name, versions in ledger.versions.items():
        there = version_of(found, name)
        durable = max((n for n, one in enumerate(versions) if by(one.durable, cut)), default=-1)
        allowed = [one.name for one in versions[max(0, durable) :] if one.submitted < cut] + [""] * (durable < 0)
        if there not in allowed:
            problems.append(f"the description of {name} is {there or 'gone'}; expected one of {allowed}")
    if by(ledger.opened, cut) and (ledger.closing is None or cut <= ledger.closing) and found.clean:
        problems.append("a stop that was none counts as clean")
    if by(ledger.closed, cut) and not found.clean:
        problems.append("a clean stop counts as unclean")


def _told(found: StoredPlatform) -> set[Key]:
    """Return the messages of which their senders have a failure in their mailboxes."""
    told: set[Key] = set()
    for message in found.messages:
        notice = _CODEC.decode_acl(message.payload) if message.sender == "ams@local" else None
        if notice is not None:
            about = notice.user_parameters
            receiver = about["X-failed-receiver"].removesuffix("@local")
            told.add((f"{message.receiver}@local", about["X-failed-id"], receiver))
    return told


async def _check_platform(platform: Platform, ledger: Ledger, cut: int, verdict: Verdict, drawn: random.Random) -> None:
    """Have the platform deliver all its mail, and send again what it had accepted."""
    problems = verdict.problems
    expected = Counter(message.receiver for message in verdict.found.messages)
    for name in READERS:
        if platform.ams.find(name) is None:
            continue
        session = (await platform.attach(Hello(name), "local")).session
        letters: list[Letter] = []
        async with asyncio.timeout(WAIT):
            while len(letters) < expected[name]:
                out = await session.outgoing()
                assert out is not None
                letters += out.letters
                acks = [letter.sequence for letter in out.letters]
                session.settle(ack_through_tag=0, acks=acks, nacks=[], rejects=[])
        _check_letters(name, letters, ledger, cut, verdict)
        probe = Origin("ada@local")
        made = pb.BusMessage(to=[name], id=f"probe for {name}")
        made.acl.performative = 8
        platform.router.submit(made.SerializeToString(), probe, 1)
        await probe.answered()
        async with asyncio.timeout(WAIT):
            while not (out := await session.outgoing()) or not out.letters:
                pass
        highest = max([ledger.highest_seen(name, cut), *(letter.sequence for letter in letters)])
        if out.letters[0].sequence <= highest:
            problems.append(f"{name}: sequence {out.letters[0].sequence} is used again; {highest} was")
    known = [key for key, one in ledger.sent.items() if by(one.accepted, cut) and not one.transient]
    lost = set(verdict.lost)
    for key in drawn.sample(known, min(20, len(known))):
        if "/".join(key) not in lost and platform.ams.find(key[2]) is not None:
            await _check_repetition(platform, key, ledger.sent[key].payload, problems)


def _check_letters(name: str, letters: list[Letter], ledger: Ledger, cut: int, verdict: Verdict) -> None:
    last: dict[tuple[str, int], int] = {}
    for letter in letters:
        one = ledger.sent.get((letter.sender, letter.message_id, name))
        if one is None:
            continue
        before = one.delivered_by(cut)
        if before and not letter.redelivered:
            verdict.doubled_unflagged += 1
        # One more than were made is what a stop during which it may have been delivered adds.
        if letter.attempt > before + 2:
            verdict.problems.append(f"{name}: delivery {before + 1} of {letter.message_id} is called {letter.attempt}")
        lane = letter.sender, letter.envelope.priority
        if last.get(lane, 0) > one.number:
            verdict.problems.append(f"{name}: {letter.message_id} of {letter.sender} came after a later message")
        last[lane] = one.number


async def _check_repetition(platform: Platform, key: Key, payload: bytes, problems: list[str]) -> None:
    """Send an accepted message again, and another one with its id: neither may get in."""
    origin = Origin(key[0])
    made = pb.BusMessage.FromString(payload)
    made.to[:] = [key[2]]
    platform.router.submit(made.SerializeToString(), origin, 1)
    made.acl.data += b"?"
    platform.router.submit(made.SerializeToString(), origin, 2)
    await origin.answered()
    outcomes = [receipt.outcome.name for receipt in origin.refusals]
    if outcomes != ["DUPLICATE", "INVALID"]:
        problems.append(f"{key} again: {outcomes}, accepted {origin.reached}; expected DUPLICATE, INVALID")
