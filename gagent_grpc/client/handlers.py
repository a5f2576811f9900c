"""Which handler gets a message: handlers with the ACL parameters that they are for, in the order of registration.

Owns: choosing, by equality. Leaves to others: running (`client.handling`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import PARAMETERS
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.message import Received
from gagent_grpc.errors import InvalidArgument

Answer = str | bytes | None
"""What a handler may return: content for an `inform` to the sender, or nothing."""
Handler = Callable[[Received], Awaitable[Answer]] | Callable[[Received], Answer]


@dataclass(frozen=True, slots=True)
class Registered:
    """One handler and what it is for."""

    performative: Performative | None
    parameters: tuple[tuple[str, Any], ...]
    handler: Handler
    is_async: bool
    """It is a coroutine function: runs on the agent's loop, and not in a thread."""


class Handlers:
    """The handlers of one agent."""

    def __init__(self) -> None:
        self._entries: list[Registered] = []

    def add(self, performative: str | Performative | None, parameters: dict[str, Any], handler: Handler) -> None:
        """Register a handler; the first one that fits a message gets it.

        Args:
            performative: Act that it is for; None for every act.
            parameters: Values that ACL parameters must have; None for an absent one. `sender` is compared by name.
            handler: `async def`, which runs on the agent's loop, or `def`, which runs in a thread.

        Raises:
            UnknownPerformative: None of FIPA's 22 acts.
            InvalidArgument: A parameter that ACL messages do not have.
        """
        for name in parameters:
            if name not in PARAMETERS or name == "performative":
                expected = ", ".join(one for one in PARAMETERS if one != "performative")
                raise InvalidArgument(f"{name!r} is no ACL parameter; expected one of {expected}", field=name)
        act = Performative.parse(performative) if isinstance(performative, str) else performative
        # An object with a method `async def __call__` is one, too; the first test knows what `functools.partial` hides.
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        self._entries.append(Registered(act, tuple(parameters.items()), handler, is_async))

    def find(self, message: Received) -> Registered | None:
        """Return the handler for a message; None when nobody is for it."""
        for entry in self._entries:
            if entry.performative is not None and entry.performative is not message.performative:
                continue
            if not entry.parameters or all(_same(message, name, value) for name, value in entry.parameters):
                return entry
        return None


def _same(message: Received, name: str, wanted: Any) -> bool:
    actual = getattr(message, name)
    if isinstance(actual, AgentIdentifier) and isinstance(wanted, str):
        # Who is of this platform comes under the bare name, and may be meant by the full one.
        return wanted in (actual.name, f"{actual.name}@{message.receiver.partition('@')[2]}")
    return bool(actual == wanted)
