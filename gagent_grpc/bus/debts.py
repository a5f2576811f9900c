"""What agents owe: answers to messages that were delivered to them, so that the bus can answer for who is lost.

Owns: which message is the answer to which, what is closed, and the bounds. Leaves to others: who is lost (`bus.lost`), and
writing the answer in an agent's place (`bus.router`). Pure: no loop and no clock; times are given by the caller.

A debt arises when a message is first delivered, and not with its acknowledgement does it end but with its answer.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.envelope import Envelope, OnReceiverLost

# Plain numbers: they are looked up for every delivered letter, and a member of an enum is ten times as dear.
OWES_ANSWER = frozenset(int(act) for act in EXPECTS_ANSWER)
"""FIPA codes of the acts to which an answer is owed."""
_ACCEPT_PROPOSAL = int(Performative.ACCEPT_PROPOSAL)
MAY_OWE_ANSWER = OWES_ANSWER | {_ACCEPT_PROPOSAL}
"""The same with those to which one may be owed; `owes_answer` tells."""
CANCEL = int(Performative.CANCEL)
"""What ends the debt of a subscription."""
CONCERNS_DEBTS = MAY_OWE_ANSWER | {CANCEL}
"""FIPA codes of the acts with whose delivery a debt arises or ends."""
_AWARDING = frozenset({"fipa-contract-net", "fipa-iterated-contract-net"})
"""Protocols in which an accepted proposal is an order, whose outcome is told (SC00029 §1)."""
DEBT_COST = 800
"""What a debt takes beside its texts, in bytes (measured)."""
_AGREE = int(Performative.AGREE)
_SUBSCRIBE = int(Performative.SUBSCRIBE)
_SUBSCRIPTIONS = "fipa-subscribe"
"""Protocol in which answers come until one of the two ends it (SC00035)."""
_GOES_ON = frozenset({_AGREE, int(Performative.INFORM)})
"""What a publisher says and goes on owing: the bus is to say so when it is lost."""
_WAIT = int(OnReceiverLost.WAIT)
_MAX_PAYEES = 8

_BY_REPLY_WITH, _IN_CONVERSATION, _LOOSELY = range(3)
"""How an answer is marked: it names the request's reply-with; it is in the conversation of a request that has none; it is
in the conversation of one that has, and names nothing, as simple agents do."""

_Mark = tuple[str, int, str]
"""Whom the answer goes to, which of these it is, and the text."""


def owes_answer(envelope: Envelope) -> bool:
    """Whether whoever gets a message owes an answer to it."""
    if envelope.performative == _ACCEPT_PROPOSAL:
        return envelope.protocol.lower() in _AWARDING
    return envelope.performative in OWES_ANSWER


class Debt:
    """One answer that one agent owes. It has what a `failure` in its place needs, and not the message itself."""

    __slots__ = (
        "asker",
        "closed_at",
        "conversation_id",
        "debtor",
        "due",
        "id",
        "payees",
        "performative",
        "protocol",
        "reply_with",
        "sequence",
    )

    def __init__(self, debtor: str, letter: Letter, due: float) -> None:
        """Make the debt of ``debtor`` (`name@platform`) for a letter of its mailbox."""
        envelope = letter.envelope
        self.debtor = debtor
        self.sequence = letter.sequence
        """Number of the message in the debtor's mailbox."""
        self.asker = letter.sender
        """`name@platform` of who hears of it."""
        self.due = due
        """Unix seconds from which the bus may answer for a debtor that is lost; 0.0 for at once."""
        self.closed_at: float | None = None
        """When the bus answered in the debtor's place, in Unix seconds; None while it has not."""
        self.id = envelope.id
        self.performative = envelope.performative
        self.protocol = envelope.protocol
        self.conversation_id = envelope.conversation_id
        self.reply_with = envelope.reply_with
        self.payees: tuple[str, ...] = (self.asker,)
        """Whom the answer may go to: the asker, and where it wants its answers."""
        if envelope.reply_to:
            platform = debtor.partition("@")[2]
            others = [name if "@" in name else f"{name}@{platform}" for name in envelope.reply_to[:_MAX_PAYEES]]
            self.payees = tuple(dict.fromkeys([self.asker, *others]))

    @property
    def is_subscription(self) -> bool:
        """Whether it lasts until one of the two ends it; without a mark its notices cannot be told from other answers."""
        marked = self.reply_with or self.conversation_id
        return bool(marked) and self.performative == _SUBSCRIBE and self.protocol.lower() == _SUBSCRIPTIONS

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        texts = len(self.reply_with) + len(self.conversation_id) + len(self.protocol) + len(self.id)
        return DEBT_COST + texts + sum(map(len, self.payees))

    def marks(self) -> Iterator[_Mark]:
        """Return how an answer to it may be marked."""
        for payee in self.payees:
            if not self.reply_with:
                yield (payee, _IN_CONVERSATION, self.conversation_id)
                continue
            yield (payee, _BY_REPLY_WITH, self.reply_with)
            if self.conversation_id:
                yield (payee, _LOOSELY, self.conversation_id)

    def final_marks(self) -> Iterator[_Mark]:
        """Return the marks under which nothing may come any more once it is closed.

        A conversation counts where the request gave no other mark, and where it is the request's own; what else belongs
        to it is no late answer. Without a mark of any kind a late answer cannot be told from other mail.
        """
        for payee in self.payees:
            if self.reply_with:
                yield (payee, _BY_REPLY_WITH, self.reply_with)
            if self.conversation_id and self.reply_with in ("", self.conversation_id):
                yield (payee, _IN_CONVERSATION, self.conversation_id)


