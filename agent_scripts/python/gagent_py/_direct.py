"""The agent as a client of the bus: the same hooks, without a bridge in between.

Owns: hooks in the main thread and the connection in another, settings from the environment, signals. Leaves to others:
everything that the bridge does in the same way (`gagent_grpc.bridge`), what is said of an error (`gagent_grpc.cli.exits`).

Hooks stay in the main thread, where signal handlers, event loops and GUI libraries of a script expect to be. Heartbeats
go on while one blocks. Needs Python 3.11 and the package gagent-grpc; imported when direct mode is entered.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from gagent_grpc.bridge.actions import MessageEvent, fail
from gagent_grpc.bridge.child import done
from gagent_grpc.bridge.events import Ending, EventBehaviour
from gagent_grpc.bridge.extension_events import ExtensionEvent
from gagent_grpc.bridge.framing import Answer, BadAction, Noop, parse_line
from gagent_grpc.bridge.supervisor import ONE_AT_A_TIME, run_agent
from gagent_grpc.cli.exits import ExitCode, describe, ended_by_ams, exit_code
from gagent_grpc.client.agent import Agent as BusAgent
from gagent_grpc.errors import BusError, ScriptError
from gagent_py import _stdio

if TYPE_CHECKING:
    from gagent_py._agent import Agent

STOP_GRACE_S = 4.0
"""How long the hook that runs, and then on_stop, may take after Ctrl-C or SIGTERM before each is interrupted."""
SIGNAL_CHECK_S = 0.25
"""How long a signal may go unnoticed while no hook runs."""

_NOTHING = Answer((Noop(),))


def run_direct(agent: Agent) -> None:
    """Connect the agent to the bus and run its hooks until it is stopped or deleted.

    Raises:
        SystemExit: Something went wrong and was said on stderr; the exit code is that of `gagent` (`gagent_grpc.cli.exits`).
            Or a hook raised it.
    """
    try:
        settings = _Settings.from_environment()
    except ValueError as error:
        _end(str(error), ExitCode.USAGE)
    hooks = _Hooks(agent)
    connection = _Connection(hooks, settings)
    with _signals(connection, hooks):
        connection.thread.start()
        hooks.serve()
        connection.thread.join()
    failure = connection.error
    if isinstance(failure, _HookExit):
        raise failure.cause
    if isinstance(failure, BusError):
        _end(describe(failure, name_setting="GAGENT_NAME"), exit_code(failure))
    if failure is not None:
        raise failure
    if connection.ending is Ending.TERMINATED:
        print(ended_by_ams(settings.name), file=sys.stderr)


def _end(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(code)


@dataclass(frozen=True)
class _Settings:
    """What the bridge has from its command line, here from the environment."""

    name: str
    bus: str | None
    """`HOST:PORT`; None for the default of the client."""
    services: tuple[str, ...]
    tick_ms: int
    start: dict[str, Any]
    """The `start` event."""

    @classmethod
    def from_environment(cls) -> _Settings:
        """Read the settings.

        Raises:
            ValueError: One is not a number that makes sense.
        """
        # As under the bridge: programs that this script starts are not this agent, whatever they import.
        name = os.environ.pop("GAGENT_NAME")
        services = tuple(filter(None, (one.strip() for one in os.environ.get("GAGENT_SERVICES", "").split(","))))
        return cls(
            name=name,
            bus=os.environ.get("GAGENT_BUS") or None,
            services=services or (name.partition("@")[0],),
            tick_ms=_number("GAGENT_TICK_MS", 200),
            start={
                "event": "start",
                "system_prompt": os.environ.get("GAGENT_SYSTEM_PROMPT", ""),
                "model": os.environ.get("GAGENT_MODEL") or "gpt-4o-mini",
                "max_tokens": _number("GAGENT_MAX_TOKENS", 200),
                "max_history": _number("GAGENT_MAX_HISTORY", 20),
                "name": name.partition("@")[0],
            },
        )


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.strip().isdecimal():
        raise ValueError(f"{variable} is {text!r}; expected a whole number such as {default}")
    return int(text)


# ---- main thread ---------------------------------------------------------------------------------------------------


class _HookExit(ScriptError):
    """A hook raised what is no Exception: mostly SystemExit.

    Attributes:
        cause: What it raised.
    """

    def __init__(self, cause: BaseException) -> None:
        code = cause.code if isinstance(cause, SystemExit) else type(cause).__name__
        super().__init__(f"the script ended (exit code {0 if code is None else code if isinstance(code, int) else 1})")
        self.cause = cause


class _HookInterrupted(ScriptError):
    """A hook was interrupted, since the agent shall stop and the hook took too long."""


class _Hooks:
    """Runs hooks in the thread that calls `serve`, one after the other, as the connection asks for them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._last_id = 0
        self._thread = threading.get_ident()
        self.is_stopping = False
        self.is_running = False
        """Whether a hook runs."""

    # In the main thread:

    def serve(self) -> None:
        """Run hooks until `close`."""
        while (job := self._next()) is not None:
            line: bytes | None = None
            error: BaseException | None = None
            try:
                self.is_running = True
                try:
                    line = (
                        _stdio.stop(self._agent)
                        if job.event["event"] == "stop"
                        else _stdio.answer(self._agent, job.event)
                    )
                finally:
                    self.is_running = False
            except KeyboardInterrupt as interrupt:
                error = _HookInterrupted("interrupted") if self.is_stopping else _HookExit(interrupt)
            except BaseException as raised:  # It ends the script, once the bus was told.
                error = _HookExit(raised)
            job.finish(line, error)

    def _next(self) -> _Job | None:
        while True:
            # A signal that comes just before the wait begins does not end it, and its handler runs only afterwards.
            with contextlib.suppress(queue.Empty):
                return self._jobs.get(timeout=SIGNAL_CHECK_S)

    # In the connection's thread:

    async def ask(self, event: dict[str, Any]) -> Answer:
        """Have the hook for an event run, and return what it wants done.

        Raises:
            _HookExit: It ended the script.
            _HookInterrupted: It was interrupted.
        """
        self._last_id += 1
        job = _Job({**event, "id": self._last_id}, asyncio.get_running_loop())
        self._jobs.put(job)
        line = await job.future
        answer = parse_line(line) if line is not None else None
        if not isinstance(answer, Answer):
            return _NOTHING
        for action in answer.actions:
            if isinstance(action, BadAction):
                print(f"gagent_py: protocol error, taken as noop: {action.reason}", file=sys.stderr)
        # As under the bridge: this library repeats ids, so nothing is inherited from the message.
        return Answer(answer.actions, self._last_id, answer.extensions)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the hook that runs, when one does: the agent is about to end."""
        self.is_stopping = True
        if self.is_running and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._thread, signal.SIGINT)

    def close(self) -> None:
        """Let `serve` return."""
        self._jobs.put(None)


class _Job:
    """One event on its way to its hook and back."""

    def __init__(self, event: dict[str, Any], loop: asyncio.AbstractEventLoop) -> None:
        self.event = event
        self.future: asyncio.Future[bytes | None] = loop.create_future()
        self._loop = loop

    def finish(self, line: bytes | None, error: BaseException | None) -> None:
        """Hand the result over to the loop; nobody may be there any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve, line, error)

    def _resolve(self, line: bytes | None, error: BaseException | None) -> None:
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(line)


