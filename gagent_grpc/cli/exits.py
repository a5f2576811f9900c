"""What the command tells of an error: a line for people, an exit code for programs.

    0  answered                                4  no answer in time
    1  refuse, failure, not-understood         5  no bus
    2  usage: arguments, settings, files       6  denied
    3  not delivered

Owns: the table. Leaves to others: what the errors say (`errors`), and when they are raised.
"""

from __future__ import annotations

import enum

from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    AnswerTimeout,
    BusError,
    ConfigurationError,
    DeliveryRefused,
    InvalidArgument,
    NoProvider,
    ProtocolViolation,
    ResourceExhausted,
    TaskExpired,
    Unauthenticated,
    Unauthorised,
    Unavailable,
)


class ExitCode(enum.IntEnum):
    """Exit codes of `gagent`."""

    ANSWERED = 0
    FAILED = 1
    USAGE = 2
    NOT_DELIVERED = 3
    TIMEOUT = 4
    NO_BUS = 5
    DENIED = 6


EXIT_CODES: dict[type[BusError], ExitCode] = {
    # A class that is not here has the code of its nearest base.
    BusError: ExitCode.FAILED,
    InvalidArgument: ExitCode.USAGE,
    # Nothing that was typed: two programs that do not speak the same protocol.
    ProtocolViolation: ExitCode.FAILED,
    ConfigurationError: ExitCode.USAGE,
    DeliveryRefused: ExitCode.NOT_DELIVERED,
    ResourceExhausted: ExitCode.NOT_DELIVERED,
    # Of a bus that is there.
    NoProvider: ExitCode.NOT_DELIVERED,
    AnswerTimeout: ExitCode.TIMEOUT,
    TaskExpired: ExitCode.TIMEOUT,
    Unavailable: ExitCode.NO_BUS,
    Unauthenticated: ExitCode.DENIED,
    Unauthorised: ExitCode.DENIED,
}


SEE_ALL = "See gagent ps --all"
"""The way out for who waits for an agent that is away."""


def exit_code(error: BusError) -> ExitCode:
    """Return the exit code for ``error``."""
    if isinstance(error, DeliveryRefused) and error.outcome == "DENIED":
        return ExitCode.DENIED
    return next(EXIT_CODES[cls] for cls in type(error).__mro__ if cls in EXIT_CODES)


def describe(error: BusError, *, name_setting: str = "--name") -> str:
    """Return what a person reads about ``error``: what happened, and the way out where there is one.

    Args:
        error: What was raised.
        name_setting: How the person who reads it chooses the name of an agent.
    """
    if isinstance(error, AgentAlreadyRegistered):
        # Only who runs an agent asks for a name that somebody may have.
        name = error.name.partition("@")[0]
        return f"{error}. Stop it (gagent kill {name}) or choose another name with {name_setting}"
    if isinstance(error, DeliveryRefused):
        # "nobody: NO_SUCH_AGENT. Registered: helper, planner"
        first = error.detail.split(maxsplit=1)[0].rstrip(":") if error.detail else ""
        detail = error.detail[:1].upper() + error.detail[1:] if first.isalpha() else error.detail
        return f"{error.receiver}: {error.outcome}" + (f". {detail}" if detail else "")
    if isinstance(error, AnswerTimeout) and error.hint:
        return f"{error}. {SEE_ALL}"
    return str(error) or type(error).__name__


def ended_by_ams(name: str) -> str:
    """Return what a person reads whose agent ``name`` was ended by somebody else; no error, so its exit code is 0."""
    return f"{name} was ended by the AMS (gagent kill)"
