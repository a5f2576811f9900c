"""Rows of the SQLite store: values of the port to what a database takes and back, with sums over what is written.

Owns: the form of operations and rows, checksums, and which operations are tried again. Leaves to others: SQL and the file
(`storage.sqlite_file`), when something is written (`storage.sqlite`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from gagent_grpc.acl.descriptions import LifeCycleState
from gagent_grpc.acl.management_json import description_to_json, df_description_from_json
from gagent_grpc.bus.ports import (
    StoredAgent,
    StoredDeadLetter,
    StoredDescription,
    StoredEntry,
    StoredKey,
    StoredMessage,
    StoredSubscription,
)
from gagent_grpc.envelope import DeadReason
from gagent_grpc.errors import InvalidArgument, MissingParameter, shown

Value = str | bytes | int | float
Row = tuple[Value, ...]
Operation = tuple[str, Row]
"""One change: its kind, and the values that its statement takes."""

ACCEPT = "accept"
ATTEMPT = "attempt"
SETTLE = "settle"
PUT_AGENT = "put agent"
REMOVE_AGENT = "remove agent"
PUT_DESCRIPTION = "put description"
REMOVE_DESCRIPTION = "remove description"
PUT_TOPICS = "put topics"
REMOVE_TOPICS = "remove topics"
PUT_SUBSCRIPTION = "put subscription"
REMOVE_SUBSCRIPTION = "remove subscription"
PRUNE_KEYS = "prune keys"
BURY = "bury"
EXHUME = "exhume"
PUT_TASK = "put task"
ADD_TASK_EVENT = "add task event"
TRIM_TASK_EVENTS = "trim task events"
REMOVE_TASK = "remove task"
PUT_CONTEXT = "put context"
PUT_CONTEXT_ENTRY = "put context entry"
DROP_CONTEXT_ENTRY = "drop context entry"
REMOVE_CONTEXT = "remove context"
USE_REVISION = "use revision"

_INTEGERS = 1 << 63
"""SQLite's integers go from minus this to below it."""


def check_operation(operation: Operation) -> None:
    """Make sure that the file can take every value of an operation.

    Raises:
        InvalidArgument: One is no valid Unicode, an integer of more than 64 bits, or not a number.
    """
    kind, row = operation
    for value in row:
        if isinstance(value, str):
            if not value.isascii():
                _check_text(value, kind)
        elif isinstance(value, int):
            if not -_INTEGERS <= value < _INTEGERS:
                raise InvalidArgument(f"{kind}: {value:,} does not fit an integer of 64 bits")
        elif value != value:  # noqa: PLR0124  # Only what is not a number differs from itself; SQLite would make it NULL.
            raise InvalidArgument(f"{kind}: expected a number, not {value!r}")


def _check_text(text: str, kind: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{kind}: {shown(text)} is not valid Unicode: it holds half of a surrogate pair"
        ) from None


def payload_bytes(operations: Iterable[Operation]) -> int:
    """Return the bytes of the messages, and of the dead letters, that ``operations`` add."""
    payloads = (row[_PAYLOADS[kind]] for kind, row in operations if kind in _PAYLOADS)
    return sum(len(payload) for payload in payloads if isinstance(payload, bytes))


_PAYLOADS = {ACCEPT: 9, BURY: 11}
"""Place of the payload among the values of what has one."""


def accept_operation(message: StoredMessage) -> Operation:
    """Return the operation that adds a message; the only one that is not tried again."""
    return ACCEPT, (
        message.receiver,
        message.sequence,
        message.sender,
        message.message_id,
        message.key,
        message.digest,
        message.via,
        message.accepted_at,
        message.attempt,
        message.payload,
        message.redriven,
        _message_checksum(message),
    )


def settle_operation(receiver: str, sequence: int, key: StoredKey | None) -> Operation:
    """Return the operation that removes a message and, when that is there, remembers its key."""
    if key is None:
        return SETTLE, (receiver, sequence)
    return SETTLE, (receiver, sequence, key.sender, key.key, key.receiver, key.digest, key.settled_at)


def attempt_operation(receiver: str, sequence: int, attempt: int) -> Operation:
    """Return the operation that raises the number of deliveries of a message."""
    return ATTEMPT, (receiver, sequence, attempt)


def put_agent_operation(agent: StoredAgent) -> Operation:
    """Return the operation that writes an agent as it is now."""
    row = (
        agent.name,
        agent.principal,
        agent.ownership,
        int(agent.state),
        int(agent.resume_to),
        int(agent.ephemeral),
        agent.generation,
        int(agent.attached),
        agent.next_sequence,
        agent.resume_digest,
        float(agent.registered_at),
    )
    return PUT_AGENT, (*row, _checksum(row))


