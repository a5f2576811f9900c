"""`ACPAgent`: an agent that serves ACP messages at one bus until it is stopped.

Owns: its hooks. Leaves to others: everything that it does meanwhile (`client.acp.service`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from gagent_grpc.acp.message import ACPMessageType
from gagent_grpc.client.acp.service import ACPService
from gagent_grpc.client.agent import Agent
from gagent_grpc.errors import InvalidArgument

_logger = logging.getLogger(__name__)


class ACPAgent:
    """An agent that handles ACP messages with three hooks, at the bus on ``host`` and ``port``.

        agent = ACPAgent("helper", "127.0.0.1", 50051)

        @agent.on_message
        async def answer(message):
            return {"you_said": message.content}

        asyncio.run(agent.run())

    The hooks are decorators, as here, or methods that a subclass overrides with ``async def`` or ``def``. No port is
    opened: the agent connects to the bus, which brings it the messages.
    """

    def __init__(self, agent: str | Agent, host: str = "127.0.0.1", port: int = 50051, **options: Any) -> None:
        """Make an agent; nothing is connected yet.

        Args:
            agent: Its name; or an `Agent`, which has its bus already, and ``host`` and ``port`` do not matter.
            host: Host of the bus.
            port: Port of the bus.
            options: Further arguments of `ACPService`, such as ``heartbeat_interval`` or ``services``.

        Raises:
            InvalidName: ``agent`` is no valid name.
            InvalidArgument: ``host`` and ``port`` are no address.
        """
        if isinstance(agent, Agent):
            self.service = ACPService(agent, **options)
        else:
            host = str(host)
            address = f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
            self.service = ACPService(agent, bus=address, **options)
        self._hooks: dict[str, Callable[..., Any]] = {}
        if self._hook("on_message") is not None:
            self._serve()

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def on_message(self, handler: Any) -> Any:
        """Register the decorated function for messages: (message). Without one a REQUEST is answered by an ERROR.

        It gets a `ReceivedACP` of any type but HEARTBEAT. What it returns for a REQUEST is the content of the RESPONSE, for
        a DELEGATE the result of the task; `Refuse` and `Fail`, raised or returned, become an ERROR.
        """
        self._register("on_message", handler)
        self._serve()
        return handler

    def on_connect(self, handler: Any) -> Any:
        """Register the decorated function for the beginning of a session with the bus, the first one and each that is found
        again: (agent id, `name@platform`).
        """
        return self._register("on_connect", handler)

    def on_disconnect(self, handler: Any) -> Any:
        """Register the decorated function for a session that is lost or at its end: (agent id, `name@platform`)."""
        return self._register("on_disconnect", handler)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled, superseded or terminated; close politely at the end.

        Raises:
            PreconditionFailed: It runs already, or it was terminated.
            SessionSuperseded: A newer session of this agent took over.
            BusUnreachable, AgentAlreadyRegistered, BusError: As `Agent.run`.
        """
        hearing = self.service.agent._session.connection_handlers
        # Told in passing, in the midst of the session: the hooks run in a task of their own, in order.
        changes: asyncio.Queue[bool] = asyncio.Queue()
        hears = changes.put_nowait
        hearing.append(hears)
        telling = asyncio.create_task(self._tell(changes))
        try:
            async with self.service:
                await self.service.wait()
        finally:
            hearing.remove(hears)
            # What happened last is told, too.
            changes.put_nowait(_END)
            await asyncio.wait({telling})

    async def stop(self) -> None:
        """Close politely; `run` returns. Idempotent."""
        await self.service.agent.aclose()

    async def _tell(self, changes: asyncio.Queue[bool]) -> None:
        while (is_open := await changes.get()) is not _END:
            name = "on_connect" if is_open else "on_disconnect"
            hook = self._hook(name)
            if hook is None:
                continue
            try:
                # A thread of its own: those for handlers are gone at the end.
                made = hook if inspect.iscoroutinefunction(hook) else functools.partial(asyncio.to_thread, hook)
                await made(self.service.agent_id)
            except Exception:
                # It is told in passing; the session goes on.
                _logger.exception("%s: %s failed", self.service.agent.name, name)

    def _serve(self) -> None:
        """Have messages come to the hook: there is one."""
        hook = self._hook("on_message")
        assert hook is not None
        for kind in ACPMessageType:
            if kind is not ACPMessageType.HEARTBEAT:
                self.service.handlers[kind] = hook

    def _hook(self, name: str) -> Callable[..., Any] | None:
        """Return the hook of a name: what was registered, or the method of a subclass; None when there is neither."""
        if getattr(type(self), name) is not getattr(ACPAgent, name):
            hook: Callable[..., Any] = getattr(self, name)
            return hook
        return self._hooks.get(name)

    def _register(self, name: str, handler: Any) -> Any:
        if not callable(handler):
            text = f"{name} with a value of type {type(handler).__name__}; expected a function"
            raise InvalidArgument(text, field="handler")
        self._hooks[name] = handler
        return handler


_END: Any = object()
