"""Listening to topics: which ones, what the bus says to changes, and messages that were missed.

Owns: the topics that are wanted, across connections, and who waits for a change. Leaves to others: the frames' way
(`client.session`), the messages themselves, which are mail like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gagent_grpc.errors import BusError, InvalidArgument
from gagent_grpc.pb.gagent.internal.v1 import bus_frames_pb2 as twin
from gagent_grpc.pb.gagent.v1 import bus_service_pb2

if TYPE_CHECKING:
    from gagent_grpc.client.session import ClientSession

_logger = logging.getLogger(__name__)

_PREFIX = "topic:"


class TopicChanges:
    """The topics of one agent. What it wants is said with each hello, and a change of it in between by a frame."""

    def __init__(self, topics: Iterable[str]) -> None:
        """Begin with ``topics``."""
        self.wanted = tuple(dict.fromkeys(topic.removeprefix(_PREFIX) for topic in topics))
        self._number = 0
        self._unsaid: list[tuple[int, list[str], list[str]]] = []
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._before: dict[int, tuple[str, ...]] = {}

    def change(self, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> asyncio.Future[None]:
        """Want other topics; the future is done once the bus knows, or raises what it says against them."""
        added = [topic.removeprefix(_PREFIX) for topic in add]
        removed = [topic.removeprefix(_PREFIX) for topic in remove]
        self._number += 1
        self._before[self._number] = self.wanted
        self.wanted = tuple(dict.fromkeys([*(one for one in self.wanted if one not in removed), *added]))
        self._unsaid.append((self._number, added, removed))
        future = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        return future

    def frame(self) -> bytes | None:
        """Return the next change as it travels; None when all is said."""
        if not self._unsaid:
            return None
        number, added, removed = self._unsaid.pop(0)
        return twin.OpenSessionRequest(
            subscribe=twin.Subscribe(number=number, add=added, remove=removed)
        ).SerializeToString()

    def answered(self, answer: bus_service_pb2.Subscribed) -> None:
        """The bus says what became of a change."""
        future = self._waiting.pop(answer.number, None)
        self._before.pop(answer.number, None)
        if answer.error:
            # What is asked for in changes that are on their way stays wanted; the rest goes by what the bus has.
            self.wanted = tuple(answer.topics)
            for _, added, removed in self._unsaid:
                self.wanted = tuple(dict.fromkeys([*(one for one in self.wanted if one not in removed), *added]))
        if future is None or future.done():
            return
        if answer.error:
            future.set_exception(InvalidArgument(answer.error, field="topics"))
        else:
            future.set_result(None)

    def reconnected(self) -> None:
        """A session begins whose hello said what is wanted, so no change is open any more."""
        self._unsaid.clear()
        self._before.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_result(None)

    def refused(self) -> None:
        """The hello was refused: what it said beyond what was in force before is not wanted any more."""
        if self._before:
            self.wanted = self._before[min(self._before)]

    def fail(self, error: BusError) -> None:
        """There will be no session any more."""
        waiting, self._waiting = self._waiting, {}
        self._unsaid.clear()
        self._before.clear()
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
                # Whoever gave up waiting does not want to hear of it from the loop.
                future.exception()


class Listening:
    """What an agent has to do with topics."""

    _session: ClientSession

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics that the agent listens to, without `topic:`."""
        return self._session.topics.wanted

    async def listen_to(self, *topics: str) -> None:
        """Listen to topics from now on: what is sent to `topic:NAME` comes as mail, with `via` saying so.

        What is published while the connection is lost waits in the mailbox. A polite end of the agent ends it.

        Args:
            topics: Dotted names, with or without `topic:`; the last level may be `*` for any one level or `>` for all that
                follow. An agent listens to at most 100.

        Raises:
            InvalidArgument: One is not valid, or there are too many; none is added.
            PreconditionFailed: The agent is not open.
            BusError: The session is over.
        """
        await self._change(add=topics)

    async def stop_listening_to(self, *topics: str) -> None:
        """Listen to topics no more, each as it was written when it was added; unknown ones are passed over.

        Raises:
            PreconditionFailed: The agent is not open.
            BusError: The session is over.
        """
        await self._change(remove=topics)

    async def _change(self, *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        session = self._session
        if session.over is not None:
            raise session.over
        change = session.topics.change(add=add, remove=remove)
        session.wake()
        await change

    def on_gap(self, handler: Callable[[str, int], None]) -> Callable[[str, int], None]:
        """Register the decorated function for messages that found no room in the mailbox: (address, how many).

        Only what was sent to a topic or to everybody can be missed so; else the sender is refused.

        Raises:
            InvalidArgument: It is a coroutine function; gaps are told in passing, and nobody would wait for it.
        """
        if asyncio.iscoroutinefunction(handler):
            raise InvalidArgument("a handler of gaps is async; expected a plain function", field="handler")
        self._session.gap_handlers.append(handler)
        return handler


def tell_gap(agent: str, handlers: list[Callable[[str, int], None]], notice: bus_service_pb2.Notice) -> None:
    """Tell handlers of missed messages; what one raises is logged."""
    if not handlers:
        _logger.warning("%s: %s", agent, notice.text)
    for handler in handlers:
        try:
            handler(notice.address, notice.missed)
        except Exception:
            # It is told in passing; the session goes on.
            _logger.exception("%s: a handler of gaps failed at %s", agent, notice.address)
