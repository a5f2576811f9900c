"""`ScriptBehaviour`: a script in any language decides what an SDK agent does.

Owns: the script's runs one after the other, what becomes of a message whose answer does not come, and when a script is
started anew. Leaves to others: the process (`bridge.process`), what answers mean (`bridge.events`), the agent's session
(whoever made the agent; `bridge.supervisor` for an agent that is nothing but its script).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagent_grpc.bridge.actions import MessageEvent, fail
from gagent_grpc.bridge.child import done
from gagent_grpc.bridge.command import script_command
from gagent_grpc.bridge.events import CLOSE_GRACE_S, Ending, EventBehaviour
from gagent_grpc.bridge.faults import ScriptExited, ScriptTimeout
from gagent_grpc.bridge.framing import Answer
from gagent_grpc.bridge.process import ANSWER_TIMEOUT_S, STOP_GRACE_S, ScriptProcess
from gagent_grpc.client.agent import Agent
from gagent_grpc.errors import ScriptError

START_WARNING_S = 5.0
"""How long a script may take to answer `start` before whoever started it is told."""

_TICK = {"event": "tick"}
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often a script that ended with an error is started anew before its agent is given up."""

    restarts: int = 1
    """Most restarts within the period; 0 for none at all."""
    period: float = 5.0
    """Seconds."""


