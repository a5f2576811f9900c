"""Behaviours made of behaviours: one after the other, side by side, and as a finite state machine.

Owns: which part runs when, and what the parts' results and errors mean to the whole. Leaves to others: the life of each
part (`client.behaviours`).
"""

from __future__ import annotations

import asyncio
import enum
from typing import Any, TypeVar

from gagent_grpc.client.behaviours import Behaviour, cut_off, ended
from gagent_grpc.errors import InvalidArgument, PreconditionFailed

BehaviourT = TypeVar("BehaviourT", bound=Behaviour)


class Until(enum.Enum):
    """When a `ParallelBehaviour` is over."""

    ALL = "all"
    """All of its parts have ended."""
    ANY = "any"
    """One of them has; the others are killed."""


class _Composite(Behaviour):
    """A behaviour with parts. They receive from its messages, and end with it; the error of one is its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._parts: list[Behaviour] = []

    def _take_in(self, part: BehaviourT) -> BehaviourT:
        """Make a behaviour a part of this one.

        Raises:
            InvalidArgument: It is no behaviour, this one itself or one that this one is in, or in use elsewhere.
        """
        if not isinstance(part, Behaviour):
            raise InvalidArgument(f"{part!r} is no behaviour; expected an instance of Behaviour", field="behaviour")
        if part is self._root():
            raise InvalidArgument(f"{part.name}: cannot be a part of itself", field="behaviour")
        if part.parent is not None or part._added is not None:
            raise InvalidArgument(f"{part.name}: in use already; expected one that is new", field="behaviour")
        part._parent = self
        self._parts.append(part)
        return part

    def _check(self) -> None:
        for part in self._parts:
            part._check()


class SequentialBehaviour(_Composite):
    """Runs its parts one after the other; its result is that of the last one."""

    def __init__(self, *parts: Behaviour, name: str = "") -> None:
        """Make a sequence of ``parts``, to which `add` may append.

        Raises:
            InvalidArgument: One is no behaviour, or in use already.
        """
        super().__init__(name)
        self._next = 0
        for part in parts:
            self.add(part)

    def add(self, part: BehaviourT) -> BehaviourT:
        """Append a part, also while the sequence runs; return it.

        Raises:
            InvalidArgument: It is no behaviour, or in use already.
        """
        return self._take_in(part)

    async def action(self) -> Any:
        """Run the next part."""
        if self._next >= len(self._parts):
            return self.result
        part = self._parts[self._next]
        await ended(part._begin())
        self._next += 1
        return None if part.killed else part.result

    def done(self) -> bool:
        """Return whether there is no further part."""
        return self._next >= len(self._parts)

    def _prepare(self) -> None:
        super()._prepare()
        self._next = 0


class ParallelBehaviour(_Composite):
    """Runs its parts side by side until all of them have ended, or the first one has.

    Its result is the list of the parts' results in the order in which they were added, or that of the part which ended
    first. Each message goes to one of the parts that wait for it. The first part that fails ends the others.
    """

    ALL = Until.ALL
    ANY = Until.ANY

    def __init__(self, *parts: Behaviour, until: Until = Until.ALL, name: str = "") -> None:
        """Make it of ``parts``, to which `add` may append before it runs.

        Raises:
            InvalidArgument: One is no behaviour, or in use already, or ``until`` is neither ALL nor ANY.
        """
        super().__init__(name)
        if not isinstance(until, Until):
            raise InvalidArgument(
                f"until {until!r}; expected ParallelBehaviour.ALL or ParallelBehaviour.ANY", field="until"
            )
        self.until = until
        """When it is over."""
        for part in parts:
            self.add(part)

    def add(self, part: BehaviourT) -> BehaviourT:
        """Add a part; return it.

        Raises:
            InvalidArgument: It is no behaviour, or in use already.
            PreconditionFailed: This one runs.
        """
        if self.running:
            raise PreconditionFailed(f"{self.name}: runs already; expected its parts before")
        return self._take_in(part)

    async def action(self) -> Any:
        """Run all parts to their end."""
        tasks = {part._begin(): part for part in self._parts}
        left = set(tasks)
        first: Behaviour | None = None
        try:
            while left and not (first is not None and self.until is Until.ANY):
                over, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the parts, where several have ended in the same turn.
                for task in (one for one in tasks if one in over):
                    if not task.cancelled():
                        task.result()
                    first = first or tasks[task]
        finally:
            await cut_off(list(tasks))
            for task in tasks:
                if not task.cancelled():
                    # One error comes out, and asyncio is not to wonder about the others.
                    task.exception()
        if self.until is Until.ANY:
            return first.result if first is not None and not first.killed else None
        return [None if part.killed else part.result for part in self._parts]

    def done(self) -> bool:
        """Return True: all is done in one step."""
        return True


class _Any:
    """Stands for every result without a transition of its own."""

    def __repr__(self) -> str:
        return "any result"


ANY_RESULT = _Any()


class FSMBehaviour(_Composite):
    """A finite state machine: each state is a behaviour, and its result says which state is next.

        fsm = FSMBehaviour()
        fsm.add_state("ask", Ask(), start=True)
        fsm.add_state("wait", Wait())
        fsm.add_state("thank", Thank(), final=True)
        fsm.add_transition("ask", "wait")
        fsm.add_transition("wait", "thank", "answered")
        fsm.add_transition("wait", "ask", "too late")

    It begins with the start state and is over when a final one has ended, with that one's result. A state may be visited
    many times, and begins anew each time. One without a final state goes on until it is killed.
    """

    def __init__(self, name: str = "") -> None:
        """Make one without states."""
        super().__init__(name)
        self._states: dict[str, Behaviour] = {}
        self._finals: set[str] = set()
        self._transitions: dict[str, list[tuple[Any, str]]] = {}
        self._start: str | None = None
        self._state: str | None = None
        self._over = False

    @property
    def state(self) -> str | None:
        """Name of the state that it is in, or ended in; None before it began."""
        return self._state

    def add_state(self, state: str, behaviour: BehaviourT, *, start: bool = False, final: bool = False) -> BehaviourT:
        """Add a state; return its behaviour.

        Args:
            state: Its name.
            behaviour: What is done in it.
            start: The machine begins with it.
            final: The machine is over when it has ended.

        Raises:
            InvalidArgument: The name is taken, another state is the start, or the behaviour is in use already.
            PreconditionFailed: The machine runs.
        """
        self._still_open()
        if state in self._states:
            raise InvalidArgument(f"{self.name}: the state {state!r} is there already", field="state")
        if start and self._start is not None:
            raise InvalidArgument(
                f"{self.name}: {state!r} cannot be the start, since {self._start!r} is", field="start"
            )
        self._take_in(behaviour)
        self._states[state] = behaviour
        if start:
            self._start = state
        if final:
            self._finals.add(state)
        return behaviour

    def add_transition(self, source: str, target: str, result: Any = ANY_RESULT) -> None:
        """Go from one state to another.

        Args:
            source: State that has ended.
            target: State that begins then; it may be added later.
            result: What the state must have returned; by default, whatever no other transition of it is for. A part that
                was killed has the result None.

        Raises:
            InvalidArgument: The state has a transition for this result.
            PreconditionFailed: The machine runs.
        """
        self._still_open()
        leaving = self._transitions.setdefault(source, [])
        if any(one is result or one == result for one, _ in leaving):
            raise InvalidArgument(f"{self.name}: {source!r} has a transition for {result!r} already", field="result")
        leaving.append((result, target))

    def _still_open(self) -> None:
        if self.running:
            raise PreconditionFailed(f"{self.name}: runs already; expected its states and transitions before")

    def _check(self) -> None:
        """Check the machine.

        Raises:
            InvalidArgument: It has no start, a transition leads from or to a state that is not there, a state that is not
                final has no transition or a final one has some, or a state cannot be reached.
        """
        known = ", ".join(self._states) or "none"
        if self._start is None:
            raise InvalidArgument(
                f"{self.name}: no start state; expected one of {known} with start=True", field="start"
            )
        for source, leaving in self._transitions.items():
            for state in (source, *(target for _, target in leaving)):
                if state not in self._states:
                    text = f"{self.name}: a transition names the state {state!r}; expected one of {known}"
                    raise InvalidArgument(text, field="transition")
        reached, new = set[str](), [self._start]
        while new:
            state = new.pop()
            if state not in reached:
                reached.add(state)
                new += [target for _, target in self._transitions.get(state, ())]
        for state in self._states:
            leaves = state in self._transitions
            if leaves and state in self._finals:
                raise InvalidArgument(f"{self.name}: {state!r} is final and has a transition", field="transition")
            if not leaves and state not in self._finals:
                raise InvalidArgument(f"{self.name}: {state!r} has no transition and is not final", field="transition")
            if state not in reached:
                raise InvalidArgument(f"{self.name}: no transition leads to {state!r}", field="transition")
        super()._check()

    async def action(self) -> Any:
        """Run one state.

        Raises:
            InvalidArgument: It has no transition for its result.
        """
        self._state = self._next()
        behaviour = self._states[self._state]
        await ended(behaviour._begin())
        self._over = self._state in self._finals
        return None if behaviour.killed else behaviour.result

    def _next(self) -> str:
        if self._state is None:
            assert self._start is not None
            return self._start
        leaving = self._transitions[self._state]
        for result, target in leaving:
            if result is not ANY_RESULT and result == self.result:
                return target
        for result, target in leaving:
            if result is ANY_RESULT:
                return target
        expected = ", ".join(repr(result) for result, _ in leaving)
        text = f"{self.name}: {self._state!r} ended with {self.result!r}; expected {expected}"
        raise InvalidArgument(text, field="transition")

    def done(self) -> bool:
        """Return whether a final state has ended."""
        return self._over

    def _prepare(self) -> None:
        super()._prepare()
        self._state, self._over = None, False
