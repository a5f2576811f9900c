"""What all interaction protocols share: moves, verdicts, and one state machine for each participant.

Owns: whose move it is, cancelling, not-understood, failures of the platform, and deadlines. Leaves to others: which acts a
protocol has (one module each), and what is done about a move that is out of sequence (the SDK, the bus). Pure: no clock and
no loop; times are given with the moves, in Unix seconds.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from gagent_grpc.acl.performative import Performative


@dataclass(frozen=True, slots=True)
class Move:
    """One message of a conversation, as far as a protocol looks at it. Names are compared as they are given."""

    sender: str
    receivers: tuple[str, ...]
    performative: Performative
    reply_with: str = ""
    """Its reply-with; "" for none."""
    in_reply_to: str = ""
    """Its in-reply-to; "" for none."""
    reply_by: float = 0.0
    """Latest time for the next message of the flow, in Unix seconds; 0.0 for none."""
    at: float = 0.0
    """When it was accepted, in Unix seconds; 0.0 when that is not known."""
    platform: bool = False
    """The AMS wrote it in the place of an agent."""
    about: str = ""
    """In whose place; "" for a move that an agent made itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a move was in sequence."""

    in_sequence: bool
    why: str = ""
    """What was wrong with it, in one sentence; "" for nothing."""


class Stage(enum.Enum):
    """How far one participant's part has come."""

    ASKED = "asked"
    """It owes its first answer."""
    AGREED = "agreed"
    """It owes what it agreed to, or was told to do."""
    PROPOSED = "proposed"
    """The initiator owes a decision."""
    LATE = "late"
    """It proposed after the deadline; the initiator owes a rejection."""
    SUBSCRIBED = "subscribed"
    """It informs when there is something to say; nobody owes anything."""
    OVER = "over"

    def __str__(self) -> str:
        return self.value


Steps = Mapping[tuple[Stage, Performative], Stage]
"""(stage, act): the stage that it leads to."""

_OWING = frozenset({Stage.ASKED, Stage.AGREED})
_IN_SEQUENCE = Verdict(in_sequence=True)
_ENDINGS = frozenset({Performative.INFORM, Performative.FAILURE})
"""What answers a cancel: `inform` that it is done, or `failure` (the cancel meta-protocol of SC00026 and its like)."""


class Part:
    """The part of one participant."""

    __slots__ = ("cancel_mark", "cancelled", "mark", "reply_by", "stage")

    def __init__(self, reply_by: float) -> None:
        """Begin with what was asked, to be answered by ``reply_by``."""
        self.stage = Stage.ASKED
        self.reply_by = reply_by
        """Latest time for its next move, in Unix seconds; 0.0 for none, and once that was made."""
        self.cancelled = False
        """The initiator has cancelled, and the answer to that is owed."""
        self.cancel_mark = ""
        """Reply-with of the cancel."""
        self.mark = ""
        """Reply-with of its proposal, which decisions name."""

    @property
    def owes(self) -> bool:
        """Whether the next move is the participant's."""
        return self.stage is not Stage.OVER and (self.cancelled or self.stage in _OWING)

    def go(self, stage: Stage, reply_by: float = 0.0) -> None:
        """Take a step; ``reply_by`` is when the next move of the participant is due."""
        self.stage = stage
        self.reply_by = reply_by
        if stage is Stage.OVER:
            self.cancelled = False


