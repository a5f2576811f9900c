"""Events beyond messages and ticks: what they hold, and who carries them to the script.

Owns: the events themselves, and the tasks of the loop that wait to give one. Leaves to others: when an event is due
(`bridge.served_tasks`, `bridge.followed_tasks`, `bridge.extensions`), giving it (`bridge.events`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from gagent_grpc.acp.mapping import acl_from_acp
from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.bridge.actions import msg_of

if TYPE_CHECKING:
    from gagent_grpc.bridge.served_tasks import ServedTask

_logger = logging.getLogger(__name__)


class ExtensionEvent(dict[str, Any]):
    """An event that is no message of a mailbox, with what it tells of."""

    __slots__ = ("is_given", "message", "served", "withdrawn")

    def __init__(self, served: ServedTask | None = None, message: ACPMessage | None = None, **keys: Any) -> None:
        """Tell of ``served`` or of ``message``, with ``keys`` as the line has them; those that are None are left out."""
        super().__init__({key: value for key, value in keys.items() if value is not None})
        self.served = served
        self.message = message
        self.withdrawn = False
        """Whether it is of no use any more; then it is not given."""
        self.is_given = False
        """Whether its turn has come, and it was given."""


Give = Callable[[ExtensionEvent], Awaitable[None]]
"""Gives an event and carries out its answer. Raises ScriptError when the script has the event and gave no answer."""


def as_message(told: ACPMessage, own_name: str) -> ExtensionEvent | None:
    """Return the `message` event that says the same as an ACP message; None where ACL has no word for it."""
    mapped = acl_from_acp(told)
    return None if mapped is None else ExtensionEvent(event="message", msg=msg_of(mapped, own_name))


class Owned:
    """Tasks of the loop that somebody owns: each is awaited when that one ends, and what breaks in one is logged."""

    def __init__(self, name: str) -> None:
        """Own tasks of the agent ``name``."""
        self._name = name
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task; nothing after `aclose`."""
        if self._closed:
            work.close()
            return
        task = asyncio.create_task(work, name=f"{self._name}: extension")
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def aclose(self) -> None:
        """Cancel what is left and wait for it. Idempotent."""
        self._closed = True
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def open(self) -> None:
        """Take tasks again, after an `aclose`."""
        self._closed = False

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # Never seen, and if it is, it must be heard of.
            _logger.error("%s: %s broke", self._name, task.get_name(), exc_info=error)
