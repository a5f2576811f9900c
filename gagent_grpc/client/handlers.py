"""Which handler gets a message: handlers with the templates that they are for, in the order of registration.

Owns: choosing. Leaves to others: what fits a template (`acl.template`), running (`client.handling`).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from gagent_grpc.acl.performative import Performative
from gagent_grpc.acl.template import MessageTemplate
from gagent_grpc.client.message import Received
from gagent_grpc.errors import InvalidArgument

Answer = str | bytes | None
"""What a handler may return: content for an `inform` to the sender, or nothing."""
Handler = Callable[[Received], Awaitable[Answer]] | Callable[[Received], Answer]


@dataclass(frozen=True, slots=True)
class Registered:
    """One handler and what it is for."""

    template: MessageTemplate
    handler: Handler
    is_async: bool
    """It is a coroutine function: runs on the agent's loop, and not in a thread."""


class Handlers:
    """The handlers of one agent."""

    def __init__(self) -> None:
        self._entries: list[Registered] = []
        self._name_agents = False

    def add(
        self,
        performative: str | Performative | MessageTemplate | None,
        parameters: dict[str, Any],
        handler: Handler,
    ) -> None:
        """Register a handler; the first one that fits a message gets it.

        Args:
            performative: Act that it is for, or a whole template; None for every act.
            parameters: Values that ACL parameters must have as well, as `MessageTemplate` takes them.
            handler: `async def`, which runs on the agent's loop, or `def`, which runs in a thread.

        Raises:
            UnknownPerformative: None of FIPA's 22 acts.
            InvalidArgument: A parameter that ACL messages do not have, or a value that it cannot have.
        """
        if "performative" in parameters:
            raise InvalidArgument("'performative' is no ACL parameter beside the act itself", field="performative")
        if not isinstance(performative, MessageTemplate):
            template = MessageTemplate(performative, **parameters)
        elif parameters:
            template = performative & MessageTemplate(**parameters)
        else:
            template = performative
        # An object with a method `async def __call__` is one, too; the first test knows what `functools.partial` hides.
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
        self._entries.append(Registered(template, handler, is_async))
        self._name_agents = self._name_agents or template.names_agents

    def find(self, message: Received) -> Registered | None:
        """Return the handler for a message; None when nobody is for it."""
        # Asked for only where it matters: it is read from the delivery each time.
        platform = own_platform(message) if self._name_agents else ""
        for entry in self._entries:
            if entry.template.matches(message, platform):
                return entry
        return None


def own_platform(message: Received) -> str:
    """Return the platform that a message was delivered on: agents of it come under their bare names."""
    return message.receiver.partition("@")[2]