def remove_agent_operation(name: str) -> Operation:
    """Return the operation that removes an agent, its messages, its DF entry and its subscriptions."""
    return REMOVE_AGENT, (name,)


def put_description_operation(entry: StoredDescription) -> Operation:
    """Return the operation that writes a DF entry.

    Raises:
        MissingParameter: It has no name.
        InvalidArgument: It holds a value that could not be read back.
    """
    name = entry.description.name
    if name is None:
        raise MissingParameter("df-agent-description", "name")
    body = json.dumps(description_to_json(entry.description))
    # What the next start would refuse must not get into the file: the bus could not start any more.
    df_description_from_json(json.loads(body))
    row = (name, float(entry.registered_at), float(entry.lease_end), body)
    return PUT_DESCRIPTION, (*row, _checksum(row))


def remove_description_operation(name: str) -> Operation:
    """Return the operation that removes a DF entry."""
    return REMOVE_DESCRIPTION, (name,)


def put_topics_operation(name: str, topics: Sequence[str]) -> Operation:
    """Return the operation that writes the subscriptions of an agent, or removes them when there are none."""
    if not topics:
        return REMOVE_TOPICS, (name,)
    row = (name, json.dumps(list(topics)))
    return PUT_TOPICS, (*row, _checksum(row))


def put_subscription_operation(subscription: StoredSubscription) -> Operation:
    """Return the operation that writes a subscription with the DF."""
    row = (subscription.name, subscription.conversation, subscription.body)
    return PUT_SUBSCRIPTION, (*row, _checksum(row))


def remove_subscription_operation(name: str, conversation: str) -> Operation:
    """Return the operation that removes a subscription with the DF."""
    return REMOVE_SUBSCRIPTION, (name, conversation)


def prune_keys_operation(settled_before: float, keep: int) -> Operation:
    """Return the operation that forgets old keys, and the oldest beyond ``keep``."""
    return PRUNE_KEYS, (settled_before, keep)


def bury_operation(letter: StoredDeadLetter) -> Operation:
    """Return the operation that adds a dead letter."""
    return BURY, (
        letter.number,
        letter.receiver,
        letter.sequence,
        letter.sender,
        letter.message_id,
        letter.via,
        letter.accepted_at,
        letter.attempt,
        int(letter.reason),
        letter.error,
        letter.died_at,
        letter.payload,
        _dead_letter_checksum(letter),
    )


def exhume_operation(number: int) -> Operation:
    """Return the operation that removes a dead letter."""
    return EXHUME, (number,)


def put_task_operation(number: int, part: str, body: str) -> Operation:
    """Return the operation that writes one part of a task."""
    row = (number, part, body)
    return PUT_TASK, (*row, _checksum(row))


def add_task_event_operation(number: int, sequence: int, body: str) -> Operation:
    """Return the operation that adds an event of a task."""
    row = (number, sequence, body)
    return ADD_TASK_EVENT, (*row, _checksum(row))


def trim_task_events_operation(number: int, before: int) -> Operation:
    """Return the operation that forgets the events of a task below a sequence."""
    return TRIM_TASK_EVENTS, (number, before)


def remove_task_operation(number: int) -> Operation:
    """Return the operation that removes a task with its parts and events."""
    return REMOVE_TASK, (number,)


def put_context_operation(number: int, body: str) -> Operation:
    """Return the operation that writes whose a shared context is."""
    row = (number, body)
    return PUT_CONTEXT, (*row, _checksum(row))


def put_context_entry_operation(number: int, entry: StoredEntry) -> Operation:
    """Return the operation that writes an entry of a shared context, or that it was removed."""
    row = (number, entry.key, entry.revision, entry.author, float(entry.at), entry.value, int(entry.removed))
    return PUT_CONTEXT_ENTRY, (*row, _checksum(row))


def drop_context_entry_operation(number: int, key: str) -> Operation:
    """Return the operation that forgets an entry of a shared context which was removed."""
    return DROP_CONTEXT_ENTRY, (number, key)


def remove_context_operation(number: int) -> Operation:
    """Return the operation that removes a shared context with its entries."""
    return REMOVE_CONTEXT, (number,)


def use_revision_operation(revision: int) -> Operation:
    """Return the operation that remembers that revisions of shared contexts up to one were used."""
    return USE_REVISION, (revision,)


