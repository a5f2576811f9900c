"""`ScriptAgent`: an agent that is nothing but its script, from its registration to its end; what `gagent run` runs.

Owns: the order in which name, script and session come and go. Leaves to others: the script (`bridge.behaviour`), the
session and its reconnects (the SDK).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gagent_grpc.acl.descriptions import AMSAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.bridge.behaviour import RestartPolicy, ScriptBehaviour
from gagent_grpc.bridge.events import CLOSE_GRACE_S, Ending, EventBehaviour
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.process import ANSWER_TIMEOUT_S, STOP_GRACE_S
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.operator import Operator
from gagent_grpc.config import ClientLimits
from gagent_grpc.errors import (
    AgentAlreadyRegistered,
    BusError,
    ConfigurationError,
    PreconditionFailed,
    SessionSuperseded,
    first_error,
)

ONE_AT_A_TIME = ClientLimits(concurrency=1, window_messages=2)
"""Limits of an agent that handles one event after the other: mail waits in the mailbox but for the next message."""


class ScriptAgent:
    """One script as an agent of the bus.

        await ScriptAgent("helper.py", services=["summarise"], system_prompt="Be brief.").run()

    The AMS shows the agent as `initiated` until the script has answered `start`, and as active afterwards. A script
    that ends with exit code 0 ends the agent politely: name and mail stay. `delete` frees both. After any other end
    of the script `bridge.behaviour` starts it anew, as often as the restart policy allows. When the AMS ends the agent,
    its script is stopped.
    """

    def __init__(
        self,
        script: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        command: Sequence[str] | None = None,
        bus: str | None = None,
        services: Sequence[str | ServiceDescription] = (),
        ownership: str = "",
        system_prompt: str = "",
        model: str = "gpt-4o-mini",
        max_tokens: int = 200,
        max_history: int = 20,
        tick_ms: int = 200,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        answer_timeout: float = ANSWER_TIMEOUT_S,
        grace: float = STOP_GRACE_S,
        restart: RestartPolicy | None = None,
        limits: ScriptLimits | None = None,
        inherit: Sequence[str] | None = None,
        reload: bool = False,
    ) -> None:
        """Make the agent; nothing is connected or started before `run`.

        Args:
            script: The script; its suffix says what runs it. None when ``command`` says all.
            name: Name of the agent; the script's file name without suffix by default.
            command: Program and arguments, instead of what the suffix says.
            bus: `HOST:PORT[,HOST:PORT]`; 127.0.0.1:50051 by default.
            services: What it offers in the DF; one service whose type is the agent's name by default.
            ownership: Who owns it, in words; the AMS shows it.
            system_prompt: Instructions for the script's language model.
            model: Name of that model.
            max_tokens: Longest answer to ask the model for.
            max_history: Turns of a conversation that the script keeps.
            tick_ms: Milliseconds without a message after which the script gets a tick; 0 for no ticks.
            config: Further keys of the `start` event.
            env: Environment variables to add to this process's own.
            answer_timeout: Seconds that the script may take for one event.
            grace: Seconds that the script may take from its `stop` event to its end.
            restart: When a script that died is started anew; once in 5 s by default.
            limits: What it may use of the machine; no bounds by default.
            inherit: Names of the variables of this process that it gets; see `bridge.command.script_environment`.
            reload: Whether it is started anew when it changes; see `ScriptBehaviour`.

        Raises:
            ConfigurationError: Neither script nor command is given, a command without a name, or ``reload`` for a command.
            InvalidName: The name, maybe that of the file, is no agent's name.
            InvalidArgument: An endpoint is not HOST:PORT.
        """
        if script is None and not command:
            raise ConfigurationError("neither script nor command is given; expected one of them")
        if name is None:
            if script is None:
                raise ConfigurationError("a command has no file to take the agent's name from; expected --name NAME")
            name = Path(script).stem
        if reload and script is None:
            raise ConfigurationError("a command has no file whose changes could count; expected a script with --reload")
        self.what = str(script) if script is not None else " ".join(command or ())
        """The script, or the command, in words."""
        self._ownership = ownership
        self._bus = bus
        self.agent = Agent(
            name,
            bus=bus,
            services=services or [name.partition("@")[0]],
            ownership=ownership,
            limits=ONE_AT_A_TIME,
        )
        """The agent that the script decides for."""
        self.name = self.agent.name
        self.behaviour = ScriptBehaviour(
            self.agent,
            self.name,
            script,
            system_prompt,
            model,
            max_tokens,
            max_history,
            tick_ms,
            command=command,
            env=env,
            config=config,
            answer_timeout=answer_timeout,
            grace=grace,
            restart=restart,
            limits=limits,
            inherit=inherit,
            reload=reload,
        )
        self.ready = asyncio.Event()
        """Set once the agent is active."""

    async def run(self) -> Ending:
        """Be this agent until it ends; return how.

        Cancelling it stops the agent politely: the script gets its `stop` event, then the bus its farewell. It returns
        within ``grace`` + 7 s (11 s by default), and mostly at once.

        Raises:
            ScriptError: The script did not start, and then a name that is new is free again; or it died more often
                than the restart policy allows. The text has its exit code and its last words.
            BusUnreachable: No bus answers.
            AgentAlreadyRegistered: Somebody else holds the name.
            SessionSuperseded: A newer session of the agent took over; the script was stopped.
            BusError: The bus refused the session for another reason.
        """
        return await run_agent(self.agent, self.behaviour, bus=self._bus, ownership=self._ownership, ready=self.ready)


async def run_agent(
    agent: Agent,
    behaviour: EventBehaviour,
    *,
    bus: str | None = None,
    ownership: str = "",
    ready: asyncio.Event | None = None,
) -> Ending:
    """Run an agent that is nothing but ``behaviour``: name, then behaviour, then session, and back in that order.

    Arguments, result and errors as `ScriptAgent`; ``ready`` is set once the agent is active.
    """
    try:
        # The behaviour is made ready before the session opens, since whoever has a session counts as active.
        async with introduced(agent.name, bus=bus, ownership=ownership):
            await behaviour.start()
        async with agent:
            if ready is not None:
                ready.set()
            try:
                return await _until_over(agent, behaviour)
            finally:
                await _end(agent, behaviour)
    finally:
        await _end(agent, behaviour)


async def _end(agent: Agent, behaviour: EventBehaviour) -> None:
    """Stop the behaviour, then close the session; what was not begun needs no end."""
    try:
        # First, so that its last words still find a session; mostly it has stopped by now.
        await behaviour.stop()
    finally:
        await behaviour.aclose()
        await agent.aclose(grace=CLOSE_GRACE_S)


async def _until_over(agent: Agent, behaviour: EventBehaviour) -> Ending:
    """Serve until the behaviour or the session is over for good."""
    failure: BusError | None = None
    serving: asyncio.Task[Ending] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(behaviour.run())
            watching = group.create_task(agent.wait())
            try:
                await asyncio.wait({serving, watching}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                # What arrives while the script stops is not begun any more.
                agent.pause()
                watching.cancel()
    except* BusError as raised:
        failure = first_error(raised)
    if failure is not None:
        if isinstance(failure, PreconditionFailed) and not isinstance(failure, SessionSuperseded):
            # So the SDK tells of it; an end by a newer session has a class of its own.
            return Ending.TERMINATED
        raise failure
    assert serving is not None
    return serving.result()


@contextlib.asynccontextmanager
async def introduced(name: str, *, bus: str | None = None, ownership: str = "") -> AsyncIterator[None]:
    """Have ``name`` registered, as initiated, while the block prepares its agent; free it when the block fails.

    A name that existed before, or under which somebody else's agent came meanwhile, is never freed.

    Raises:
        BusUnreachable: No bus answers.
        AgentAlreadyRegistered: A live session holds the name.
        BusError: The AMS refused it.
    """
    async with Operator(bus) as operator:
        try:
            existed = await operator.ams.register(name, ownership=ownership)
        except AgentAlreadyRegistered:
            # Another ownership than now is no obstacle, a live session is.
            entries = await operator.ams.search(AMSAgentDescription(name=name))
            if not entries or entries[0].connected:
                raise
            existed = True
        try:
            yield
        except BaseException:
            if not existed:
                with contextlib.suppress(BusError):
                    await _free(operator, name)
            raise


async def _free(operator: Operator, name: str) -> None:
    """Free a name under which no agent has come yet."""
    for entry in await operator.ams.search(AMSAgentDescription(name=name)):
        # Anybody may have opened a session under it meanwhile, and it is theirs then, also when they are away again.
        # Not handled: whoever does so between this look and the next call.
        if entry.description.state is LifeCycleState.INITIATED and not entry.connected:
            await operator.ams.deregister(name)