@contextlib.contextmanager
def _signals(connection: _Connection, hooks: _Hooks) -> Any:
    """Make Ctrl-C and SIGTERM a polite stop; the second one interrupts the hook that runs."""
    before: dict[int, Any] = {}

    def on_signal(number: int, frame: object) -> None:
        if not hooks.is_stopping:
            hooks.is_stopping = True
            if hooks.is_running and number == signal.SIGINT:
                # Not `print`, which the signal may have interrupted.
                os.write(2, b"Stopping after this message; Ctrl-C again interrupts it.\n")
            connection.stop()
        elif hooks.is_running:
            raise KeyboardInterrupt

    # Only the main thread may set handlers; in another one the script sees to its end itself.
    with contextlib.suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            # Known before the handler may be called.
            before[number] = signal.getsignal(number)
            signal.signal(number, on_signal)
    _leave_children_alone(before)
    try:
        yield
    finally:
        _restore(before)


def _restore(before: dict[int, Any]) -> None:
    while before:
        signal.signal(*before.popitem())


def _leave_children_alone(before: dict[int, Any]) -> None:
    """Give forked children the handlers in ``before``, as long as there are any.

    A child is not this agent: it ends by what ends it anywhere else, as the workers of multiprocessing have to. A signal that
    comes before it has them waits: the handler of the agent would take it, and the child never hear of it.
    """
    if not hasattr(os, "register_at_fork") or not hasattr(signal, "pthread_sigmask"):
        return
    masks = threading.local()

    def hold() -> None:
        masks.former = signal.pthread_sigmask(signal.SIG_BLOCK, before.keys())

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.former)

    def change() -> None:
        _restore(before)
        release()

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=change)


