"""Shared contexts: what the agents of one conversation, or of one tree of tasks, know together; kept by the bus.

Owns: the handle of a shared context, its entries as Python values, and watching one across lost connections. Leaves to others:
who has a part in which one (the bus), JSON (`acp.free_json`), calls (`client.transport`).
"""

from __future__ import annotations

import asyncio
import copy
import enum
import inspect
import logging
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import grpc

from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.tasks import DelegatedTask, TaskKey
from gagent_grpc.client.transport import Calls, request_of
from gagent_grpc.codec.times import datetime_of
from gagent_grpc.errors import (
    BusError,
    EntryNotFound,
    InvalidArgument,
    ResourceExhausted,
    RevisionConflict,
    Unauthenticated,
    Unavailable,
)
from gagent_grpc.pb.gagent.v1 import context_service_pb2 as pb
from gagent_grpc.pb.gagent.v1 import context_service_pb2_grpc

if TYPE_CHECKING:
    from gagent_grpc.client.tasks import Task

_logger = logging.getLogger(__name__)

_PAGE = 1_000
"""Entries that are asked for at once."""
_LONGEST_CONTEST_S = 0.1
"""Longest wait, in seconds, of a caller who lost the race for an entry, before its next attempt."""
_NOTHING: Any = object()
"""Stands for a default that was not given; None is one."""


class ContextChangeKind(enum.StrEnum):
    """What a change of a shared context is."""

    PUT = "put"
    """An entry as it is, or as it was put."""
    REMOVED = "removed"
    """An entry is not there any more."""
    SYNCED = "synced"
    """What was there at the beginning has been told."""


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """One entry of a shared context."""

    key: str
    value: Any
    """A JSON value; numbers keep their types and all their digits."""
    revision: int
    """Of the shared context at the change that this is; it rises with every change."""
    author: str
    """Who put it, `name@platform`."""
    put_at: datetime
    """When, in UTC."""


@dataclass(frozen=True, slots=True)
class ContextChange:
    """Something that is told to whoever watches a shared context."""

    kind: ContextChangeKind
    revision: int
    """Of the shared context; what to go on after."""
    key: str = ""
    """Key of the entry; "" for SYNCED."""
    value: Any = None
    """Its value; None unless it was put."""
    author: str = ""
    """Who put or removed it, `name@platform`; "" for SYNCED."""
    at: datetime | None = None
    """When, in UTC; None for SYNCED."""


