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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagent_grpc.bridge.actions import MessageEvent, fail
from gagent_grpc.bridge.child import done
from gagent_grpc.bridge.command import script_command
from gagent_grpc.bridge.events import CLOSE_GRACE_S, GIVE_UP_S, Ending, EventBehaviour
from gagent_grpc.bridge.extension_events import ExtensionEvent
from gagent_grpc.bridge.faults import ScriptExited, ScriptTimeout
from gagent_grpc.bridge.framing import Answer, encode_event
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.process import ANSWER_TIMEOUT_S, STOP_GRACE_S, ScriptProcess
from gagent_grpc.bridge.sources import SourceFiles
from gagent_grpc.client.agent import Agent
from gagent_grpc.errors import ConfigurationError, ScriptError

START_WARNING_S = 5.0
"""How long a script may take to answer `start` before whoever started it is told."""

RELOAD_WAIT_S = 10.0
"""How long the event under way may still be answered by a script that has changed, before it is told to stop."""

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
        limits: ScriptLimits | None = None,
        inherit: Sequence[str] | None = None,
        reload: bool = False,
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
            limits: What it may use of the machine; no bounds by default.
            inherit: Names of the variables of this process that it gets, as `script_environment` has it; None for all.
            reload: Whether it is started anew when its file changes, or a Python module beside it that it imports. The
                event under way is answered first, or, after 10 s and ``grace``, given to the new run. A change that
                cannot run leaves the old script running, or the mail waiting for the next change.

        Raises:
            ValueError: ``name`` is not the agent's own, neither script nor command is given, or ``reload`` without a script.
            ConfigurationError: ``config`` holds what JSON does not have.
        """
        super().__init__(agent, name, tick_ms=tick_ms)
        if script_path is None and not command:
            raise ValueError("script_path is None; expected a script, or a command that runs it")
        if script_path is None and reload:
            raise ValueError("reload without script_path; expected the script whose changes count")
        self._script_path = script_path
        self._command = list(command) if command else None
        self._limits = limits
        self._inherit = inherit
        self._reload = reload
        self._sources: SourceFiles | None = None
        # The run that a changed script takes the place of: what it did not answer, its successor gets.
        self._replaced: ScriptProcess | None = None
        self._run_handlers: list[Callable[[], None]] = []
        self._runs = 0
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
        for key, value in (config or {}).items():
            _check_config(key, value)
            self._start_event.setdefault(key, value)
        self._process: ScriptProcess | None = None
        self._started_with: Answer | None = None
        self._restarts: deque[float] = deque()
        self._stopping = False

    # ---- life ------------------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """Process id of the present run; None before the first."""
        return self._process.pid if self._process is not None else None

    @property
    def runs(self) -> int:
        """How often the script was started and has answered `start`."""
        return self._runs

    @property
    def running(self) -> bool:
        """Whether a run of the script takes events at present."""
        return self._open.is_set()

    def on_run(self, handler: Callable[[], None]) -> Callable[[], None]:
        """Register the decorated function; it is called when a run of the script begins or ends."""
        self._run_handlers.append(handler)
        return handler

    def _tell_run(self) -> None:
        for handler in self._run_handlers:
            handler()

    async def start(self) -> None:
        """Start the script and wait for its answer to `start`.

        Raises:
            ScriptError: There is no such script, it ended (with its exit code and last words), or it did not answer.
        """
        command = self._command
        if command is None:
            assert self._script_path is not None
            command = script_command(self._script_path)
        if self._reload and self._sources is None:
            assert self._script_path is not None
            # Before the script is read, so that no change is missed.
            self._sources = SourceFiles(self._script_path)
        process = ScriptProcess(self.name, command, env=self._env, inherit=self._inherit, limits=self._limits)
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
        self._runs += 1
        self._extensions.declare(answer.extensions)

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
            if process is self._replaced:
                await self._give_up_requests("the script has changed and was started anew", seconds=GIVE_UP_S)
                await self._start_changed()
                continue
            if process.returncode == 0:
                return Ending.STOPPED
            error = process.exit_error()
            await self._give_up_requests(error.summary, seconds=GIVE_UP_S)
            await self._restart(error)

    async def _live(self, process: ScriptProcess, started_with: Answer) -> None:
        """Serve one run of the script until it ended, deleted the agent or has changed; end it in any case."""
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._take_late(process))
            ended = group.create_task(process.wait())
            deleted = group.create_task(self._deleted.wait())
            changed = group.create_task(self._changed())
            try:
                await self._carry_out(started_with, None)
                if not self._deleted.is_set():
                    self._quiet_since = asyncio.get_running_loop().time()
                    self._open.set()
                    self._tell_run()
                await asyncio.wait({ended, deleted, changed}, return_when=asyncio.FIRST_COMPLETED)
                if changed.done() and not ended.done() and not deleted.done():
                    self._open.clear()
                    self._tell_run()
                    self._replaced = process
                    await process.quiet(RELOAD_WAIT_S)
                    await process.stop(self._grace)
            finally:
                self._open.clear()
                self._tell_run()
                await self.stop()
                # Its last lines, such as what its on_stop says.
                await done(late, CLOSE_GRACE_S)
                for task in (late, ended, deleted, changed):
                    task.cancel()

    async def _changed(self) -> None:
        """Wait until the script has changed, and might run; for ever where nobody asked for that."""
        if self._sources is None:
            await asyncio.Event().wait()
        assert self._sources is not None
        while True:
            names = ", ".join(path.name for path in await self._sources.changed())
            if (defect := self._sources.defect()) is None:
                _logger.info("%s: started anew, since %s changed", self.name, names, extra={"agent": self.name})
                return
            _logger.warning("%s: not started anew: %s", self.name, defect, extra={"agent": self.name})

    async def _start_changed(self) -> None:
        """Start the script that has changed; when that fails, wait for the next change."""
        while True:
            try:
                await self.start()
            except ScriptError as error:
                _logger.warning(
                    "%s; its mail waits for the next change of the script", error, extra={"agent": self.name}
                )
                await self._changed()
            else:
                return

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
                if self._sources is None:
                    raise error
                _logger.warning("%s; its mail waits for a change of the script", error, extra={"agent": self.name})
                await self._changed()
                await self._start_changed()
                return
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
        try:
            return await self._exchange(event)
        except ScriptTimeout as error:
            await fail(self.agent, event.message, f"timeout: no answer within {error.seconds:g} s")
        except ScriptExited as error:
            await fail(self.agent, event.message, error.summary, always=True)
        return None

    async def _ask_more(self, event: ExtensionEvent) -> Answer:
        return await self._exchange(event)

    async def _exchange(self, event: MessageEvent | ExtensionEvent) -> Answer:
        """Give an event to the script, and to its next run when this one did not read it any more.

        Raises:
            ScriptTimeout: The script has it, and did not answer in time.
            ScriptExited: The script had it when it ended.
        """
        unread = 0
        while True:
            process = self._process
            assert process is not None
            try:
                return await process.exchange(event, timeout=self._answer_timeout)
            except ScriptTimeout as error:
                if error.delivered:
                    _logger.warning("%s", error)
                    raise
                unread += 1
                if unread > 1:
                    # It owes a line that does not come: it hangs, or has lost count.
                    _logger.warning("%s: it still owes a line, and is killed", error)
                    await process.aclose()
            except ScriptExited as error:
                if self._stopping:
                    # Not settled, so it comes again to the next session of the agent, which closes this one.
                    await asyncio.Event().wait()
                if error.delivered and process is not self._replaced:
                    raise
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
            await self._carry_out(late.answer, message, late.event if isinstance(late.event, ExtensionEvent) else None)


def _check_config(key: Any, value: Any) -> None:
    """Raise where a key of the start event is none, or its value holds what JSON does not have."""
    if not isinstance(key, str):
        raise ConfigurationError(f"config: the key {key!r} is no text")
    try:
        encode_event({key: value})
    except (TypeError, ValueError, RecursionError) as error:
        # Dates are what TOML has and JSON does not.
        raise ConfigurationError(
            f"config.{key} cannot be told to a script: {error}; expected what JSON has, and a date as a text"
        ) from None


PythonBehaviour = ScriptBehaviour
"""The name under which gAgent's users know it."""