def count_accepts(operations: Iterable[Operation]) -> int:
    """Return how many of ``operations`` are accepts."""
    return sum(kind == ACCEPT for kind, _ in operations)


def without_accepts(operations: Sequence[Operation]) -> list[Operation]:
    """Return what is to be tried again, without what a later operation makes void.

    So what waits for a full disk is bounded by what the bus holds, and not by how long the disk stays full.
    """
    left: list[Operation] = []
    buried = {row[0] for kind, row in operations if kind == BURY}
    seen: set[tuple[Value, ...]] = set()
    trimmed: dict[Value, Value] = {}
    for kind, row in reversed(operations):
        subject: tuple[Value, ...]
        if kind == ACCEPT:
            continue
        if kind in _SUBSCRIPTION_KINDS and (REMOVE_AGENT, row[0]) in seen:
            # They went with their agent.
            continue
        if kind in _TASK_KINDS and _is_void(kind, row, seen, trimmed):
            continue
        if kind in _CONTEXT_KINDS and (REMOVE_CONTEXT, row[0]) in seen:
            # As for tasks: what comes before its removal is void.
            continue
        if kind in {ATTEMPT, SETTLE}:
            subject = (kind, *row[:2])
        elif kind in {PUT_DESCRIPTION, REMOVE_DESCRIPTION}:
            subject = ("description", row[0])
        elif kind in {PUT_TOPICS, REMOVE_TOPICS}:
            subject = ("topics", row[0])
        elif kind in _SUBSCRIPTION_KINDS:
            subject = ("subscription", *row[:2])
        elif kind == PRUNE_KEYS:
            subject = (kind,)
        elif kind in {BURY, EXHUME}:
            subject = ("dead letter", row[0])
        elif kind in {PUT_TASK, ADD_TASK_EVENT}:
            subject = (kind, *row[:2])
        elif kind in {PUT_CONTEXT_ENTRY, DROP_CONTEXT_ENTRY}:
            subject = ("context entry", *row[:2])
        else:
            subject = (kind, row[0])
        if subject in seen:
            continue
        seen.add(subject)
        if kind == EXHUME and row[0] in buried:
            # It was never written, so there is nothing to remove either.
            continue
        if kind == REMOVE_AGENT:
            # An earlier state of the agent is void; the removal stays before a later state, because of its messages.
            seen.add((PUT_AGENT, row[0]))
            seen.add(("topics", row[0]))
        left.append((kind, row))
    left.reverse()
    return left


_SUBSCRIPTION_KINDS = frozenset({PUT_SUBSCRIPTION, REMOVE_SUBSCRIPTION})
_TASK_KINDS = frozenset({PUT_TASK, ADD_TASK_EVENT, TRIM_TASK_EVENTS})
_CONTEXT_KINDS = frozenset({PUT_CONTEXT, PUT_CONTEXT_ENTRY, DROP_CONTEXT_ENTRY})


def _is_void(kind: str, row: Row, seen: set[tuple[Value, ...]], trimmed: dict[Value, Value]) -> bool:
    """Whether a later operation removes what an earlier one writes of a task; ``trimmed`` notes what later ones trim."""
    if (REMOVE_TASK, row[0]) in seen:
        # A number is not used again, so what comes before its removal is void.
        return True
    if kind == TRIM_TASK_EVENTS:
        trimmed.setdefault(row[0], row[1])
    before = trimmed.get(row[0])
    return kind == ADD_TASK_EVENT and before is not None and int(row[1]) < int(before)


def message_of(row: tuple[Any, ...]) -> StoredMessage:
    """Return the message in a row.

    Raises:
        ValueError: It is not what was written.
    """
    message = StoredMessage(*row[:-1])
    if _message_checksum(message) != row[-1]:
        raise ValueError(f"message {message.sequence} of {message.receiver!r} is not what was written")
    return message


def _message_checksum(message: StoredMessage) -> int:
    """Return the sum over all but `attempt`, which changes and is no more than a lower bound."""
    head = (
        f"{message.receiver}\0{message.sender}\0{message.message_id}\0{message.key}\0{message.via}"
        f"\0{message.sequence}\0{float(message.accepted_at)}"
    )
    if message.redriven:
        # Only then: older files know no such number.
        head += f"\0{message.redriven}"
    # What cannot be encoded is refused with words by `check_operation`.
    return crc32(message.payload, crc32(message.digest, crc32(head.encode("utf-8", "surrogatepass"))))