class InteractionProtocol:
    """One conversation under one protocol: what each participant has said, and whose move it is.

    A conversation begins with an opening act of its initiator; each receiver has a part of its own. The same object serves
    the initiator, which sees its own conversation, and whoever watches the conversations of others.
    """

    name: ClassVar[str] = ""
    """FIPA's name of the protocol, in lower case."""
    opening: ClassVar[frozenset[Performative]] = frozenset()
    """Acts with which the initiator begins."""
    answers: ClassVar[Steps] = {}
    """Moves of a participant."""
    decisions: ClassVar[Steps] = {}
    """Moves of the initiator after the first one."""

    def __init__(self, initiator: str) -> None:
        """Begin a conversation of ``initiator``, which has said nothing yet."""
        self.initiator = initiator
        self._parts: dict[str, Part] = {}

    # ---- looking ---------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether every participant's part is over; False before the first move."""
        return bool(self._parts) and all(part.stage is Stage.OVER for part in self._parts.values())

    @property
    def waiting(self) -> frozenset[str]:
        """Participants that owe the next move."""
        return frozenset(name for name, part in self._parts.items() if part.owes)

    @property
    def deadline(self) -> float:
        """Latest reply-by of what participants owe, in Unix seconds; 0.0 when nothing is owed by a certain time."""
        return max((part.reply_by for part in self._parts.values() if part.owes), default=0.0)

    def next_due(self, now: float) -> float:
        """Return the earliest reply-by from ``now`` on of what participants owe, in Unix seconds; 0.0 for none."""
        return min((part.reply_by for part in self._parts.values() if part.owes and part.reply_by >= now), default=0.0)

    def overdue(self, now: float) -> frozenset[str]:
        """Return the participants whose next move was due before ``now``, in Unix seconds."""
        return frozenset(name for name, part in self._parts.items() if part.owes and 0.0 < part.reply_by < now)

    def stage_of(self, participant: str) -> Stage | None:
        """Return how far a participant's part has come; None for somebody who has no part."""
        part = self._parts.get(participant)
        return part.stage if part is not None else None

    # ---- moving ----------------------------------------------------------------------------------------------------

    def observe(self, move: Move) -> Verdict:
        """Take the next move. One that is out of sequence changes nothing, and the verdict says what was wrong.

        A move to several receivers is in sequence only if it is for each of them.

        Spec: FIPA SC00026, SC00027, SC00029, SC00035, SC00036, and the cancel meta-protocol in them.
        """
        if self.finished:
            return _wrong(f"the conversation is over; {move.performative} of {move.sender} comes after its end")
        if move.platform:
            return self._platform(move)
        if move.sender == self.initiator and not self._answers_itself(move):
            return self._initiator(move)
        return self._participant(move)

    def _answers_itself(self, move: Move) -> bool:
        """Whether an initiator that asked itself speaks as the participant."""
        if move.sender not in self._parts or move.performative is Performative.CANCEL:
            return False
        if move.performative in self.opening:
            # In `fipa-propose` and the like the act may be either; what answers something names it.
            return bool(move.in_reply_to)
        return not any(act is move.performative for _, act in self.decisions)

    def _platform(self, move: Move) -> Verdict:
        """The AMS says that somebody was not reached, or answers in the place of who is lost."""
        about = move.about
        if move.performative is not Performative.FAILURE:
            return _wrong(f"the platform says {move.performative} in the place of {about}; expected failure")
        # The other way round, too: whoever wrote to an initiator that is gone has nobody to go on with.
        names = move.receivers if about == self.initiator and about not in self._parts else (about,)
        parts, why = self._open_parts(names)
        if why:
            return _wrong(why)
        for part in parts:
            part.go(Stage.OVER)
        return _IN_SEQUENCE

    def _initiator(self, move: Move) -> Verdict:
        act = move.performative
        if act in self.opening:
            again = next((name for name in move.receivers if name in self._parts), None)
            if again is not None:
                return _wrong(f"{move.sender} opens with {act} to {again}, who has a part in the conversation already")
            if not move.receivers:
                return _wrong(f"{act} of {move.sender} names no receiver")
            for name in move.receivers:
                self._parts[name] = Part(move.reply_by)
            return _IN_SEQUENCE
        if not self._parts:
            return _wrong(f"{self.name} begins with {self._openings()}; {move.sender} began with {act}")
        # A name that stands twice is one receiver.
        receivers = tuple(dict.fromkeys(move.receivers))
        parts, why = self._open_parts(receivers)
        if why:
            return _wrong(f"{act} of {move.sender} is out of sequence: {why}")
        if act is Performative.NOT_UNDERSTOOD:
            for part in parts:
                part.go(Stage.OVER)
            return _IN_SEQUENCE
        if act is Performative.CANCEL:
            for part in parts:
                part.cancelled, part.cancel_mark, part.reply_by = True, move.reply_with, move.reply_by
            return _IN_SEQUENCE
        for name, part in zip(receivers, parts, strict=True):
            if part.cancelled or (part.stage, act) not in self.decisions:
                stage = "cancelled" if part.cancelled else str(part.stage)
                return _wrong(f"{act} of {move.sender} is out of sequence: the part of {name} is {stage}")
            if part.mark and move.in_reply_to and move.in_reply_to != part.mark:
                return _wrong(f"{act} of {move.sender} answers something else than the proposal of {name}")
        for part in parts:
            part.go(self.decisions[part.stage, act], move.reply_by)
        return _IN_SEQUENCE

    def _participant(self, move: Move) -> Verdict:
        act, sender = move.performative, move.sender
        if not self._parts:
            return _wrong(f"{self.name} begins with {self._openings()} of {self.initiator}; {sender} began with {act}")
        part = self._parts.get(sender)
        if part is None:
            return _wrong(f"{sender} has no part in the conversation")
        if part.stage is Stage.OVER:
            return _wrong(f"{act} of {sender} comes after the end of its part")
        if act is Performative.NOT_UNDERSTOOD:
            part.go(Stage.OVER)
            return _IN_SEQUENCE
        if act is Performative.CANCEL:
            return _wrong(f"{sender} says cancel; only the initiator, {self.initiator}, may do so")
        if part.cancelled and act in _ENDINGS and self._answers_cancel(part, move):
            part.go(Stage.OVER)
            return _IN_SEQUENCE
        stage = self.answers.get((part.stage, act))
        if stage is None:
            return _wrong(f"{act} of {sender} is out of sequence: its part is {part.stage}")
        # What it said crossed the cancel, whose answer goes on being owed, by when the cancel said.
        due = part.reply_by if part.cancelled else 0.0
        part.go(self._answered(part, stage, move), due)
        return _IN_SEQUENCE

    def _answers_cancel(self, part: Part, move: Move) -> bool:
        """Whether an ending act answers the cancel and not what was asked before it."""
        return not part.cancel_mark or not move.in_reply_to or move.in_reply_to == part.cancel_mark

    def _answered(self, part: Part, stage: Stage, move: Move) -> Stage:
        """Return the stage that a participant's move leads to, where that depends on more than its act."""
        return stage

    def _open_parts(self, names: tuple[str, ...]) -> tuple[list[Part], str]:
        """Return the parts of ``names``, and what is wrong with them; "" for nothing."""
        found: list[Part] = []
        for name in names:
            part = self._parts.get(name)
            if part is None:
                return [], f"{name} has no part in the conversation"
            if part.stage is Stage.OVER:
                return [], f"the part of {name} is over"
            found.append(part)
        return found, "" if found else "it names nobody"

    def _openings(self) -> str:
        return " or ".join(sorted(act.text for act in self.opening))


def _wrong(why: str) -> Verdict:
    return Verdict(in_sequence=False, why=why)
