"""The exception tree of gagent_grpc and the table that gives each one its FIPA act, reason and gRPC status.

    BusError
    ├── AgentNotRegistered            nobody of that name is in the AMS, or no such entry in the DF
    ├── AgentAlreadyRegistered        the name is taken, or the DF has an entry of that name
    ├── Unauthenticated               no valid credentials or session token
    ├── Unauthorised                  known, but not allowed to do this
    ├── InvalidArgument               a bad value at the boundary
    │   ├── InvalidName               not a valid agent name, platform name or delivery address
    │   ├── MissingParameter          a mandatory parameter is absent
    │   ├── UnrecognisedParameterValue  a parameter has a value that cannot be understood
    │   ├── UnknownPerformative       not one of FIPA's 22 communicative acts
    │   └── ProtocolViolation         a frame that the session's state does not allow
    ├── UnsupportedFunction           the agent or service offers no such function
    ├── PreconditionFailed            the present state forbids the act
    │   ├── SessionSuperseded         a newer session of the same agent took over
    │   ├── SearchRepeated            a search of this search-id was made before
    │   ├── TaskEnded                 a task has ended, and stays as it is
    │   └── AttemptSuperseded         another attempt at a task is in force, or another executor has it
    ├── TaskNotFound                  no such task, or it is forgotten
    ├── TaskAlreadyExists             a task of this id was delegated with other data
    ├── EventsGone                    the events or changes that were asked for are not kept any more
    ├── EntryNotFound                 the shared context has no such entry
    ├── ContextEnded                  a shared context is over
    ├── RevisionConflict              an entry of a shared context has another revision than the expected one
    ├── ResourceExhausted
    │   ├── MailboxFull               the receiver's bounded mailbox has no room
    │   ├── MessageTooLarge           over the message limit in force
    │   └── TooManySessions           the bus holds as many sessions as it is configured for
    ├── Unavailable
    │   ├── BusDraining               the bus is shutting down and takes nothing new
    │   ├── BusUnreachable            no bus answers at the endpoints given
    │   ├── NoProvider                nobody who is connected serves a role
    │   └── StoreUnavailable          the store does not answer or cannot write
    ├── DeliveryRefused               a receipt other than ACCEPTED (carries it)
    ├── AnswerTimeout                 no answer came in time
    ├── ConversationFailed            a conversation ended with an act that is not the wanted answer
    │   ├── RefusedByAgent            `refuse`
    │   ├── FailureFromAgent          `failure`, of the other agent or of the AMS for it
    │   └── NotUnderstoodByAgent      `not-understood`
    ├── TaskNotCompleted              a delegated task ended without a result
    │   ├── TaskFailed                it was tried, or its executor was lost
    │   ├── TaskRejected              its executor did not take it
    │   ├── TaskCancelled             it was called off
    │   └── TaskExpired               its deadline passed
    ├── TaskRefused                   raised by a handler of tasks: this one is not taken
    ├── ScriptError                   a script agent did not start, died, or broke its protocol
    └── ConfigurationError            settings that contradict each other, or a file of somebody else

Errors carry their values as attributes and name the bad value and the expected form in their text; never a secret
and never the content of a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

DOMAIN = "gagent.v1"
"""`domain` of every google.rpc.ErrorInfo that the bus sends."""


_BY_CODE: dict[str, type[BusError]] = {}


def shown(value: str, *, most: int = 80) -> str:
    """Return ``value`` as an error text shows it: quoted, with control characters escaped, cut at ``most`` characters."""
    cut = value[:most]
    text = repr(cut) if cut.isprintable() else ascii(cut)
    return text if len(value) <= most else f"{text}... ({len(value):,} characters)"


class BusError(Exception):
    """Root of every error that gagent_grpc raises on purpose.

    Attributes:
        act: FIPA act that reports it to an agent: `refuse`, `failure`, `not-understood`, or "" for none.
        reason: FIPA reason word.
        code: Name of the class in UPPER_SNAKE_CASE, `reason` of google.rpc.ErrorInfo: unique, for programs.
        status: Name of the gRPC status code.
        retry_after: Seconds after which the same call may succeed; None when a retry does not help.
    """

    act: ClassVar[str] = "failure"
    reason: ClassVar[str] = "internal-error"
    status: ClassVar[str] = "INTERNAL"
    code: ClassVar[str] = "BUS_ERROR"
    retry_after: float | None = None

    def __init_subclass__(cls) -> None:
        cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()
        _BY_CODE[cls.code] = cls

    def details(self) -> dict[str, str]:
        """Return the attributes that travel as ErrorInfo metadata: texts, never contents."""
        return {}


class AgentNotRegistered(BusError):
    """Nobody of that name is registered.

    Attributes:
        name: The name that was looked for.
        where: `AMS` or `DF`.
    """

    reason = "not-registered"
    status = "NOT_FOUND"

    def __init__(self, name: str, where: str = "AMS") -> None:
        super().__init__(f"{name}: not registered with the {where}")
        self.name = name
        self.where = where

    def details(self) -> dict[str, str]:
        return {"name": self.name, "where": self.where}


class AgentAlreadyRegistered(BusError):
    """The name is taken.

    Attributes:
        name: The name that was asked for.
        where: `AMS` or `DF`.
        why: What holds the name, in words; "" when there is no more to say.
    """

    reason = "already-registered"
    status = "ALREADY_EXISTS"

    def __init__(self, name: str, where: str = "AMS", why: str = "") -> None:
        super().__init__(f"{name}: already registered with the {where}" + (f" ({why})" if why else ""))
        self.name = name
        self.where = where
        self.why = why

    def details(self) -> dict[str, str]:
        return {"name": self.name, "where": self.where, "why": self.why}


class Unauthenticated(BusError):
    """The caller did not prove who it is."""

    act = "refuse"
    reason = "unauthorised"
    status = "UNAUTHENTICATED"


class Unauthorised(BusError):
    """The caller is known but may not do this."""

    act = "refuse"
    reason = "unauthorised"
    status = "PERMISSION_DENIED"


class InvalidArgument(BusError):
    """A value at the boundary is not of the form that is expected.

    Attributes:
        field: Path of the bad field, such as `messages[3].to`; "" for the call as a whole.
    """

    act = "refuse"
    reason = "unrecognised-parameter-value"
    status = "INVALID_ARGUMENT"

    def __init__(self, text: str, *, field: str = "") -> None:
        super().__init__(text)
        self.field = field

    def details(self) -> dict[str, str]:
        return {"field": self.field, "text": str(self)}


class InvalidName(InvalidArgument):
    """Not a valid agent name, platform name or delivery address."""


class MissingParameter(InvalidArgument):
    """A mandatory parameter is absent.

    Attributes:
        object_name: Kind of the object, such as `df-agent-description`.
        parameter: FIPA name of the absent parameter.
    """

    reason = "missing-parameter"

    def __init__(self, object_name: str, parameter: str) -> None:
        super().__init__(f"{object_name}: the parameter {parameter!r} is missing", field=parameter)
        self.object_name = object_name
        self.parameter = parameter

    def details(self) -> dict[str, str]:
        return {"object_name": self.object_name, "parameter": self.parameter}


class UnrecognisedParameterValue(InvalidArgument):
    """A parameter has a value that cannot be understood.

    Attributes:
        object_name: Kind of the object, such as `search-constraints`.
        parameter: FIPA name of the parameter.
        why: The bad value and the expected form, in words.
    """

    def __init__(self, object_name: str, parameter: str, why: str) -> None:
        super().__init__(f"{object_name}: {parameter} {why}", field=parameter)
        self.object_name = object_name
        self.parameter = parameter
        self.why = why

    def details(self) -> dict[str, str]:
        return {"object_name": self.object_name, "parameter": self.parameter, "why": self.why}


class UnknownPerformative(InvalidArgument):
    """Not one of FIPA's 22 communicative acts (SC00037).

    Attributes:
        value: The text or number that was given.
    """

    act = "not-understood"
    reason = "unsupported-act"

    def __init__(self, value: str | int, expected: str) -> None:
        shown = value if isinstance(value, int) else str(value)[:80]
        super().__init__(f"unknown performative {shown!r}; expected one of: {expected}", field="performative")
        self.value = value
        self.expected = expected

    def details(self) -> dict[str, str]:
        return {"value": str(self.value), "expected": self.expected}


class ProtocolViolation(InvalidArgument):
    """A frame came that the state of the session does not allow."""

    act = ""
    reason = "protocol-violation"


class UnsupportedFunction(BusError):
    """The agent or service offers no such function."""

    act = "refuse"
    reason = "unsupported-function"
    status = "UNIMPLEMENTED"


class PreconditionFailed(BusError):
    """The present life-cycle state forbids the act."""

    act = "refuse"
    reason = "precondition-failed"
    status = "FAILED_PRECONDITION"


class SessionSuperseded(PreconditionFailed):
    """A newer session of the same agent took over; this one must not reconnect by itself."""

    act = ""
    reason = "superseded"


class SearchRepeated(PreconditionFailed):
    """A search with this search-id was made before: it goes in a circle (SC00023 §6.1.4).

    Attributes:
        search_id: The id.
    """

    act = "failure"
    reason = "search-repeated"

    def __init__(self, search_id: str) -> None:
        super().__init__(f"the search {shown(search_id)} was made here before; expected a new search-id")
        self.search_id = search_id

    def details(self) -> dict[str, str]:
        return {"search_id": self.search_id}


class TaskEnded(PreconditionFailed):
    """A delegated task has ended; the first final state stays.

    Attributes:
        task_id: Id of the task.
        state: Its state in words, such as `cancelled`.
    """

    reason = "task-ended"

    def __init__(self, task_id: str, state: str, why: str = "") -> None:
        super().__init__(f"the task {shown(task_id)} is {state}" + (f": {why}" if why else ""))
        self.task_id = task_id
        self.state = state

    def details(self) -> dict[str, str]:
        return {"task_id": self.task_id, "state": self.state}


class AttemptSuperseded(PreconditionFailed):
    """What an executor says belongs to an attempt that is not in force: it is to stop working on the task.

    Attributes:
        task_id: Id of the task.
        attempt: Number that was named, in digits.
        in_force: Number of the attempt that is in force, or due, in digits.
    """

    reason = "attempt-superseded"

    def __init__(self, task_id: str, attempt: int, in_force: int, why: str) -> None:
        super().__init__(f"attempt {attempt} at the task {shown(task_id)} is not in force: {why}")
        self.task_id = task_id
        self.attempt = str(attempt)
        self.in_force = str(in_force)

    def details(self) -> dict[str, str]:
        return {"task_id": self.task_id, "attempt": self.attempt, "in_force": self.in_force}


class TaskNotFound(BusError):
    """There is no such task, or it is forgotten after its retention.

    Attributes:
        delegator: Who should have delegated it, `name@platform`.
        task_id: Its id.
    """

    reason = "task-not-found"
    status = "NOT_FOUND"

    def __init__(self, delegator: str, task_id: str) -> None:
        super().__init__(
            f"{delegator} has no task {shown(task_id)} here; it is unknown, or forgotten after its retention"
        )
        self.delegator = delegator
        self.task_id = task_id

    def details(self) -> dict[str, str]:
        return {"delegator": self.delegator, "task_id": self.task_id}


class TaskAlreadyExists(BusError):
    """The delegator has another task of this id.

    Attributes:
        task_id: The id.
        differs: Name of the first value that differs.
    """

    reason = "task-already-exists"
    status = "ALREADY_EXISTS"

    def __init__(self, task_id: str, differs: str) -> None:
        super().__init__(f"the task {shown(task_id)} was delegated with another {differs}; expected a new id")
        self.task_id = task_id
        self.differs = differs

    def details(self) -> dict[str, str]:
        return {"task_id": self.task_id, "differs": self.differs}


class EventsGone(BusError):
    """The events of a task, or the changes of a shared context, that come next are not kept any more.

    Attributes:
        task_id: Id of the task; "" for a shared context.
        first_kept: Sequence of the first event, or revision of the first change, that is kept, in digits; of events, continue
            after the one before it. A shared context is to be watched from the beginning.
    """

    act = "refuse"
    reason = "events-gone"
    status = "OUT_OF_RANGE"

    def __init__(self, task_id: str, after: int, first_kept: int) -> None:
        of_what = f"the events after {after:,} of the task {shown(task_id)}"
        if not task_id:
            of_what = f"the changes after revision {after:,} of this shared context"
        super().__init__(f"{of_what} are not kept any more; the first one is {first_kept:,}")
        self.task_id = task_id
        self.first_kept = str(first_kept)

    def details(self) -> dict[str, str]:
        return {"task_id": self.task_id, "first_kept": self.first_kept}


class EntryNotFound(BusError):
    """The shared context has no entry of this key.

    Attributes:
        key: The key.
    """

    reason = "entry-not-found"
    status = "NOT_FOUND"

    def __init__(self, key: str) -> None:
        super().__init__(f"the shared context has no entry {shown(key)}")
        self.key = key

    def details(self) -> dict[str, str]:
        return {"key": self.key}


class ContextEnded(BusError):
    """A shared context is over, and with it its entries: those who watch it hear no more of it."""

    reason = "context-ended"
    status = "NOT_FOUND"


class RevisionConflict(BusError):
    """An entry of a shared context has another revision than the expected one: nothing was changed.

    Attributes:
        key: Key of the entry.
        revision: Its present revision; 0 where there is no entry.
    """

    act = "refuse"
    reason = "revision-conflict"
    status = "ABORTED"

    def __init__(self, key: str, expected: int, revision: int) -> None:
        is_now = f"is of revision {revision:,}" if revision else "is not there"
        wanted = f"revision {expected:,} was expected" if expected else "none was expected"
        super().__init__(f"the entry {shown(key)} {is_now}; {wanted}")
        self.key = key
        self.revision = revision

    def details(self) -> dict[str, str]:
        return {"key": self.key, "revision": str(self.revision)}


class ResourceExhausted(BusError):
    """A bound of the bus is reached."""

    reason = "resource-exhausted"
    status = "RESOURCE_EXHAUSTED"


class MailboxFull(ResourceExhausted):
    """The receiver's mailbox has no room.

    Attributes:
        aid: Owner of the mailbox.
        capacity: Its bound, in words with the unit.
    """

    reason = "mailbox-full"
    retry_after = 0.1

    def __init__(self, aid: str, capacity: str) -> None:
        super().__init__(f"{aid}: the mailbox is full ({capacity})")
        self.aid = aid
        self.capacity = capacity

    def details(self) -> dict[str, str]:
        return {"aid": self.aid, "capacity": self.capacity}


class MessageTooLarge(ResourceExhausted):
    """The encoded message is over the limit in force.

    Attributes:
        size_bytes: Size of the encoded message.
        limit_bytes: The limit that `welcome` announced.
    """

    reason = "message-too-large"

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"the message has {size_bytes:,} bytes encoded, the limit is {limit_bytes:,}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def details(self) -> dict[str, str]:
        return {"size_bytes": str(self.size_bytes), "limit_bytes": str(self.limit_bytes)}


class TooManySessions(ResourceExhausted):
    """The bus holds as many sessions as it is configured for."""

    reason = "too-many-sessions"
    retry_after = 5.0


class Unavailable(BusError):
    """The other side does not answer now; the same call may succeed later."""

    act = ""
    reason = "unavailable"
    status = "UNAVAILABLE"
    retry_after = 1.0


class BusDraining(Unavailable):
    """The bus is shutting down and takes nothing new."""

    reason = "draining"


class BusUnreachable(Unavailable):
    """No bus answers at the endpoints given.

    Attributes:
        endpoints: `host:port` of each endpoint that was tried, separated by commas.
    """

    reason = "bus-unreachable"

    def __init__(self, endpoints: str, why: str = "") -> None:
        super().__init__(f"No bus at {endpoints}." + (f" ({why})" if why else "") + " Start one: gagent serve")
        self.endpoints = endpoints


class NoProvider(Unavailable):
    """Nobody who is connected serves a role.

    Attributes:
        service: Type of the service.
    """

    reason = "no-provider"

    def __init__(self, service: str, hint: str = "") -> None:
        super().__init__(f"nobody who is connected offers a service of the type {shown(service)}{hint}")
        self.service = service

    def details(self) -> dict[str, str]:
        return {"service": self.service}


class StoreUnavailable(Unavailable):
    """The store does not answer or cannot write."""

    reason = "store-unavailable"


class DeliveryRefused(BusError):
    """A message did not reach a receiver's mailbox.

    Attributes:
        outcome: Outcome word of the receipt, such as `NO_SUCH_AGENT`.
        receiver: The receiver concerned.
        detail: What the bus said about it.
        receipts: Receipts of every receiver that was not reached, this one first.
    """

    act = ""
    reason = "delivery-refused"
    receipts: tuple[object, ...] = ()

    def __init__(self, outcome: str, receiver: str, detail: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{receiver}: {outcome}" + (f" ({detail})" if detail else ""))
        self.outcome = outcome
        self.receiver = receiver
        self.detail = detail
        self.retry_after = retry_after


class AnswerTimeout(BusError):
    """No answer came in time.

    Attributes:
        whom: Who was asked.
        seconds: How long was waited.
        hint: Why no answer came, in words; "" when it is not known.
    """

    act = "failure"
    reason = "timeout"
    status = "DEADLINE_EXCEEDED"

    def __init__(self, whom: str, seconds: float, hint: str = "") -> None:
        super().__init__(f"{whom}: no answer within {seconds:g} s" + (f"; {hint}" if hint else ""))
        self.whom = whom
        self.seconds = seconds
        self.hint = hint

    def details(self) -> dict[str, str]:
        return {"whom": self.whom, "seconds": f"{self.seconds:g}", "hint": self.hint}


class ConversationFailed(BusError):
    """A conversation ended with an act that is not the wanted answer.

    Attributes:
        sender: Who sent it.
        text: Content of the ending act, for the program that asked; "" when it had none.
    """

    act = ""
    word: ClassVar[str] = "failure"

    def __init__(self, sender: str, text: str) -> None:
        super().__init__(f"{sender}: {self.word}" + (f" {text}" if text else ""))
        self.sender = sender
        self.text = text


class RefusedByAgent(ConversationFailed):
    """The other agent answered `refuse`: understood, nothing done."""

    word = "refuse"


class FailureFromAgent(ConversationFailed):
    """The answer was `failure`, from the other agent or from the AMS on its behalf."""

    word = "failure"


class NotUnderstoodByAgent(ConversationFailed):
    """The other agent answered `not-understood`."""

    word = "not-understood"


class TaskNotCompleted(BusError):
    """A delegated task ended without a result.

    Attributes:
        task_id: Its id.
        executor: Who had it, `name@platform`; "" when nobody did.
        why: Reason, in words; "" when none is known.
    """

    act = "failure"
    reason = "task-not-completed"
    word: ClassVar[str] = "failed"

    def __init__(self, task_id: str, executor: str = "", why: str = "") -> None:
        whose = f" of {executor}" if executor else ""
        super().__init__(f"the task {shown(task_id)}{whose} {self.word}" + (f": {why}" if why else ""))
        self.task_id = task_id
        self.executor = executor
        self.why = why

    def details(self) -> dict[str, str]:
        return {"task_id": self.task_id, "executor": self.executor, "why": self.why}


class TaskFailed(TaskNotCompleted):
    """It was tried and did not come about, or its executor was lost."""

    word = "failed"


class TaskRejected(TaskNotCompleted):
    """The executor did not take it: nothing was done."""

    act = "refuse"
    word = "was rejected"


class TaskCancelled(TaskNotCompleted):
    """The delegator, or the end of the task that it came of, called it off."""

    word = "was cancelled"


class TaskExpired(TaskNotCompleted):
    """Its deadline passed before it ended."""

    word = "expired"


class TaskRefused(BusError):
    """Raised by a handler of tasks before it has begun: the task is rejected, with this text as the reason.

    After it has told of progress, output or a checkpoint the task has failed instead.
    """

    act = "refuse"
    reason = "task-refused"


class ScriptError(BusError):
    """A script agent did not start, died, or broke the line protocol."""

    reason = "script-error"


class ConfigurationError(BusError):
    """Settings contradict each other, or a file belongs to another program."""

    act = ""
    reason = "configuration"
    status = "FAILED_PRECONDITION"


def first_error(group: BaseExceptionGroup[BusError]) -> BusError:
    """Return the first error of what ``except* BusError`` caught: a group, which may hold groups."""
    found = group.exceptions[0]
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def restore(code: str, text: str, details: dict[str, str]) -> BusError:
    """Return the error that another process raised, from what travelled of it.

    Args:
        code: `BusError.code` of its class; an unknown one gives a plain BusError.
        text: Its text.
        details: What its `details` returned; numbers come back as numbers.
    """
    cls = _BY_CODE.get(code, BusError)
    made = cls.__new__(cls)
    Exception.__init__(made, text)
    for name, value in details.items():
        # Whatever another process says, it reaches nothing but attributes that such an error has.
        if not name.startswith("_") and not hasattr(BusError, name):
            setattr(made, name, _RESTORED.get(name.rpartition("_")[2], str)(value))
    return made


def _whole(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _seconds(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_RESTORED: dict[str, Callable[[str], object]] = {"bytes": _whole, "revision": _whole, "seconds": _seconds}
"""How an attribute whose name ends so comes back from text."""