def agent_of(row: tuple[Any, ...]) -> StoredAgent:
    """Return the agent in a row.

    Raises:
        ValueError: It is not what was written.
    """
    if _checksum(row[:-1]) != row[-1]:
        raise ValueError(f"agent {row[0]!r} is not what was written")
    agent = StoredAgent(*row[:-1])
    agent.state, agent.resume_to = LifeCycleState(agent.state), LifeCycleState(agent.resume_to)
    agent.ephemeral, agent.attached = bool(agent.ephemeral), bool(agent.attached)
    return agent


def description_of(row: tuple[Any, ...]) -> StoredDescription:
    """Return the DF entry in a row.

    Raises:
        ValueError: It is not what was written.
    """
    name, registered_at, lease_end, body, checksum = row
    if _checksum(row[:-1]) != checksum:
        raise ValueError(f"DF entry {name!r} is not what was written")
    return StoredDescription(df_description_from_json(json.loads(body)), registered_at, lease_end)


def topics_of(row: tuple[Any, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the agent and the subscriptions in a row.

    Raises:
        ValueError: They are not what was written.
    """
    name, body, checksum = row
    if _checksum(row[:-1]) != checksum:
        raise ValueError(f"the topics of {name!r} are not what was written")
    return name, tuple(json.loads(body))


def subscription_of(row: tuple[Any, ...]) -> StoredSubscription:
    """Return the subscription with the DF in a row.

    Raises:
        ValueError: It is not what was written.
    """
    if _checksum(row[:-1]) != row[-1]:
        raise ValueError(f"the subscription of {row[0]!r} in {row[1]!r} is not what was written")
    return StoredSubscription(*row[:-1])


def task_part_of(row: tuple[Any, ...]) -> tuple[int, str, str]:
    """Return number, name and text of a part of a task.

    Raises:
        ValueError: It is not what was written.
    """
    if _checksum(row[:-1]) != row[-1]:
        raise ValueError(f"{row[1]!r} of task {row[0]} is not what was written")
    number, part, body, _ = row
    return number, part, body


def task_event_of(row: tuple[Any, ...]) -> tuple[int, int, str]:
    """Return the number of the task, the sequence and the text of an event.

    Raises:
        ValueError: It is not what was written.
    """
    if _checksum(row[:-1]) != row[-1]:
        raise ValueError(f"event {row[1]} of task {row[0]} is not what was written")
    number, sequence, body, _ = row
    return number, sequence, body


def context_of(row: tuple[Any, ...]) -> tuple[int, str]:
    """Return the number of a shared context and whose it is.

    Raises:
        ValueError: It is not what was written.
    """
    number, body, checksum = row
    if _checksum(row[:-1]) != checksum:
        raise ValueError(f"shared context {number} is not what was written")
    return number, body


def context_entry_of(row: tuple[Any, ...]) -> tuple[int, StoredEntry]:
    """Return the number of the shared context and the entry in a row.

    Raises:
        ValueError: It is not what was written.
    """
    if _checksum(row[:-1]) != row[-1]:
        raise ValueError(f"entry {row[1]!r} of shared context {row[0]} is not what was written")
    number, key, revision, author, at, value, removed, _ = row
    return number, StoredEntry(key, revision, author, at, value, bool(removed))


def dead_letter_of(row: tuple[Any, ...]) -> StoredDeadLetter:
    """Return the dead letter in a row.

    Raises:
        ValueError: It is not what was written.
    """
    (
        number,
        receiver,
        sequence,
        sender,
        message_id,
        via,
        accepted_at,
        attempt,
        reason,
        error,
        died_at,
        payload,
        checksum,
    ) = row
    letter = StoredDeadLetter(
        number=number,
        receiver=receiver,
        sequence=sequence,
        sender=sender,
        message_id=message_id,
        via=via,
        accepted_at=accepted_at,
        attempt=attempt,
        reason=DeadReason(reason),
        error=error,
        died_at=died_at,
        payload=payload,
    )
    if _dead_letter_checksum(letter) != checksum:
        raise ValueError(f"dead letter {number} is not what was written")
    return letter


def _dead_letter_checksum(letter: StoredDeadLetter) -> int:
    texts = (letter.receiver, letter.sender, letter.message_id, letter.via, letter.error)
    times = (float(letter.accepted_at), float(letter.died_at))
    head = "\0".join(texts) + f"\0{letter.number}\0{letter.sequence}\0{letter.attempt}\0{int(letter.reason)}\0{times}"
    return crc32(letter.payload, crc32(head.encode(errors="surrogatepass")))


def _checksum(row: tuple[Any, ...]) -> int:
    return crc32(repr(row).encode())
