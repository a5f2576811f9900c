"""A whole platform on each store against a model of its mailboxes: any steps, and what each of them may lead to.

Senders send, repeat and contradict themselves; readers take, acknowledge, return and reject, are lost and come back; time
passes, names come and go, the bus stops and crashes. After each step the receipts, what was delivered and in which order,
its flags and counts, the mailboxes, the dead letters and the failures that senders were told have to be those of the model.

Another store takes one line in `mail_bench.STORES`. `GAGENT_MODEL=nightly` runs other, more and longer examples each time.
"""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from mail_bench import STORES, MailBench, MakeStore
from mail_model import LIMITS, URGENT, Box, Mail, Model

from gagent_grpc.bus.callers import Caller
from gagent_grpc.bus.session import Nack
from gagent_grpc.envelope import DeadReason, Outcome
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb

SENDERS = ("ada", "bea")
READERS = ("rex", "sam")
OPERATOR = Caller(agent=None, principal="local", operator=True)
WAIT = 100.0
"""Seconds of the wall that no step takes, however busy the machine is."""
NIGHTLY = os.environ.get("GAGENT_MODEL") == "nightly"


# ---- what hypothesis draws


class Wish(NamedTuple):
    """One message of a batch: new, nameless (without an id), again (an earlier one), or other (another one under its id)."""

    to: tuple[str, ...]
    kind: str = "new"
    which: int = 0
    priority: int = 2
    conversation: str = "a"
    transient: bool = False
    resend: bool = False
    expires_in: float | None = None


def rarely(share: int) -> st.SearchStrategy[bool]:
    return st.integers(0, share).map(lambda drawn: drawn == share)


WISHES = st.builds(
    Wish,
    to=st.sampled_from([("rex",), ("rex",), ("rex",), ("sam",), ("rex", "sam")]),
    kind=st.sampled_from(["new", "new", "new", "nameless", "again", "other"]),
    which=st.integers(0, 7),
    priority=st.sampled_from([2, 2, URGENT]),
    conversation=st.sampled_from(["a", "a", "b"]),
    transient=rarely(5),
    resend=rarely(7),
    expires_in=st.sampled_from([None, None, None, 5.0, 40.0, -1.0]),
)
BATCHES = st.lists(WISHES, max_size=4)
REPEATS = st.lists(WISHES.map(lambda wish: wish._replace(kind="again")), max_size=3)
SENDER = st.sampled_from(SENDERS)
READER = st.sampled_from(["rex", "rex", "sam"])
PICKS = st.sets(st.integers(0, 5), min_size=1, max_size=3)
ROOM = st.integers(1, 6)
HOWS = st.lists(
    st.sampled_from(
        ["ack", "through", "reject", "nack", "nack", "take", "rest", "leave", "as new", "resume", "resume"]
    ),
    min_size=1,
    max_size=4,
)
DELAY = st.sampled_from([0.0, 0.0, 3.0, 20.0])


def picked(mails: list[Mail], picks: Iterable[int]) -> list[Mail]:
    """Return the mails that the numbers stand for, whatever their number."""
    chosen = {pick % len(mails) for pick in picks} if mails else set()
    return [mail for index, mail in enumerate(mails) if index in chosen]


