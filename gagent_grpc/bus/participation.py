"""Who talked with whom in which conversation: those who have a part in its shared context.

Owns: the groups of a conversation, and how long and how many of them are remembered. Leaves to others: shared contexts themselves
(`bus.contexts`), what is said in which sequence (`bus.conversations`). Pure: no loop and no clock; times are given by the caller.

A conversation is known by an id that its initiator chose, and that somebody else may guess or use, too. So one id has groups: a
message brings its receiver into the group that its sender is in, and begins a new group where its sender is in none. An agent is
in one group of an id at most, the one that it came into first: whatever others write to it does not move it, so a stranger cannot
choose what it sees. Whoever writes into a conversation of others has a group of its own, and an answer to it leads nobody
anywhere.

Nearly every message is another one between two who are known, or the first one of a conversation that has no shared context and
never will: these cost no more than a look into a dictionary, and one small object.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.mailbox import Letter
from gagent_grpc.bus.origins import ANONYMOUS
from gagent_grpc.bus.ports import Clock
from gagent_grpc.config import BusLimits

_ROLE = "role:"
"""Beginning of the address of a role, behind which there is one agent."""
_MAX_GROUPS = 64
"""Groups of one conversation; beyond that the one that has been idle longest goes, of agents that are alone first."""
_MAX_MET = 1_024
"""Pairs of agents that are known to be in one group, of one conversation."""
_SPARE_SHARE = 8
"""Part of all places that is made free at once."""


class Group:
    """Agents that have a part in one conversation, because messages went between them."""

    __slots__ = ("at", "conversation_id", "initiator", "kept", "members")

    def __init__(self, conversation_id: str, initiator: str, members: Iterable[str], now: float) -> None:
        self.conversation_id = conversation_id
        self.initiator = initiator
        """Whose message began it."""
        self.members = dict.fromkeys(members, now)
        """By `name@platform`, in the order in which they came: when each one came, in Unix seconds."""
        self.at = now
        """When its last message came, in Unix seconds."""
        self.kept = False
        """Whether it has a shared context, or somebody watches for one: then it is not forgotten by itself."""


class Talk:
    """What is known of all messages with one conversation id."""

    __slots__ = ("at", "began", "first", "groups", "met", "second")

    def __init__(self, first: str, second: str, now: float) -> None:
        self.first = first
        self.second = second
        """The two of the first message; the only group while `groups` is None, and "" from then on."""
        self.began = self.at = now
        """When its first message came, and its last one, in Unix seconds."""
        self.groups: list[Group] | None = None
        """Oldest first."""
        self.met: dict[tuple[str, str], Group] | None = None
        """By sender and receiver, the group that a message between them is of; None while none is known."""


class _Share:
    """What one initiator takes of all places."""

    __slots__ = ("begun", "places")

    def __init__(self) -> None:
        self.places = 0
        """Of agents in groups that it began and that are not kept."""
        self.begun: deque[str] = deque()
        """Ids of the conversations in which it began them, oldest first; also of some that are gone."""


class Participation:
    """Remembers who talked with whom. Bounded: whoever began the most is forgotten first."""

    def __init__(self, ams: AgentManagementSystem, clock: Clock, limits: BusLimits) -> None:
        self._clock = clock
        self._most = limits.context_participants
        self._most_members = limits.context_members
        self._idle = limits.context_idle
        # Many senders, and those who speak for the platform.
        self._nobody = frozenset({ANONYMOUS, f"ams@{ams.platform}", f"df@{ams.platform}"})
        self._talks: dict[str, Talk] = {}
        self._places = 0
        """Of agents in groups that are not kept."""
        self._shares: dict[str, _Share] = {}
        self._freed: set[str] = set()
        """Names that were freed, which may still stand in groups."""
        self.restored: dict[AgentRecord, set[int]] = {}
        """Letters from before the start of the bus that wait: what they say of their conversation counts when they are delivered."""
        self.joined: Callable[[Group], None] = lambda group: None
        """Is told of a kept group that has a new member."""

    def __len__(self) -> int:
        return len(self._talks)

    # ---- messages --------------------------------------------------------------------------------------------------

    def note(self, conversation_id: str, sender: str, receiver: str, now: float, via: str = "") -> None:
        """Note a message that was accepted.

        Args:
            conversation_id: Its conversation.
            sender: `name@platform` of who really sent it.
            receiver: The same of who gets it.
            now: When it was accepted, in Unix seconds.
            via: Address that led to the receiver, where it is not its own. What goes to everybody, or to a topic, gives nobody
                a part.
        """
        talk = self._talks.get(conversation_id)
        if talk is not None:
            first, second = talk.first, talk.second
            if (first == sender and second == receiver) or (first == receiver and second == sender):
                talk.at = max(now, talk.at)
                return
        if (via and not via.startswith(_ROLE)) or sender in self._nobody:
            return
        if via:
            # It may have waited for somebody who serves the role, for days.
            now = self._clock.time()
        if talk is None:
            self._talks[conversation_id] = Talk(sender, receiver, now)
            # As `_begin`; every request of an agent begins a conversation.
            share = self._shares.get(sender)
            if share is None:
                share = self._shares[sender] = _Share()
            share.begun.append(conversation_id)
            share.places += 2
            self._places += 2
        elif talk.met is not None and (group := talk.met.get((sender, receiver))) is not None:
            group.at = talk.at = max(now, talk.at)
        else:
            self._join(talk, conversation_id, sender, receiver, now)
        if self._places > self._most:
            self._make_room()

    def _join(self, talk: Talk, conversation_id: str, sender: str, receiver: str, now: float) -> None:
        groups = self._groups(conversation_id, talk)
        talk.at = now = max(now, talk.at)
        group = next((one for one in groups if sender in one.members), None)
        # Whoever is in a group stays there: somebody who writes to it must not choose what it sees.
        is_free = not any(receiver in one.members for one in groups)
        if group is None:
            if len(groups) >= _MAX_GROUPS and not self._drop_idlest(talk, groups):
                return
            group = Group(conversation_id, sender, (sender, receiver) if is_free else (sender,), now)
            groups.append(group)
            self._begin(sender, conversation_id, len(group.members))
        elif is_free:
            group.at = now
            if len(group.members) >= self._most_members:
                return
            group.members[receiver] = now
            if group.kept:
                self.joined(group)
            else:
                self._count(group, 1)
        group.at = now
        met = talk.met
        if met is None or len(met) >= _MAX_MET:
            met = talk.met = {}
        met[sender, receiver] = met[receiver, sender] = group

    def delivered(self, record: AgentRecord, letters: Sequence[Letter]) -> None:
        """Note of letters that are being delivered those which are from before the start."""
        waiting = self.restored.get(record)
        if waiting is None:
            return
        for letter in letters:
            if letter.sequence not in waiting:
                continue
            waiting.discard(letter.sequence)
            envelope = letter.envelope
            if envelope.conversation_id:
                self.note(envelope.conversation_id, letter.sender, record.aid, self._clock.time(), letter.via)
        if not waiting:
            del self.restored[record]

    # ---- groups ----------------------------------------------------------------------------------------------------

    def group_of(self, conversation_id: str, aid: str) -> Group | None:
        """Return the group of a conversation that an agent is in; None when it is in none."""
        talk = self._talks.get(conversation_id)
        if talk is None:
            return None
        return next((one for one in self._groups(conversation_id, talk) if aid in one.members), None)

    def keep(self, group: Group) -> None:
        """A group got a shared context: it is not forgotten until `release`."""
        if not group.kept:
            self._count(group, -len(group.members))
            group.kept = True

    def release(self, group: Group) -> None:
        """A group has no shared context any more, and nobody watches for one: it is as any other one."""
        if group.kept:
            group.kept = False
            self._begin(group.initiator, group.conversation_id, len(group.members))

    def restore(self, conversation_id: str, members: Mapping[str, float], at: float) -> Group:
        """Take over a group whose shared context a store held, and keep it; ``members`` as a group has them."""
        group = Group(conversation_id, next(iter(members)), (), at)
        group.members.update(members)
        group.kept = True
        talk = self._talks.get(conversation_id)
        if talk is None:
            talk = self._talks[conversation_id] = Talk("", "", at)
            talk.groups = []
        self._groups(conversation_id, talk).append(group)
        return group

    def _groups(self, conversation_id: str, talk: Talk) -> list[Group]:
        """Return the groups of a conversation, oldest first, without agents whose names were freed."""
        if talk.groups is None:
            group = Group(conversation_id, talk.first, (talk.first, talk.second), talk.began)
            group.at = talk.at
            talk.groups = [group]
            talk.met = {(talk.first, talk.second): group, (talk.second, talk.first): group}
            # From here on the groups say it.
            talk.first = talk.second = ""
        if self._freed:
            self._clean(talk)
        return talk.groups

    # ---- what ends -------------------------------------------------------------------------------------------------

    def freed(self, record: AgentRecord) -> None:
        """A name was freed: who bears it next is somebody else."""
        self._freed.add(record.aid)
        self.restored.pop(record, None)

    def leave(self, group: Group, aid: str) -> None:
        """The name of a member of a kept group was freed."""
        group.members.pop(aid, None)
        talk = self._talks.get(group.conversation_id)
        if talk is not None:
            talk.met = None

    def taken(self, aid: str) -> None:
        """A name is taken: whoever bore it before has no part in anything any more."""
        if aid in self._freed:
            self._sweep()

    def look(self, now: float) -> None:
        """Forget who spoke in conversations that are idle, and the names that were freed."""
        for conversation_id, talk in list(self._talks.items()):
            if talk.at > now - self._idle:
                continue
            if talk.groups is not None:
                talk.groups, talk.met = [one for one in talk.groups if one.kept], None
            if not talk.groups:
                del self._talks[conversation_id]
        self._sweep()
        self._count_anew()

    def _sweep(self) -> None:
        """Take the names that were freed out of all groups."""
        freed = self._freed
        if not freed:
            return
        for conversation_id, talk in list(self._talks.items()):
            if talk.groups is None and talk.first not in freed and talk.second not in freed:
                continue
            if not self._groups(conversation_id, talk):
                del self._talks[conversation_id]
        freed.clear()

    def _clean(self, talk: Talk) -> None:
        """Take the names that were freed out of the groups of one conversation, and drop groups that nobody is left in."""
        assert talk.groups is not None
        for group in talk.groups:
            gone = self._freed & group.members.keys()
            for aid in gone:
                del group.members[aid]
            if gone:
                talk.met = None
                if not group.kept:
                    self._count(group, -len(gone))
        if not all(group.members for group in talk.groups):
            talk.groups = [group for group in talk.groups if group.members or group.kept]

    def _drop_idlest(self, talk: Talk, groups: list[Group]) -> bool:
        # Those alone go first: strangers who write to members of a group must not drive it out.
        going = min(
            (one for one in groups if not one.kept), key=lambda one: (len(one.members) > 1, one.at), default=None
        )
        if going is None:
            return False
        groups.remove(going)
        talk.met = None
        self._count(going, -len(going.members))
        return True

    # ---- room ------------------------------------------------------------------------------------------------------

    def _begin(self, initiator: str, conversation_id: str, places: int) -> None:
        """Count a group that is not kept for its initiator."""
        share = self._shares.get(initiator)
        if share is None:
            share = self._shares[initiator] = _Share()
        share.begun.append(conversation_id)
        share.places += places
        self._places += places

    def _count(self, group: Group, places: int) -> None:
        """Count so many places more for a group that is not kept; less where ``places`` is negative."""
        self._places += places
        share = self._shares.get(group.initiator)
        if share is not None:
            share.places += places

    def _count_anew(self) -> None:
        """Count all places from what there is, which also lets go of ids of conversations that are gone."""
        self._places = 0
        self._shares = {}
        for conversation_id, talk in self._talks.items():
            if talk.groups is None:
                self._begin(talk.first, conversation_id, 2)
                continue
            for group in talk.groups:
                if not group.kept:
                    self._begin(group.initiator, conversation_id, len(group.members))

    def _make_room(self) -> None:
        """Make a part of all places free: of those whose initiators have most, oldest first, until these have as many as others."""
        target = self._most - self._most // _SPARE_SHARE
        largest = [(-share.places, initiator) for initiator, share in self._shares.items()]
        heapq.heapify(largest)
        while self._places > target and largest:
            _, initiator = largest[0]
            share = self._shares[initiator]
            following = -min((one[0] for one in largest[1:3]), default=0)
            # At least one, and then for as long as nobody else has more.
            while self._places > target and share.begun:
                self._forget_first(initiator, share)
                if share.places < following:
                    break
            if share.begun:
                heapq.heapreplace(largest, (-share.places, initiator))
            else:
                heapq.heappop(largest)
                del self._shares[initiator]

    def _forget_first(self, initiator: str, share: _Share) -> None:
        conversation_id = share.begun.popleft()
        talk = self._talks.get(conversation_id)
        if talk is None:
            return
        if talk.groups is None:
            if talk.first == initiator:
                del self._talks[conversation_id]
                share.places -= 2
                self._places -= 2
            return
        for group in talk.groups:
            if group.initiator == initiator and not group.kept:
                self._count(group, -len(group.members))
        talk.groups = [group for group in talk.groups if group.initiator != initiator or group.kept]
        talk.met = None
        if not talk.groups:
            del self._talks[conversation_id]
