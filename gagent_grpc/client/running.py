"""Handlers that run for a conversation, so that a `cancel` can end them.

Owns: which handler is at work for whom, and ending it. Leaves to others: who may cancel what, and the answers
(`client.participants`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from gagent_grpc.acl.performative import ACTS_BY_CODE, EXPECTS_ANSWER, Performative
from gagent_grpc.client.message import Received

Key = tuple[str, str]
"""(name of who asked, conversation id)."""

CANCELLED: Final = object()
"""What stands for the answer of a handler that a cancel has ended."""
_CANCELLABLE = EXPECTS_ANSWER | {Performative.ACCEPT_PROPOSAL}
_MAY_BE_CANCELLED = tuple(ACTS_BY_CODE.get(code) in _CANCELLABLE for code in range(len(ACTS_BY_CODE) + 1))
"""The same by code: a set would have to be asked in Python."""
_MAX_CANCELLED = 1_000


class _Work:
    __slots__ = ("cancelled", "task")

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self.cancelled = False


def key_of(message: Received) -> Key | None:
    """Return under which key a message's conversation is known; None for one that belongs to none."""
    sender, conversation_id = message.sender, message.conversation_id
    return (sender.name, conversation_id) if sender is not None and conversation_id else None


def may_be_cancelled(act: Performative) -> bool:
    """Whether a handler of a message with this act can be ended by a cancel; others need not be run by `Running`."""
    return _MAY_BE_CANCELLED[act]


class Running:
    """The asynchronous handlers of one agent that are at work for a conversation. Threads cannot be ended."""

    def __init__(self) -> None:
        self._at_work: dict[Key, _Work] = {}
        self._cancelled: dict[Key, None] = {}
        """Those that were ended, and whose cancel is not answered yet."""

    def __bool__(self) -> bool:
        return bool(self._at_work)

    async def run(self, message: Received, handling: Awaitable[Any]) -> Any:
        """Wait for a handler of ``message``; return what it returns, and CANCELLED where a cancel ended it."""
        key = key_of(message) if may_be_cancelled(message.performative) else None
        task = asyncio.current_task()
        if key is None or task is None or key in self._at_work:
            return await handling
        work = self._at_work[key] = _Work(task)
        try:
            answer = await handling
        except asyncio.CancelledError:
            # The agent's own end goes on upwards.
            if not work.cancelled or task.uncancel():
                raise
            return CANCELLED
        finally:
            del self._at_work[key]
        if work.cancelled:
            # It did not let itself be disturbed; that it was cancelled has been promised, so its answer is nobody's.
            task.uncancel()
            return CANCELLED
        return answer

    def knows(self, key: Key) -> bool:
        """Return whether a handler is at work under ``key``, or was ended and its cancel is not answered yet."""
        return key in self._at_work or key in self._cancelled

    def cancel(self, key: Key) -> bool:
        """End the handler that is at work under ``key``; return whether there is one."""
        work = self._at_work.get(key)
        if work is None or work.task is asyncio.current_task():
            return False
        if not work.cancelled:
            work.cancelled = True
            work.task.cancel()
            self._cancelled[key] = None
            if len(self._cancelled) > _MAX_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]
        return True

    def take_cancelled(self, key: Key) -> bool:
        """Return whether a handler was ended under ``key`` since this was asked last."""
        return self._cancelled.pop(key, self) is None