class PlatformAgainstModel(RuleBasedStateMachine):
    """Every rule is a step of somebody; what it leads to is compared at once."""

    def __init__(self, make: MakeStore, folder: Path) -> None:
        super().__init__()
        self.bench = MailBench(make, folder, LIMITS, SENDERS)
        self.model = Model()
        self.sent: list[tuple[str, pb.BusMessage]] = []
        self.folder = folder
        self.failed = False
        self.loop = asyncio.new_event_loop()
        self.run(self.bench.start())

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(asyncio.wait_for(step, WAIT))
        except BaseException:
            self.failed = True
            raise

    @property
    def now(self) -> float:
        return self.bench.clock.time()

    @initialize()
    def come(self) -> None:
        for reader in READERS:
            self.run(self.attached(reader))

    def teardown(self) -> None:
        try:
            if not self.failed:
                self.run(self.emptied())
        finally:
            self.loop.run_until_complete(self.bench.stop())
            self.loop.close()
            shutil.rmtree(self.folder)

    async def emptied(self) -> None:
        """Nothing may be left that nobody can get at."""
        self.bench.advance(60.0)
        await self.compared()
        for reader, box in self.model.boxes.items():
            self.wake(reader)
            await self.attached(reader)
            while box.mail:
                # More than once, since what may be its last delivery goes out alone.
                before = len(box.mail)
                await self.taken(reader, 100)
                await self.settled(reader, acks=box.in_hand)
                assert len(box.mail) < before
        assert self.bench.platform.post.mail_bytes == 0

    # ---- sending

    @rule(sender=SENDER, wishes=BATCHES)
    def send(self, sender: str, wishes: list[Wish]) -> None:
        self.run(self.submitted(sender, wishes))

    async def submitted(self, sender: str, wishes: Iterable[Wish]) -> None:
        await self.submit(sender, [made for wish in wishes if (made := self.message(sender, wish)) is not None])

    async def submit(self, sender: str, messages: list[pb.BusMessage]) -> None:
        for message, outcomes in zip(messages, await self.bench.submit(sender, messages), strict=True):
            for receiver, outcome in outcomes.items():
                allowed = self.model.allowed(sender, message, receiver, self.now)
                assert outcome in allowed, f"{outcome.name} for {message}; expected {allowed}"
                if outcome is Outcome.ACCEPTED:
                    self.model.accept(sender, message, receiver, self.now, flagged=message.resend)
        await self.compared()

    def message(self, sender: str, wish: Wish) -> pb.BusMessage | None:
        """Return the message of a wish; None when there is nothing to repeat."""
        made = pb.BusMessage()
        earlier = [one for by, one in self.sent if by == sender and one.id]
        if wish.kind in {"again", "other"}:
            if not earlier:
                return None
            made.CopyFrom(earlier[-1 - wish.which % len(earlier)])
        else:
            made.to.extend(wish.to)
            made.id = f"m{len(self.sent)}" if wish.kind == "new" else ""
            made.priority, made.transient, made.resend = wish.priority, wish.transient, wish.resend
            made.acl.performative, made.acl.conversation_id = 8, wish.conversation
            if wish.expires_in is not None:
                made.expires_at.FromMilliseconds(int((self.now + wish.expires_in) * 1000))
        if wish.kind != "again":
            made.acl.text = f"text {len(self.sent)}"
            self.sent.append((sender if wish.kind == "new" else "", made))
        return made

    # ---- reading

    def leave(self, reader: str) -> None:
        box = self.model.boxes.get(reader)
        if box is not None and box.there:
            self.bench.leave(reader)
            box.lose()

    def wake(self, reader: str) -> None:
        if self.model.boxes[reader].suspended:
            self.bench.platform.resume(reader, OPERATOR)
            self.model.boxes[reader].suspended = False

    async def attached(self, reader: str, picks: Iterable[int] = (), *, resume: bool = True) -> None:
        """Open a session that says it has some of its mail in hand, which counts for one that resumes only."""
        resume = resume and reader in self.model.boxes
        box = self.model.boxes.setdefault(reader, Box())
        held = picked([mail for mail in box.mail if mail.sequence], picks)
        if box.there:
            box.lose(politely=True, held=held)
        found = await self.bench.attach(reader, resume=resume, held=[mail.sequence for mail in held])
        assert found == {mail.sequence for mail in held if resume}
        box.attach(held if resume else [], resumed=resume)
        await self.compared()

    async def taken(self, reader: str, room: int) -> None:
        """Let a reader take ``room`` messages more."""
        if reader not in self.model.boxes or not self.model.boxes[reader].there:
            await self.attached(reader)
        box = self.model.boxes[reader]
        if room % 2:
            self.wake(reader)
        expected, before, idle = box.expected(room), len(box.mail), not box.in_hand and box.deliverable()
        letters, returned = await self.bench.take(reader, len(box.in_hand) + room)
        there = {letter.sequence for letter in self.bench.platform.ams.get(reader).mailbox.letters()}
        for mail in [mail for mail in box.waiting if mail.deliveries_left() <= 0 and mail.sequence not in there]:
            self.model.give_up(reader, mail, DeadReason.MAX_DELIVERIES, self.now)
        for letter in letters:
            box.deliver(letter)
        assert len(letters) in expected, f"{len(letters)} came to {reader}, expected {expected}: {box}"
        assert letters or len(box.mail) < before or not idle, f"nothing came to {reader}: {box}"
        assert returned == box.returned
        box.returned.clear()
        await self.compared()

    async def busy(self, reader: str, room: int) -> None:
        """Have a reader take something if it has nothing in hand, so that the step means something."""
        box = self.model.boxes.get(reader)
        if box is None or not box.mail:
            bulk, urgent = Wish((reader,)), Wish((reader,), priority=URGENT)
            await self.submitted("ada", [bulk, urgent, bulk, bulk, bulk._replace(conversation="b", expires_in=40.0)])
        if box is None or not box.in_hand:
            await self.taken(reader, room)

    # ---- settling

    @rule(
        reader=READER, hows=HOWS, times=st.integers(1, LIMITS.max_deliveries + 1), picks=PICKS, delay=DELAY, room=ROOM
    )
    def read(self, reader: str, hows: list[str], times: int, picks: set[int], delay: float, room: int) -> None:
        """A reader settles what it has in hand, takes more, is lost, comes back as new, or resumes."""
        for how in hows * times:
            self.run(self.busy(reader, room))
            box, urgent = self.model.boxes[reader], Wish((reader,), priority=URGENT)
            if how == "take":
                self.run(self.submitted("bea", [Wish((reader,)), urgent, urgent]))
                self.run(self.taken(reader, room))
            elif how == "rest":
                self.bench.advance(30.0)
                self.run(self.compared())
            elif how in {"leave", "as new"}:
                self.leave(reader)
                if how == "as new":
                    # With its token gone it may come only now that there is no older session.
                    self.run(self.attached(reader, picks, resume=False))
            elif how == "resume":
                self.run(self.attached(reader, picks))
            elif how == "nack":
                self.run(self.nacked(reader, picked(box.in_hand, picks), delay))
                self.run(self.taken(reader, room))
            elif how == "through":
                # What is held over has no tag, and none says anything of it.
                self.run(self.taken(reader, room))
                tags = [mail.tag for mail in picked([mail for mail in box.in_hand if mail.tag], picks)]
                self.run(self.settled(reader, through=max(tags, default=0)))
            else:
                self.run(self.settled(reader, **{f"{how}s": picked(box.answerable, picks)}))
        self.run(self.compared())

    async def settled(
        self, reader: str, *, acks: Iterable[Mail] = (), through: int = 0, rejects: Iterable[Mail] = ()
    ) -> None:
        box, acks, rejects = self.model.boxes[reader], list(acks), list(rejects)
        self.bench.settle(
            reader,
            ack_through_tag=through,
            acks=[mail.sequence for mail in acks],
            rejects=[(mail.sequence, "never") for mail in rejects],
        )
        for mail in [*acks, *(mail for mail in box.in_hand if 0 < mail.tag <= through)]:
            self.model.settle(reader, mail, self.now)
        for mail in rejects:
            self.model.give_up(reader, mail, DeadReason.REJECTED, self.now)
        await self.compared()

    async def nacked(self, reader: str, mails: list[Mail], delay: float) -> None:
        box = self.model.boxes[reader]
        self.bench.settle(reader, nacks=[Nack(mail.sequence, delay, "not now") for mail in mails])
        for mail in mails:
            if mail.attempt >= LIMITS.max_deliveries + mail.granted:
                self.model.give_up(reader, mail, DeadReason.MAX_DELIVERIES, self.now)
                box.returned[mail.sequence] += 1
        box.nack([mail for mail in mails if mail in box.in_hand], self.now + delay)
        await self.compared()

    # ---- what else happens

    @rule(which=st.integers(0, 5), seconds=st.sampled_from([0.0, 700.0]))
    def redrive(self, which: int, seconds: float) -> None:
        self.run(self.redriven(which, seconds))

    async def redriven(self, which: int, seconds: float) -> None:
        """An operator puts a dead letter back; it is a new one, and its sender, who hears nothing, may send it again."""
        letters = list(self.bench.platform.dead_letters)
        if not letters:
            return
        letter = letters[which % len(letters)]
        message, sender, reader = pb.BusMessage.FromString(letter.payload), letter.sender[:3], letter.receiver
        known = self.model.keys.get((sender, message.id, reader))
        if known is not None and known[1] > self.now:
            # Its id was used again since, once the window was over; the two could not be told apart here.
            return
        expected = self.model.allowed_anew(message, reader, self.now)
        assert await self.bench.redrive(letter) is expected
        if expected is Outcome.ACCEPTED:
            self.model.dead[reader, letter.payload, letter.reason, letter.attempt] -= 1
            self.model.accept(sender, message, reader, self.now, flagged=True)
        await self.compared()
        # Its first life is over for longer than the window then.
        self.bench.advance(seconds)
        await self.compared()
        if message.id:
            again = pb.BusMessage.FromString(letter.payload)
            again.to[:] = [reader]
            await self.submit(sender, [again])

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0, 30.0, 700.0, 8 * 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.bench.advance(seconds)
        self.run(self.compared())

    @rule(how=st.sampled_from(["stop", "crash", "nack and crash"]), reader=READER, sender=SENDER, wishes=REPEATS)
    def end_and_start(self, how: str, reader: str, sender: str, wishes: list[Wish]) -> None:
        """The bus ends and starts, and a sender that is not sure what was heard of it says it again."""
        keeps = self.bench.keeps
        if how == "nack and crash":
            self.run(self.busy(reader, 3))
            self.run(self.nacked(reader, self.model.boxes[reader].in_hand[:1], 20.0))
        # Where nothing is left then, that is rarer.
        if keeps or how == "stop":
            self.run(self.bench.stop(crash=how != "stop"))
            self.model.restart(keeps=keeps, crashed=how != "stop")
            self.run(self.bench.start())
        self.run(self.submitted(sender, wishes))

    @rule(reader=READER, what=st.sampled_from(["suspend", "suspend", "deregister"]))
    def govern(self, reader: str, what: str) -> None:
        box = self.model.boxes.get(reader)
        if box is not None and what == "suspend":
            self.bench.platform.suspend(reader, OPERATOR)
            box.suspended = True
        elif box is not None:
            self.bench.platform.deregister(reader, OPERATOR)
            for mail in box.mail:
                self.model.give_up(reader, mail, DeadReason.DEREGISTERED, self.now)
            del self.model.boxes[reader]
        self.run(self.compared())

    # ---- comparing

    async def compared(self) -> None:
        """Do what is due by the clock, in the model too, and compare what can be seen from outside."""
        self.model.pass_time(self.now)
        await self.bench.settle_down()
        untold = self.model.to_tell - self.bench.told
        assert not self.bench.told - self.model.to_tell
        # More of them at once than a mailbox holds find no room.
        assert untold.total() == self.bench.unheard, f"nobody was told of {untold}"
        platform = self.bench.platform
        dead = Counter((one.receiver, one.payload, one.reason, one.attempt) for one in platform.dead_letters)
        assert dead == self.model.dead
        for reader in READERS:
            record, box = platform.ams.find(reader), self.model.boxes.get(reader)
            assert (record is None) == (box is None)
            if record is not None and box is not None:
                found = (record.mailbox.messages, record.mailbox.bytes)
                assert found == (len(box.mail), sum(len(one.payload) for one in box.mail)), f"{reader}: {box}"


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Path]:
    """Where stores keep what they keep: in memory where that is possible, since no power is cut here."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)


# A failing example is made smaller for up to five minutes.
@pytest.mark.timeout(3_600 if NIGHTLY else 600)
@pytest.mark.parametrize("store", STORES)
def test_platform_does_what_the_model_says(store: str, folders: Path) -> None:
    numbers = itertools.count()
    run_state_machine_as_test(
        lambda: PlatformAgainstModel(STORES[store], folders / str(next(numbers))),
        settings=settings(
            max_examples=200 if NIGHTLY else 90,
            stateful_step_count=50 if NIGHTLY else 20,
            # The same examples in each run of the tests; at night others.
            derandomize=not NIGHTLY,
            report_multiple_bugs=False,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