# ---- the connection's thread ---------------------------------------------------------------------------------------


class _Connection:
    """The agent's session with the bus, in a thread with a loop of its own.

    Attributes:
        error: Why it ended; None when the agent was stopped, or ended well.
        ending: How it ended; None when the agent was stopped, or did not end well.
    """

    def __init__(self, hooks: _Hooks, settings: _Settings) -> None:
        self._hooks = hooks
        self._settings = settings
        self._stop_wanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self.thread = threading.Thread(target=self._run, name="gagent connection", daemon=True)
        self.error: BaseException | None = None
        self.ending: Ending | None = None

    def stop(self) -> None:
        """Stop politely. From any thread, and from a signal handler."""
        self._stop_wanted = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # Raised again in the main thread.
            self.error = error
        finally:
            self._hooks.close()

    async def _live(self) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        if self._stop_wanted:
            return
        settings = self._settings
        agent = BusAgent(settings.name, bus=settings.bus, services=settings.services, limits=ONE_AT_A_TIME)
        behaviour = HookBehaviour(agent, self._hooks, settings.start, tick_ms=settings.tick_ms)
        self.ending = await run_agent(agent, behaviour, bus=settings.bus)


class HookBehaviour(EventBehaviour):
    """Hooks of this process in the place of a child process."""

    def __init__(self, agent: BusAgent, hooks: _Hooks, start_event: dict[str, Any], *, tick_ms: int) -> None:
        super().__init__(agent, agent.name, tick_ms=tick_ms)
        self._hooks = hooks
        self._start_event = start_event
        self._started_with = _NOTHING
        self._is_started = False
        self._exit: _HookExit | None = None
        self._exited = asyncio.Event()

    async def start(self) -> None:
        """Run `on_start`."""
        self._started_with = await self._hooks.ask(self._start_event)
        self._extensions.declare(self._started_with.extensions)
        self._is_started = True

    async def aclose(self) -> None:
        """Interrupt a hook that still runs; there is no more to end, the process is the script's own."""
        self._hooks.interrupt()

    async def _serve(self) -> Ending:
        try:
            await self._carry_out(self._started_with, None)
            if not self._deleted.is_set():
                self._quiet_since = asyncio.get_running_loop().time()
                self._open.set()
            async with asyncio.TaskGroup() as group:
                ends = {group.create_task(self._deleted.wait()), group.create_task(self._exited.wait())}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
        finally:
            self._open.clear()
            await self.stop()
        if self._exit is not None:
            raise self._exit
        return Ending.DELETED

    async def stop(self) -> None:
        """Let the hook that runs come to its end, then run `on_stop`; neither for ever."""
        if not self._is_started or self._exit is not None:
            return
        self._is_started = False
        self._hooks.is_stopping = True
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stop_hook())
            for _ in range(2):
                if await done(stopping, STOP_GRACE_S):
                    return
                self._hooks.interrupt()
            await done(stopping, STOP_GRACE_S)
            stopping.cancel()

    async def _stop_hook(self) -> None:
        with contextlib.suppress(ScriptError):
            await self._carry_out(await self._hooks.ask({"event": "stop"}), None)

    async def _ask(self, event: MessageEvent) -> Answer | None:
        try:
            return await self._hooks.ask(event)
        except _HookInterrupted:
            # Not settled, so it comes again to the next session of the agent, which closes this one.
            await asyncio.Event().wait()
        except _HookExit as error:
            await fail(self.agent, event.message, str(error), always=True)
            self._end_with(error)
        return None

    async def _ask_more(self, event: ExtensionEvent) -> Answer:
        try:
            return await self._hooks.ask(event)
        except _HookExit as error:
            self._end_with(error)
            # Whoever waits for this is told how the script ended, as by the bridge.
            raise

    async def _ask_tick(self) -> Answer | None:
        try:
            return await self._hooks.ask({"event": "tick"})
        except _HookExit as error:
            self._end_with(error)
        except _HookInterrupted:
            pass
        return None

    def _end_with(self, error: _HookExit) -> None:
        self._open.clear()
        self._exit = self._exit or error
        self._exited.set()