class ContextCalls:
    """The calls of one agent about shared contexts."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._made: tuple[grpc.aio.Channel, context_service_pb2_grpc.ContextServiceAsyncStub] | None = None

    async def stub(self) -> context_service_pb2_grpc.ContextServiceAsyncStub:
        """Return the stub of the connection in use; errors as `Calls.channel`."""
        channel = await self.calls.channel()
        if self._made is None or self._made[0] is not channel:
            # One for each connection: making it costs more than a call.
            self._made = channel, context_service_pb2_grpc.ContextServiceStub(channel)
        return self._made[1]


class SharedContext:
    """A small durable space of entries that the participants of a conversation, or of a tree of tasks, have in common.

        context = agent.context(message.conversation_id)
        await context.put("plan", {"step": 1})
        await context.update("plan", lambda plan: {**plan, "step": plan["step"] + 1})
        async for change in context.watch():
            print(change.kind, change.key, change.value)

    A participant of a conversation is whoever began it, and whom a participant sent a message of it; of a tree of tasks whoever
    delegated or was given one of them. Nothing is asked when the handle is made. Every method raises Unauthorised for an agent
    that has no part, BusUnreachable when no bus answers in time, and PreconditionFailed for an agent that is not open; for a task
    also TaskNotFound, and ContextEnded once the first task of its tree is forgotten.
    """

    def __init__(self, calls: ContextCalls, space: pb.ContextSpace) -> None:
        """Use `Agent.context`."""
        self._calls = calls
        self._space = space

    def __repr__(self) -> str:
        task = self._space.task
        of = f"task {task.task_id}" if task.task_id else f"conversation {self._space.conversation_id}"
        return f"<SharedContext of {of}>"

    async def entry(self, key: str) -> ContextEntry | None:
        """Return the entry of a key, with its revision; None where there is none.

        Raises:
            InvalidArgument: The key is empty, or longer than 256 bytes.
        """
        request = request_of(lambda: pb.GetContextEntryRequest(space=self._space, key=key))
        try:
            response = await self._calls.calls.unary((await self._calls.stub()).GetContextEntry, request)
        except EntryNotFound:
            return None
        return _entry(response.entry)

    async def get(self, key: str, default: Any = _NOTHING) -> Any:
        """Return the value of an entry.

        Args:
            key: Its key.
            default: What is returned where there is no such entry.

        Raises:
            EntryNotFound: There is none, and no default was given.
            InvalidArgument: As `entry`.
        """
        found = await self.entry(key)
        if found is not None:
            return found.value
        if default is _NOTHING:
            raise EntryNotFound(key)
        return default

    async def put(self, key: str, value: Any, *, expected_revision: int | None = None) -> ContextEntry:
        """Write an entry, whole, and return it once it is durable.

        When no answer comes (BusUnreachable, StoreUnavailable) it may have been written all the same.

        Args:
            key: Its key, 1 to 256 bytes.
            value: A JSON value, at most 64 KiB by default.
            expected_revision: Write it only over this revision of the entry; 0: only where there is none.

        Raises:
            RevisionConflict: It has another revision, which the error tells; nothing was written.
            ResourceExhausted: A limit of the bus is reached, of the value, the context, or all contexts; the text says which.
            InvalidArgument: The value is none that JSON can say, or the key or the revision cannot be one.
        """
        text = json_text(value, "value")
        request = request_of(
            lambda: pb.PutContextEntryRequest(
                space=self._space, key=key, value_json=text, expected_revision=expected_revision
            )
        )
        response = await self._calls.calls.unary((await self._calls.stub()).PutContextEntry, request)
        return _entry(response.entry)

    async def delete(self, key: str, *, expected_revision: int | None = None) -> bool:
        """Remove an entry; return whether there was one. Arguments and errors as `put`."""
        request = request_of(
            lambda: pb.DeleteContextEntryRequest(space=self._space, key=key, expected_revision=expected_revision)
        )
        response = await self._calls.calls.unary((await self._calls.stub()).DeleteContextEntry, request)
        return response.existed

    async def list(self, prefix: str = "") -> list[ContextEntry]:
        """Return the entries whose keys begin with ``prefix``, by key; each as it was at one moment during the call.

        Raises:
            InvalidArgument: The prefix is longer than any key.
        """
        request = request_of(lambda: pb.ListContextEntriesRequest(space=self._space, prefix=prefix, max_results=_PAGE))
        found: list[ContextEntry] = []
        while True:
            response = await self._calls.calls.unary((await self._calls.stub()).ListContextEntries, request)
            found += [_entry(one) for one in response.entries]
            if not response.next_page_token:
                return found
            request.page_token = response.next_page_token

    async def update(self, key: str, function: Callable[[Any], Any], *, default: Any = None) -> ContextEntry:
        """Write what ``function`` makes of the present value, and return the entry; whoever else writes meanwhile loses nothing.

        The function is called again, with the newer value, whenever somebody else was quicker. It may be a coroutine function.

        Args:
            key: Key of the entry.
            function: Gets the present value, and returns the new one.
            default: What it gets where there is no entry; a copy each time.

        Raises:
            ResourceExhausted, InvalidArgument: As `put`; whatever the function raises is passed on.
        """
        longest = 0.001
        while True:
            entry = await self.entry(key)
            value = function(copy.deepcopy(default) if entry is None else entry.value)
            if inspect.isawaitable(value):
                value = await value
            try:
                return await self.put(key, value, expected_revision=0 if entry is None else entry.revision)
            except RevisionConflict:
                # Many who want the same entry must not all come back at the same moment.
                await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  # Spreads the load; nothing secret.
                longest = min(2 * longest, _LONGEST_CONTEST_S)

    async def watch(self, prefix: str = "", *, after_revision: int = 0) -> AsyncGenerator[ContextChange, None]:
        """Iterate over what is there, and then over what changes, each change once and in order; without an end.

        A PUT comes for each entry, by revision, then SYNCED, then PUT and REMOVED as they happen. The context may be empty as
        yet. A connection that is lost is found again, and the iteration goes on after the last change: of several changes of
        one entry that happened meanwhile the last one is told. Closing the iterator, as `contextlib.aclosing` does, ends it.

        Args:
            prefix: What the keys begin with; "" for all.
            after_revision: Revision up to which everything is known, such as that of the last change which was read earlier;
                then only what changed since is told. 0 for nothing.

        Raises:
            ContextEnded: The context is over.
            EventsGone: So much was removed since ``after_revision``, or since the connection was lost, that not all of it is
                remembered, or it is another context by now. Watch from the beginning; what was known is void.
            ResourceExhausted: Too many watch.
            Unauthorised: As all methods, and also when the bus was restarted before anything was put: then it has forgotten
                who has a part.
            InvalidArgument: There was never such a revision, or the prefix is longer than any key.
        """
        request = request_of(
            lambda: pb.WatchContextRequest(space=self._space, prefix=prefix, after_revision=after_revision)
        )
        calls = self._calls.calls
        begun = heard = synced = False
        longest = calls.initial_backoff
        while True:
            call = None
            token = calls.token
            try:
                call = await calls.begin((await self._calls.stub()).WatchContext, request)
                begun = True
                while (told := await calls.read(call)) is not None:
                    heard = True
                    longest = calls.initial_backoff
                    change = _change(told)
                    if change is None:
                        continue
                    request.after_revision = change.revision
                    if change.kind is not ContextChangeKind.SYNCED:
                        yield change
                    elif not synced:
                        synced = True
                        yield change
                why: BusError | None = None
            except (Unavailable, ResourceExhausted) as error:
                # Who reads too slowly has read something; a refusal may come when gRPC has said that the stream has begun.
                if not (heard if isinstance(error, ResourceExhausted) else begun):
                    raise
                why = error
            except Unauthenticated as error:
                # The agent has another session meanwhile; else it is not known any more.
                if token == calls.token:
                    raise
                why = error
            finally:
                if call is not None:
                    call.cancel()
            _logger.info("%r: the stream has ended (%s); it begins again", self, why or "the bus shut down")
            await asyncio.sleep(random.uniform(0, longest))  # noqa: S311  # Spreads the load; nothing secret.
            longest = min(2 * longest, calls.max_backoff)


class Sharing:
    """The part of an `Agent` that has shared contexts."""

    _context_calls: ContextCalls

    def context(
        self, conversation_id: str | None = None, *, task: str | TaskKey | DelegatedTask | Task | None = None
    ) -> SharedContext:
        """Return the handle of a shared context; nothing is asked yet.

        Args:
            conversation_id: Conversation that this agent has a part in, as its messages name it.
            task: Instead, any task of a tree: a handle, a description, a key, or the id of one that this agent delegated.

        Raises:
            InvalidArgument: Neither or both are given, or one that names nothing.
        """
        if (task is None) == (conversation_id is None):
            raise InvalidArgument("expected a conversation_id, as a message has it, or a task", field="conversation_id")
        if task is None:
            if not isinstance(conversation_id, str) or not conversation_id:
                raise InvalidArgument(
                    f"conversation_id {conversation_id!r}; expected its text", field="conversation_id"
                )
            return SharedContext(
                self._context_calls, request_of(lambda: pb.ContextSpace(conversation_id=conversation_id))
            )
        key = TaskKey("", task) if isinstance(task, str) else TaskKey(task.delegator, task.task_id)
        if not key.task_id:
            raise InvalidArgument("task: has no id; expected that of a task", field="task")
        named = request_of(lambda: pb.ContextTaskKey(delegator=key.delegator, task_id=key.task_id))
        return SharedContext(self._context_calls, pb.ContextSpace(task=named))


def _entry(written: pb.ContextEntry) -> ContextEntry:
    value = json_value(written.value_json, written.key)
    return ContextEntry(written.key, value, written.revision, written.author, datetime_of(written.put_at))


def _change(told: pb.WatchContextResponse) -> ContextChange | None:
    """Return what is told; None for what is not known here."""
    kind = told.WhichOneof("change")
    if kind == "put":
        one = _entry(told.put)
        return ContextChange(ContextChangeKind.PUT, one.revision, one.key, one.value, one.author, one.put_at)
    if kind == "removed":
        gone = told.removed
        at = datetime_of(gone.put_at)
        return ContextChange(ContextChangeKind.REMOVED, gone.revision, gone.key, None, gone.author, at)
    if kind == "synced":
        return ContextChange(ContextChangeKind.SYNCED, told.synced)
    return None