class ScriptBehaviour(EventBehaviour):
    """Joins an SDK agent to a script: messages and ticks become events, and the script's answers become acts.

    The agent keeps its life cycle and registrations, the script decides:

        agent = Agent("helper", services=["summarise"], limits=ClientLimits(concurrency=1, window_messages=2))
        script = ScriptBehaviour(agent, "helper", "helper.py", system_prompt="Be brief.")
        async with agent:
            await script.run()

    When the script dies on a message, its sender gets a `failure` that names the exit code or signal, and the message
    is settled: it would only kill the next run, too. So does whoever else still waits for an answer. When it does not
    answer in time, a requester gets a `failure`, and the line that comes late is still carried out in its own
    conversation. A message that the script has not seen is kept for its next run.
    """

    def __init__(
        self,
        agent: Agent,
        name: str,
        script_path: str | os.PathLike[str] | None,
        system_prompt: str = "",
        model: str = "gpt-4o-mini",
        max_tokens: int = 200,
        max_history: int = 20,
        tick_ms: int = 200,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        answer_timeout: float = ANSWER_TIMEOUT_S,
        grace: float = STOP_GRACE_S,
        restart: RestartPolicy | None = None,
    ) -> None:
        """Take over the agent's messages; the script is started by `start`, or by `run`.

        Args:
            agent: The agent that the script decides for; best made with `concurrency=1` and a window of 2 messages, so
                that messages wait in its mailbox.
            name: The agent's own name.
            script_path: The script; its suffix says what runs it. None when ``command`` says all.
            system_prompt: Instructions for the script's language model.
            model: Name of that model.
            max_tokens: Longest answer to ask the model for.
            max_history: Turns of a conversation that the script keeps.
            tick_ms: Milliseconds without a message after which the script gets a tick; 0 for no ticks.
            command: Program and arguments that run the script, instead of what its suffix says.
            env: Environment variables to add to this process's own.
            config: Further keys of the `start` event, as JSON has them.
            answer_timeout: Seconds that the script may take for one event.
            grace: Seconds that it may take from its `stop` event to its end.
            restart: When a script that died is started anew; once in 5 s by default.

        Raises:
            ValueError: ``name`` is not the agent's own, or neither script nor command is given.
        """
        super().__init__(agent, name, tick_ms=tick_ms)
        if script_path is None and not command:
            raise ValueError("script_path is None; expected a script, or a command that runs it")
        self._script_path = script_path
        self._command = list(command) if command else None
        self._env = env
        self._answer_timeout = answer_timeout
        self._grace = grace
        self._policy = restart or RestartPolicy()
        self._start_event = {
            # In this order: some scripts look no further than the beginning of the line.
            "event": "start",
            "system_prompt": system_prompt,
            "model": model,
            "max_tokens": max_tokens,
            "max_history": max_history,
            "name": self.name,
        }
        self._start_event.update({key: value for key, value in (config or {}).items() if key not in self._start_event})
        self._process: ScriptProcess | None = None
        self._started_with: Answer | None = None
        self._restarts: deque[float] = deque()
        self._stopping = False

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Process id of the present run; None before the first."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the script and wait for its answer to `start`.

        Raises:
            ScriptError: There is no such script, it ended (with its exit code and last words), or it did not answer.
        """
        command = self._command
        if command is None:
            assert self._script_path is not None
            command = script_command(self._script_path)
        process = ScriptProcess(self.name, command, env=self._env)
        patience = asyncio.get_running_loop().call_later(START_WARNING_S, self._warn_of_silence)
        try:
            await process.start()
            answer = await process.exchange(self._start_event, timeout=self._answer_timeout)
        except ScriptExited as error:
            await process.aclose()
            if error.returncode == 0:
                # Mostly a script that defines its agent and nothing more.
                hint = "; is `.run()` missing?" if any(word.endswith(".py") for word in command) else ""
                why = f"ended before it answered `start`{hint}"
                raise ScriptExited(self.name, 0, error.stderr_tail, why) from error
            raise
        except BaseException:
            await process.aclose()
            raise
        finally:
            patience.cancel()
        self._process, self._started_with = process, answer

    def _warn_of_silence(self) -> None:
        _logger.warning(
            "%s has not answered its start event yet; prints to stdout must be JSON lines",
            self.name,
            extra={"agent": self.name},
        )

    async def stop(self) -> None:
        """End the script politely: `stop` event, end of its stdin, signals; within ``grace`` + 3.5 s. Idempotent."""
        if self._process is not None:
            if not self._process.ended:
                # What it has not answered when it is killed is for another run.
                self._stopping = True
            await self._process.stop(self._grace)

    async def aclose(self) -> None:
        """Kill what is left of the script. Idempotent."""
        if self._process is not None:
            await self._process.aclose()

    async def _serve(self) -> Ending:
        if self._process is None:
            await self.start()
        while True:
            process, started_with = self._process, self._started_with
            assert process is not None
            assert started_with is not None
            await self._live(process, started_with)
            if self._deleted.is_set():
                return Ending.DELETED
            if process.returncode == 0:
                return Ending.STOPPED
            error = process.exit_error()
            await self._give_up_requests(error.summary)
            await self._restart(error)

    async def _live(self, process: ScriptProcess, started_with: Answer) -> None:
        """Serve one run of the script until it ended or deleted the agent; end it in any case."""
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._take_late(process))
            ended = group.create_task(process.wait())
            deleted = group.create_task(self._deleted.wait())
            try:
                await self._carry_out(started_with, None)
                if not self._deleted.is_set():
                    self._quiet_since = asyncio.get_running_loop().time()
                    self._open.set()
                await asyncio.wait({ended, deleted}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._open.clear()
                await self.stop()
                # Its last lines, such as what its on_stop says.
                await done(late, CLOSE_GRACE_S)
                for task in (late, ended, deleted):
                    task.cancel()

    async def _restart(self, error: ScriptError) -> None:
        """Start the script anew.

        Raises:
            ScriptError: It was started anew too often; the error is the one that it ended with last.
        """
        loop = asyncio.get_running_loop()
        while True:
            while self._restarts and loop.time() - self._restarts[0] > self._policy.period:
                self._restarts.popleft()
            if len(self._restarts) >= self._policy.restarts:
                raise error
            self._restarts.append(loop.time())
            _logger.warning("%s: started anew, since %s", self.name, getattr(error, "summary", "it did not start"))
            try:
                await self.start()
            except ScriptError as again:
                error = again
            else:
                return

    # ---- events ----------------------------------------------------------------------------------------------------

    async def _ask(self, event: MessageEvent) -> Answer | None:
        unread = 0
        while True:
            process = self._process
            assert process is not None
            try:
                return await process.exchange(event, timeout=self._answer_timeout)
            except ScriptTimeout as error:
                if error.delivered:
                    _logger.warning("%s", error)
                    await fail(self.agent, event.message, f"timeout: no answer within {error.seconds:g} s")
                    return None
                unread += 1
                if unread > 1:
                    # It owes a line that does not come: it hangs, or has lost count.
                    _logger.warning("%s: it still owes a line, and is killed", error)
                    await process.aclose()
            except ScriptExited as error:
                if self._stopping:
                    # Not settled, so it comes again to the next session of the agent, which closes this one.
                    await asyncio.Event().wait()
                if error.delivered:
                    await fail(self.agent, event.message, error.summary, always=True)
                    return None
                if self._process is process:
                    self._open.clear()
                await self._admitted()

    async def _ask_tick(self) -> Answer | None:
        process = self._process
        assert process is not None
        if process.owes:
            return None
        try:
            return await process.exchange(_TICK, timeout=self._answer_timeout)
        except ScriptTimeout as error:
            _logger.warning("%s", error)
        except ScriptExited:
            # Whoever watches the process knows.
            pass
        return None

    async def _take_late(self, process: ScriptProcess) -> None:
        """Carry out what the script says too late or of its own accord, to the end of its output."""
        while (late := await process.take_late()) is not None:
            message = late.event.message if isinstance(late.event, MessageEvent) else None
            await self._carry_out(late.answer, message)


PythonBehaviour = ScriptBehaviour
"""The name under which gAgent's users know it."""
