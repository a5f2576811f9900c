"""Why a model gave no answer: one error, with a word for programs and a sentence on which a person can act.

Owns: the kinds of trouble. Leaves to others: telling them from what a vendor says (`llm.providers`), what is tried again
(`llm.calling`), the `failure` that an asker gets (`llm.agent`).
"""

from __future__ import annotations

import enum
from typing import ClassVar

from gagent_grpc.errors import BusError


class Trouble(enum.StrEnum):
    """What went wrong with a model; the first word of the `failure` that says so."""

    NO_KEY = "no-key"
    """No key is set, and the endpoint needs one."""
    KEY_REFUSED = "key-refused"
    """The endpoint does not take the key, or not for this."""
    NO_CREDIT = "no-credit"
    """The account has nothing left to spend."""
    RATE_LIMITED = "rate-limited"
    """The endpoint takes no more requests at present."""
    SERVER_ERROR = "server-error"
    """The endpoint failed, or is overloaded."""
    UNREACHABLE = "unreachable"
    """Nobody answers at the endpoint, or the connection was lost."""
    TIMEOUT = "timeout"
    """No whole answer came in the time that there was."""
    EMPTY_ANSWER = "empty-answer"
    """The model said nothing."""
    CONTENT_FILTER = "content-filter"
    """The vendor's filter, or the model itself, declined."""
    CONTEXT_TOO_LONG = "context-too-long"
    """Question and history are more than the model reads."""
    NO_SUCH_MODEL = "no-such-model"
    """The endpoint does not have the model."""
    REQUEST_REFUSED = "request-refused"
    """The endpoint does not take the request as it is."""
    BAD_ANSWER = "bad-answer"
    """What came is not what the API says."""
    BROKE_OFF = "broke-off"
    """The answer ended in the middle, after a part of it was passed on."""
    TOO_MANY_CALLS = "too-many-calls"
    """The model went on using tools and came to no answer."""


RETRYABLE = frozenset({Trouble.RATE_LIMITED, Trouble.SERVER_ERROR, Trouble.UNREACHABLE})
"""What may be over in a moment."""


class ModelError(BusError):
    """A model gave no answer. The text holds no key and nothing of what was asked.

    Attributes:
        trouble: What kind it is.
        why: What happened and what to do, in words.
        retry_after: Seconds that the endpoint asks to wait; None where it says nothing.
    """

    act: ClassVar[str] = "failure"
    status: ClassVar[str] = "UNAVAILABLE"

    def __init__(self, trouble: Trouble, why: str, *, retry_after: float | None = None) -> None:
        super().__init__(f"{trouble}: {why}")
        self.trouble = trouble
        self.why = why
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed in a moment."""
        return self.trouble in RETRYABLE

    def details(self) -> dict[str, str]:
        return {"trouble": str(self.trouble)}
