"""What an agent has sent and not yet has receipts for; survives a lost connection.

Owns: numbering, the send window, resending, and which refusals are waited out. Pure: no loop of its own, no frames; times
are given by the caller. Leaves to others: writing (`client.session`), what to send (`client.agent`), the pace at which a
receiver without room is tried again (`client.backlog`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.client.backlog import Backlog
from gagent_grpc.client.batches import Batch
from gagent_grpc.client.message import Receipt
from gagent_grpc.client.pending import RESEND_FLAG, Entry, Nobody, RefusedEntry, Sending, name_of, narrowed
from gagent_grpc.envelope import Outcome
from gagent_grpc.errors import BusError

_Key = tuple[str, int]
"""(receiver, urgency): what is sent under one key arrives in order."""


class Outbox:
    """Messages in the order in which they were handed over: first those that were sent, then those that wait.

    Beside them, for each receiver without room, those that wait for that: they leave the others their way.
    """

    def __init__(self) -> None:
        self._sent: deque[Entry] = deque()
        self._waiting: deque[Entry] = deque()
        # Behind those, what is alike as long as nothing is refused: see `_unfold`. One that is sent in part is in both.
        self._batches_sent: deque[Batch] = deque()
        self._batches_waiting: deque[Batch] = deque()
        self._on_way = 0
        """Messages that are sent and not receipted."""
        self._backlogs: dict[_Key, Backlog] = {}
        self._touched: set[_Key] = set()
        """Backlogs of which a message has just got its receipt."""
        self._platform = ""
        self._order = 0
        self._first = 1
        self._sent_bytes = 0
        self._patient = True
        self.bytes = 0
        """Bytes of all messages without a receipt, but for those that wait for room."""
        self.due = math.inf
        """When the next message that waits for room is to be tried again."""

    def __len__(self) -> int:
        batched = sum(batch.waiting for batch in self._batches_waiting)
        return self._on_way + len(self._waiting) + batched + sum(map(len, self._backlogs.values()))

    def add(
        self, payloads: Sequence[bytes], receivers: Sequence[Sequence[AgentIdentifier | str]], sending: Sending
    ) -> None:
        """Hand messages over; ``receivers`` says to whom each one goes."""
        self._order += 1
        sending.order = self._order
        if payloads:
            self._batches_waiting.append(Batch(payloads, receivers, sending))
        self.bytes += sum(map(len, payloads))

    @property
    def waiting(self) -> bool:
        """Whether there is a message to send."""
        return bool(self._waiting or self._batches_waiting)

    @property
    def backlogged(self) -> bool:
        """Whether a receiver has no room."""
        return bool(self._backlogs)

    def keys(self, receivers: Iterable[Sequence[AgentIdentifier | str]], priority: int) -> set[_Key]:
        """Return what `crowded` is to be asked of, for messages to ``receivers``."""
        return {self._key(name_of(one), priority) for some in receivers for one in some}

    def crowded(self, keys: set[_Key], *, share: int, total: int) -> bool:
        """Whether more waits for room at one of ``keys`` than may: ``share`` bytes, or ``total`` at all receivers."""
        found = [backlog for key, backlog in self._backlogs.items() if key in keys]
        if not found:
            return False
        return any(one.bytes > share for one in found) or sum(one.bytes for one in self._backlogs.values()) > total

    def take(
        self, *, window_messages: int, window_bytes: int, batch_bytes: int, batch_messages: int, now: float = 0.0
    ) -> list[bytes]:
        """Return the next messages to write, within the window; one message always fits when none is on its way."""
        if self._waiting or self._backlogs:
            self._unfold()
        if self.due <= now:
            self._begin_rounds(now)
        taken: list[bytes] = []
        size = 0
        waiting = self._waiting
        backlogs = self._backlogs
        room = min(window_messages - self._on_way, batch_messages)
        if self._batches_waiting:
            return self._take_batched(room, window_bytes, batch_bytes)
        while waiting and len(taken) < room:
            entry = waiting[0]
            if backlogs and self._set_aside(entry, now):
                continue
            length = len(entry.payload)
            if (taken and size + length > batch_bytes) or (self._sent and self._sent_bytes + length > window_bytes):
                break
            waiting.popleft()
            self._sent.append(entry)
            self._on_way += 1
            self._sent_bytes += length
            size += length
            taken.append(entry.payload + RESEND_FLAG if entry.resend else entry.payload)
        return taken

    def _take_batched(self, room: int, window_bytes: int, batch_bytes: int) -> list[bytes]:
        """As `take`, of what is alike: nothing stands before it, and no receiver is without room."""
        taken: list[bytes] = []
        size = 0
        on_way = self._on_way > 0
        left = window_bytes - self._sent_bytes
        while self._batches_waiting and len(taken) < room:
            batch = self._batches_waiting[0]
            before = len(taken)
            for payload in batch.payloads[batch.sent : batch.sent + room - before]:
                size += len(payload)
                if (taken and size > batch_bytes) or (on_way and size > left):
                    size -= len(payload)
                    break
                on_way = True
                taken.append(payload)
            if len(taken) == before:
                break
            if not (self._batches_sent and self._batches_sent[-1] is batch):
                self._batches_sent.append(batch)
            batch.sent += len(taken) - before
            if batch.waiting:
                break
            self._batches_waiting.popleft()
        self._on_way += len(taken)
        self._sent_bytes += size
        return taken

    def _unfold(self) -> None:
        """Make an entry of each message, before anything is done with a single one of them."""
        for batch in self._batches_sent:
            self._sent.extend(batch.entries_under_way())
        for batch in self._batches_waiting:
            self._waiting.extend(batch.entries_waiting())
        self._batches_sent.clear()
        self._batches_waiting.clear()

    def receipts(self, accepted_through: int, exceptions: Sequence[tuple[int, Receipt]], *, now: float = 0.0) -> None:
        """Take receipts of the present session.

        Args:
            accepted_through: Number up to which all is said.
            exceptions: (number, receipt) of receivers without an ACCEPTED.
            now: Time, as for `take`.
        """
        if exceptions:
            self._unfold()
        for number, receipt in exceptions:
            index = number - self._first
            if not 0 <= index < len(self._sent):
                continue
            entry = self._sent[index]
            sending = entry.sending
            if sending is None:
                continue
            if receipt.outcome is Outcome.DUPLICATE and (entry.resend or entry.refused):
                # What was sent before had arrived: accepted, as far as its sender cares.
                if self._backlogs:
                    self._settled(entry, receipt.receiver)
                continue
            if not (sending.patience and receipt.outcome.retryable and self._refused(entry, receipt, now)):
                entry.refusals += (receipt,)
                if self._backlogs:
                    self._settled(entry, receipt.receiver)
            # A refusal is heard at once, also when acceptances come later.
            if not receipt.receiver or len(entry.refusals) >= len(entry.receivers):
                sending.resolved(entry.place, entry.refusals)
                entry.sending = None
        size = 0
        sent = self._sent
        backlogs = self._backlogs
        for _ in range(min(len(sent), accepted_through + 1 - self._first)):
            entry = sent.popleft()
            self._on_way -= 1
            self._first += 1
            size += len(entry.payload)
            if entry.sending is not None:
                entry.sending.resolved(entry.place, entry.refusals)
                if backlogs:
                    self._settled(entry, "")
        while self._batches_sent and (left := accepted_through + 1 - self._first) > 0:
            batch = self._batches_sent[0]
            count = min(left, batch.under_way)
            size += batch.accepted(count)
            self._on_way -= count
            self._first += count
            if not batch.under_way:
                self._batches_sent.popleft()
        self._sent_bytes -= size
        self.bytes -= size
        if self._touched:
            self._end_rounds(now)

    def reconnected(self, platform: str = "") -> None:
        """A new session with ``platform`` begins: what has no receipt is sent again, in order; numbers begin anew."""
        self._platform = platform
        self._unfold()
        unresolved = []
        for entry in self._sent:
            if entry.sending is None or _is_given_up(entry):
                # Refused already; nobody wants it again.
                self.bytes -= len(entry.payload)
                continue
            entry.resend = True
            # Every receiver is told of once more.
            entry.refusals = ()
            unresolved.append(entry)
        if self._backlogs:
            # The bus keeps the order of one session: in this one everything is tried again, in order.
            again = [entry for backlog in self._backlogs.values() for entry in backlog.entries()]
            again += [entry for entry in self._waiting if not _is_given_up(entry)]
            self._forget_backlogs()
            self._waiting = deque(sorted([*unresolved, *again], key=_order_of))
            self.bytes = sum(len(entry.payload) for entry in self._waiting)
        else:
            self._waiting.extendleft(reversed(unresolved))
        self._sent.clear()
        self._on_way = 0
        self._sent_bytes = 0
        self._first = 1

    def stop_waiting(self, error: BusError) -> None:
        """End every wait for room with ``error``: from now on each refusal is told at once."""
        self._patient = False
        for backlog in self._backlogs.values():
            for entry in backlog.entries():
                assert entry.sending is not None
                entry.sending.fail(error)
        self._forget_backlogs()

    def fail(self, error: BusError) -> None:
        """End every wait with ``error``: there will be no session any more."""
        self.stop_waiting(error)
        self._unfold()
        for entry in [*self._sent, *self._waiting]:
            if entry.sending is not None:
                entry.sending.fail(error)
        self._sent.clear()
        self._on_way = 0
        self._waiting.clear()
        self._sent_bytes = self.bytes = 0
        self._patient = True

    # ---- waiting for room ------------------------------------------------------------------------------------------

    def _key(self, receiver: str, priority: int) -> _Key:
        return (receiver.removesuffix(f"@{self._platform}"), priority)

    def _refused(self, entry: Entry, receipt: Receipt, now: float) -> bool:
        """A message that may wait was refused for a passing reason: it goes into the backlog of its receiver.

        Returns:
            Whether the refusal is waited out; else it is to be told. The bus hears of the message again in any case, as
            it keeps others back until then.
        """
        sending = entry.sending
        if not self._patient or sending is None:
            return False
        sending.begin_waiting(now)
        own = {self._key(name_of(one), sending.priority): one for one in entry.receivers}
        if receipt.receiver:
            key = self._key(receipt.receiver, sending.priority)
            refused = {key: own.pop(key)} if key in own else {}
        else:
            refused, own = own, {}
        waits = self._passing(receipt, sending) and not sending.given_up
        for key, receiver in refused.items():
            alone = len(entry.receivers) == 1
            part = RefusedEntry(
                entry.payload if alone else narrowed(entry.payload, [receiver]),
                (receiver,),
                sending if waits else Nobody(sending),
                entry.place,
            )
            # Of a store that failed nobody knows what it has.
            part.resend = entry.resend or receipt.outcome is Outcome.UNREACHABLE
            backlog = self._backlogs.get(key) or self._open_backlog(key)
            backlog.on_way.discard(entry)
            backlog.add(part)
            backlog.refused(receipt)
            self._touched.add(key)
        if not (waits and refused):
            return False
        sending.split(len(refused))
        if own:
            # What is left of it, should the connection be lost before its other receipts are here.
            self._narrow(entry, tuple(own.values()))
        else:
            entry.receivers = ()
        return True

    def _passing(self, receipt: Receipt, sending: Sending) -> bool:
        """Whether a refusal that may pass is waited out: not that of a platform which is not known."""
        if receipt.outcome is Outcome.UNREACHABLE and receipt.retry_after is None:
            platform = receipt.receiver.partition("@")[2]
            return platform in {"", self._platform}
        return receipt.outcome in sending.waits_for

    def _narrow(self, entry: Entry, receivers: Sequence[AgentIdentifier | str]) -> None:
        """Have a message that was sent go to ``receivers`` alone if it is sent again."""
        before = len(entry.payload)
        entry.payload = narrowed(entry.payload, receivers)
        entry.receivers = receivers
        self._sent_bytes += len(entry.payload) - before
        self.bytes += len(entry.payload) - before

    def _open_backlog(self, key: _Key) -> Backlog:
        backlog = self._backlogs[key] = Backlog()
        # Nothing is tried again before these have their receipts, or one could be overtaken.
        for entry in self._sent:
            if self._goes_by(entry, key):
                backlog.on_way.add(entry)
        return backlog

    def _goes_by(self, entry: Entry, key: _Key) -> bool:
        sending = entry.sending
        if sending is None or not sending.patience or sending.priority != key[1]:
            return False
        return any(self._key(name_of(one), key[1]) == key for one in entry.receivers)

    def _settled(self, entry: Entry, receiver: str) -> None:
        """A message was taken, or refused for good, by ``receiver``, or by all of its receivers."""
        sending = entry.sending
        if sending is None or not sending.patience:
            return
        for name in (receiver,) if receiver else map(name_of, entry.receivers):
            key = self._key(name, sending.priority)
            backlog = self._backlogs.get(key)
            if backlog is not None and entry in backlog.on_way:
                backlog.on_way.discard(entry)
                backlog.went()
                self._touched.add(key)

    def _end_rounds(self, now: float) -> None:
        for key in self._touched:
            backlog = self._backlogs.get(key)
            if backlog is None or backlog.on_way:
                continue
            if backlog.end_round(now):
                backlog.lose_patience(now)
            if len(backlog):
                self.due = min(self.due, backlog.due)
            else:
                del self._backlogs[key]
        self._touched.clear()

    def _begin_rounds(self, now: float) -> None:
        for key, backlog in list(self._backlogs.items()):
            if backlog.due <= now:
                entries = backlog.begin_round()
                if not entries:
                    del self._backlogs[key]
                self._waiting.extendleft(reversed(entries))
                self.bytes += sum(len(entry.payload) for entry in entries)
        self.due = min((one.due for one in self._backlogs.values()), default=math.inf)

    def _set_aside(self, entry: Entry, now: float) -> bool:
        """Have the first message that waits to be sent wait for room instead, where a receiver of it has none.

        Returns:
            Whether that changed what is first.
        """
        sending = entry.sending
        if sending is None or not sending.patience:
            return False
        free: list[AgentIdentifier | str] = []
        full: dict[_Key, AgentIdentifier | str] = {}
        for one in entry.receivers:
            key = self._key(name_of(one), sending.priority)
            backlog = self._backlogs.get(key)
            if backlog is None or entry in backlog.on_way:
                free.append(one)
            else:
                full[key] = one
        if not full:
            return False
        sending.begin_waiting(now)
        self._waiting.popleft()
        self.bytes -= len(entry.payload)
        if len(entry.receivers) == 1:
            self._backlogs[next(iter(full))].add(entry)
            return True
        for key, one in full.items():
            part = Entry(narrowed(entry.payload, [one]), (one,), sending, entry.place)
            part.resend = entry.resend
            self._backlogs[key].add(part)
        sending.split(len(full))
        if free:
            entry.payload = narrowed(entry.payload, free)
            entry.receivers = free
            self._waiting.appendleft(entry)
            self.bytes += len(entry.payload)
        else:
            sending.resolved(entry.place, ())
        return True

    def _forget_backlogs(self) -> None:
        self._backlogs.clear()
        self._touched.clear()
        self.due = math.inf


def _is_given_up(entry: Entry) -> bool:
    """Whether a message that was refused for want of room is wanted by nobody any more."""
    return entry.refused and entry.sending is not None and entry.sending.given_up


def _order_of(entry: Entry) -> tuple[int, int]:
    assert entry.sending is not None
    return (entry.sending.order, entry.place)