class _Account:
    """What one agent owes, and what it owed and may not answer any more."""

    __slots__ = ("by_mark", "closed", "owed", "payees")

    def __init__(self) -> None:
        # Ordered, since the first key of a plain dictionary gets dearer to find with each one deleted before it.
        self.owed: OrderedDict[int, Debt] = OrderedDict()
        """By sequence, oldest first."""
        self.by_mark: dict[_Mark, list[Debt]] = {}
        """The same by how they may be answered; each list oldest first."""
        self.closed: dict[_Mark, Debt] = {}
        self.payees: dict[str, int] = {}
        """How many debts, owed or closed, each payee has: a message to somebody else needs no look at what it says."""


class Debts:
    """The debts of all agents of one node.

    Bounded by number for each agent and in bytes for all together: beyond that an agent's oldest debt is forgotten, and
    who waits for that answer is left to its own time-out.

    Not handled: a message that was acknowledged before the bus stopped, and not answered, is not known after the restart.
    What was not acknowledged is owed again from the start.
    """

    def __init__(self, *, per_agent: int, max_bytes: int, longest_wait: float, closed_age: float) -> None:
        """Make an empty book.

        Args:
            per_agent: Most debts of one agent.
            max_bytes: Bound on the bytes of all.
            longest_wait: Seconds that a message waits for a receiver at most, when it names no end itself.
            closed_age: Seconds for which a closed debt is remembered.
        """
        self._per_agent = per_agent
        self._max_bytes = max_bytes
        self._longest_wait = longest_wait
        self._closed_age = closed_age
        self.accounts: dict[str, _Account] = {}
        """By agent, whoever owes something or owed it: looked into for every message, and for nothing but that."""
        self._closed: deque[Debt] = deque()
        self._bytes = 0
        self._count = 0
        self.forgotten = 0
        """Debts that were dropped for want of room."""

    @property
    def count(self) -> int:
        """Answers that are owed."""
        return self._count

    def debtors(self) -> list[str]:
        """Return the agents that owe an answer."""
        return [name for name, account in self.accounts.items() if account.owed]

    # ---- arising and ending ----------------------------------------------------------------------------------------

    def owe(self, debtor: str, letter: Letter, now: float) -> None:
        """Note that ``debtor`` got a message that expects an answer; nothing happens for one that is noted already."""
        account = self.accounts.get(debtor)
        if account is not None and letter.sequence in account.owed:
            return
        envelope = letter.envelope
        due = 0.0
        if envelope.on_receiver_lost == _WAIT:
            due = envelope.reply_by or now + self._longest_wait
        debt = Debt(debtor, letter, due)
        if self._has_room_for(debt):
            # Asked anew under the same mark: what answers it now is no late answer.
            self._reopen(debt)
            self._enter(debt)
        else:
            self.forgotten += 1

    def find(self, debtor: str, receiver: str, envelope: Envelope, *, final: bool = False) -> Debt | None:
        """Return the debt that a message of ``debtor`` to ``receiver`` pays; None when it pays none.

        Where several have the same mark, the oldest one is meant. One that is closed is returned where no open one is
        meant: such a message comes too late. A ``final`` one is the last that its receiver could get, whatever it says.
        """
        account = self.accounts.get(debtor)
        if account is None or receiver not in account.payees:
            return None
        debt = _meant(account, receiver, envelope)
        if debt is not None:
            goes_on = envelope.performative in _GOES_ON if debt.is_subscription else envelope.performative == _AGREE
            return debt if final or not goes_on else None
        if not account.closed:
            return None
        if envelope.in_reply_to:
            return account.closed.get((receiver, _BY_REPLY_WITH, envelope.in_reply_to))
        if envelope.performative in OWES_ANSWER:
            # A question of its own.
            return None
        return account.closed.get((receiver, _IN_CONVERSATION, envelope.conversation_id))

    def pay(self, debt: Debt) -> None:
        """The answer came."""
        self._leave(debt)
        self._tidy(debt.debtor)

    def reinstate(self, debt: Debt) -> None:
        """The answer that came was not kept after all."""
        self._enter(debt)

    def drop(self, debtor: str, sequence: int) -> None:
        """The message is given up, and its sender hears of that; nothing happens when nothing is owed for it."""
        account = self.accounts.get(debtor)
        debt = account.owed.get(sequence) if account is not None else None
        if debt is not None:
            self.pay(debt)

    def cancelled(self, debtor: str, sender: str, envelope: Envelope) -> None:
        """``debtor`` got a `cancel` of ``sender``: the subscription that it means is owed no more."""
        account = self.accounts.get(debtor)
        if account is None or sender not in account.payees:
            return
        in_reply_to, conversation_id = envelope.in_reply_to, envelope.conversation_id
        marks = [(sender, _BY_REPLY_WITH, in_reply_to)] if in_reply_to else []
        if conversation_id:
            marks += [(sender, _IN_CONVERSATION, conversation_id), (sender, _LOOSELY, conversation_id)]
        for mark in marks:
            meant = [debt for debt in account.by_mark.get(mark, ()) if debt.is_subscription]
            for debt in meant:
                self.pay(debt)
            if meant:
                return

    def end(self, debtor: str, asker: str, conversation_id: str) -> None:
        """``asker`` hears otherwise that ``debtor`` answers no more in a conversation: nothing is owed in it."""
        account = self.accounts.get(debtor)
        for debt in list(account.owed.values()) if account is not None else ():
            if debt.asker == asker and debt.conversation_id == conversation_id:
                self.pay(debt)

    # ---- answering for the lost ------------------------------------------------------------------------------------

    def due(self, debtor: str, now: float, most: int | None = None) -> list[Debt]:
        """Return what the bus is to answer if ``debtor`` is lost at ``now``, oldest first; at most so many, or all."""
        account = self.accounts.get(debtor)
        found: list[Debt] = []
        for debt in account.owed.values() if account is not None else ():
            if debt.due <= now:
                found.append(debt)
                if len(found) == most:
                    break
        return found

    def close(self, debt: Debt, now: float) -> None:
        """The bus answers in the debtor's place: an answer that comes later is too late."""
        self._leave(debt)
        debt.closed_at = now
        account = self.accounts[debt.debtor]
        marks = list(debt.final_marks())
        if marks:
            self._closed.append(debt)
            self._bytes += debt.size
            account.closed.update(dict.fromkeys(marks, debt))
            _count(account.payees, debt, 1)
        self._tidy(debt.debtor)

    def forget_old(self, now: float) -> None:
        """Forget closed debts whose time is over."""
        while self._closed and (self._closed[0].closed_at or 0.0) < now - self._closed_age:
            self._forget_closed()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _has_room_for(self, debt: Debt) -> bool:
        """Make room for a debt; return whether there is any."""
        account = self.accounts.get(debt.debtor)
        if account is not None and len(account.owed) >= self._per_agent:
            self._forget_oldest(account)
        while self._bytes + debt.size > self._max_bytes:
            account = self.accounts.get(debt.debtor)
            if self._closed:
                self._forget_closed()
            elif account is not None and account.owed:
                # Its own, and not somebody else's: who lets its debts pile up is the one to lose by it.
                self._forget_oldest(account)
            else:
                return False
        return True

    def _forget_oldest(self, account: _Account) -> None:
        self.forgotten += 1
        self.pay(next(iter(account.owed.values())))

    def _enter(self, debt: Debt) -> None:
        account = self.accounts.get(debt.debtor)
        if account is None:
            account = self.accounts[debt.debtor] = _Account()
        account.owed[debt.sequence] = debt
        for mark in debt.marks():
            account.by_mark.setdefault(mark, []).append(debt)
        _count(account.payees, debt, 1)
        self._bytes += debt.size
        self._count += 1

    def _leave(self, debt: Debt) -> None:
        account = self.accounts[debt.debtor]
        del account.owed[debt.sequence]
        for mark in debt.marks():
            debts = account.by_mark[mark]
            debts.remove(debt)
            if not debts:
                del account.by_mark[mark]
        _count(account.payees, debt, -1)
        self._bytes -= debt.size
        self._count -= 1

    def _reopen(self, debt: Debt) -> None:
        account = self.accounts.get(debt.debtor)
        if account is not None and account.closed:
            for payee in debt.payees:
                account.closed.pop((payee, _BY_REPLY_WITH, debt.reply_with), None)
                account.closed.pop((payee, _IN_CONVERSATION, debt.conversation_id), None)

    def _forget_closed(self) -> None:
        debt = self._closed.popleft()
        self._bytes -= debt.size
        account = self.accounts[debt.debtor]
        for mark in debt.final_marks():
            if account.closed.get(mark) is debt:
                del account.closed[mark]
        _count(account.payees, debt, -1)
        self._tidy(debt.debtor)

    def _tidy(self, debtor: str) -> None:
        """Let an account go that says nothing any more."""
        account = self.accounts[debtor]
        if not account.payees:
            del self.accounts[debtor]


def _meant(account: _Account, receiver: str, envelope: Envelope) -> Debt | None:
    """Return the oldest open debt that a message is the answer to."""
    marked, in_reply_to, conversation_id = account.by_mark, envelope.in_reply_to, envelope.conversation_id
    if in_reply_to:
        debts = marked.get((receiver, _BY_REPLY_WITH, in_reply_to))
        if debts is None and conversation_id:
            debts = marked.get((receiver, _IN_CONVERSATION, conversation_id))
        return debts[0] if debts else None
    debts = marked.get((receiver, _IN_CONVERSATION, conversation_id), [])
    if conversation_id and envelope.performative not in OWES_ANSWER:
        debts = [*debts[:1], *marked.get((receiver, _LOOSELY, conversation_id), [])[:1]]
    return min(debts[:2], key=_sequence_of, default=None)


def _sequence_of(debt: Debt) -> int:
    return debt.sequence


def _count(payees: dict[str, int], debt: Debt, by: int) -> None:
    for payee in debt.payees:
        count = payees.get(payee, 0) + by
        if count:
            payees[payee] = count
        else:
            del payees[payee]
