"""One script as a child process: starting it, exchanging lines with it, and ending it for certain.

Owns: the child, its pipes, and which event a line belongs to. Leaves to others: what a line means (`bridge.framing`),
and what to do about answers, time-outs and deaths (`bridge.behaviour`).

Reading never waits for writing: a task of its own takes the child's output from start to end, another one its stderr.
An event is written only when the line that the event before it owes has come, so that at most one line is owed at any
time: a late answer is recognised as what it is, whether the script repeats ids or not.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

from gagent_grpc.bridge.child import CHUNK_BYTES, LINES_PER_TURN, Child, LastWords, Throttle, done, read_some
from gagent_grpc.bridge.command import script_environment
from gagent_grpc.bridge.faults import ScriptExited, ScriptTimeout, describe_exit
from gagent_grpc.bridge.framing import (
    Answer,
    BadAction,
    Blank,
    LineSplitter,
    Noise,
    OverlongLine,
    encode_event,
    max_line_bytes,
    parse_line,
)
from gagent_grpc.bridge.guard import Guard
from gagent_grpc.bridge.limits import ScriptLimits
from gagent_grpc.bridge.settling import Settling
from gagent_grpc.errors import ScriptError

ANSWER_TIMEOUT_S = 120.0
"""How long an event waits for its line; a call of a language model may take a minute."""
STOP_GRACE_S = 4.0
"""How long a script may take from its `stop` event to its end, before SIGTERM."""
STOP_TO_EOF_S = 1.0
"""How long of that its stdin stays open: some scripts know the end of their input and no `stop`."""
TERM_WAIT_S = 1.5
"""How long it may take from SIGTERM to its end, before SIGKILL."""
KILL_WAIT_S = 1.0
"""How long the kernel may take to end a killed process."""
DRAIN_S = 0.5
"""How long the readers may take after the child's end, where a stranger keeps its pipes open."""
EOF_TO_EXIT_S = 2.0
"""How long a script may live on after it closed its stdout."""
LONG_LINE_BYTES = 64 * 1024
"""A line beyond that is parsed beside the loop."""
MAX_LATE_ANSWERS = 64
"""Late and unsolicited lines that wait to be taken; when there are more, the child's output is not read."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """A line that came when nobody waited for it."""

    answer: Answer
    event: Mapping[str, Any] | None
    """The event that it belongs to; None when the script wrote it of its own accord, or one cannot tell."""


class ScriptProcess:
    """A running script and the lines exchanged with it.

    Use it as a context manager, or call `start` and, whatever happens then, `aclose`. `stop` is the polite end.
    Answers that come late, and lines that the script writes of its own accord, wait for `take_late`, which has to be
    awaited by a task of its own: when they pile up, the script's output is not read any more.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        inherit: Sequence[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        line_limit: int | None = None,
        limits: ScriptLimits | None = None,
    ) -> None:
        """Prepare the script; nothing runs before `start`.

        Args:
            name: Name of the agent, for logs and errors.
            command: Program and arguments, as `script_command` makes them; no shell reads them.
            env: Environment variables to add to this process's own.
            inherit: Names of the variables of this process that it gets, as `script_environment` has it; None for all.
            cwd: Working folder; this process's own by default.
            line_limit: Longest line of the script, in bytes; by default the one for messages of 1,000,000 bytes.
            limits: What it may use of the machine; no bounds by default.
        """
        self.name = name
        self._command = list(command)
        self._env = env
        self._inherit = inherit
        self._limits = limits or ScriptLimits()
        self._cwd = cwd
        self._line_limit = max_line_bytes() if line_limit is None else line_limit
        self._child: Child | None = None
        self._guard = Guard(None)
        self._readers: list[asyncio.Task[None]] = []
        self._watcher: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()
        self._why_ended = ""
        # Held by the one exchange that is under way, and by the one stop.
        self._turn = asyncio.Lock()
        self._stopping = asyncio.Lock()
        self._last_id = 0
        # The event whose line is awaited, or the one that timed out and still owes it; never both.
        self._awaited: _Outstanding | None = None
        self._owed: _Outstanding | None = None
        self._answered: _Outstanding | None = None
        self._settling = Settling()
        self._settled_at = 0.0
        self._resettled = asyncio.Event()
        self._late: deque[tuple[LateAnswer, int]] = deque()
        self._late_bytes = 0
        self._late_changed = asyncio.Event()
        self._last_words = LastWords(name)
        self._complaints = Throttle(burst=20, per_second=2.0)

    # --- State ---

    @property
    def pid(self) -> int | None:
        """Process id, which is also the id of the process group; None before `start`."""
        return self._child.pid if self._child else None

    @property
    def ended(self) -> bool:
        """Whether the script has ended and everything that it wrote has been read."""
        return self._ended.is_set()

    @property
    def returncode(self) -> int | None:
        """Exit code, negative for the number of a signal; None while the process lives."""
        return self._child.returncode if self._child else None

    @property
    def owes(self) -> bool:
        """Whether a line is owed: of the event under way, or of one that timed out. No tick should be sent then."""
        return self._awaited is not None or self._owed is not None

    @property
    def stderr_tail(self) -> str:
        """The last lines that the script wrote to stderr."""
        return self._last_words.tail

    # --- Life ---

    async def __aenter__(self) -> ScriptProcess:
        """Start the script."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill what is left of it."""
        await self.aclose()

    async def start(self) -> None:
        """Start the process. The script says by its answer to the `start` event whether it is well.

        Raises:
            ScriptError: The program cannot be started, or a limit cannot be set.
            RuntimeError: It was started before; another run needs another object.
        """
        if self._child is not None:
            raise RuntimeError(f"{self.name}: a ScriptProcess runs once")
        loop = asyncio.get_running_loop()
        self._guard = Guard.post()
        try:
            self._child = child = await self._spawn(loop)
        except BaseException:
            self._guard.dismiss()
            raise
        self._guard.watch(child.pid)
        self._readers = [
            asyncio.create_task(self._read_answers(child.stdout), name=f"{self.name}: stdout"),
            asyncio.create_task(self._last_words.read(child.stderr), name=f"{self.name}: stderr"),
        ]
        self._watcher = asyncio.create_task(self._watch(child), name=f"{self.name}: watch")
        _logger.info("%s: script started, pid %d", self.name, child.pid, extra={"agent": self.name})
        # Last: when it is refused, `aclose` finds everything that there is to end.
        self._limits.apply(child.pid)

    async def _spawn(self, loop: asyncio.AbstractEventLoop) -> Child:
        try:
            _, child = await loop.subprocess_exec(
                lambda: Child(CHUNK_BYTES, loop),
                *self._command,
                env=script_environment(self._env, self._inherit),
                cwd=self._cwd,
                # A session, and so a process group, of its own: Ctrl-C at the terminal does not reach the script, and
                # everything that it starts can be killed with it.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            missing = error.filename or self._command[0]
            raise ScriptError(f"{self.name}: cannot start {missing!r}: there is no such program or folder") from error
        except (OSError, ValueError) as error:
            raise ScriptError(f"{self.name}: cannot start {self._command[0]!r}: {error}") from error
        return child

    async def wait(self) -> int | None:
        """Wait until the script has ended and everything that it wrote has been read; return `returncode`."""
        await self._ended.wait()
        return self.returncode

    async def stop(self, grace: float = STOP_GRACE_S) -> int | None:
        """End the script: `stop` event, end of its stdin, SIGTERM, SIGKILL, each when the one before did not do.

        The signals go to its whole process group, and what it leaves behind of that is killed in any case. An event
        that is under way may still be answered within ``grace``. Calling it again, or meanwhile, is fine.

        Args:
            grace: Seconds from the `stop` event to SIGTERM.

        Returns:
            `returncode`, within ``grace`` + 3.5 s (7.5 s by default).
        """
        async with self._stopping:
            child = self._child
            if child is not None and not child.exited.done():
                child.stdin.write(encode_event({"event": "stop"}))
                until_eof = min(grace, STOP_TO_EOF_S)
                if not await done(child.exited, until_eof):
                    child.stdin.close()
                    if not await done(child.exited, grace - until_eof):
                        child.signal_group(signal.SIGTERM)
                        if not await done(child.exited, TERM_WAIT_S):
                            _logger.warning("%s: script ignores SIGTERM", self.name, extra={"agent": self.name})
            await self.aclose()
        return self.returncode

    async def aclose(self) -> None:
        """Kill the process group if it lives, reap the child, end the tasks and close the pipes. May be repeated."""
        child, watcher = self._child, self._watcher
        if child is None or watcher is None:
            self._finish()
            return
        child.signal_group(signal.SIGKILL)
        if not await done(watcher, KILL_WAIT_S + DRAIN_S):
            watcher.cancel()
        self._finish()
        for result in await asyncio.gather(watcher, *self._readers, return_exceptions=True):
            if isinstance(result, Exception):
                _logger.error("%s: a task of its bridge failed", self.name, exc_info=result, extra={"agent": self.name})
        # The transport closes its descriptors in a later turn of the loop.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await child.wait_closed()

    # --- Lines ---

    async def exchange(self, event: Mapping[str, Any], *, timeout: float = ANSWER_TIMEOUT_S) -> Answer:
        """Send ``event`` with an `id` added, and return the line that answers it. One exchange at a time; others wait.

        When the script still owes a line, that is waited for first, for ``timeout`` seconds too. After a time-out, or
        when the caller is cancelled, the line that this event owes goes to `take_late`.

        Args:
            event: An event that owes a line: `start`, `message` or `tick`.
            timeout: Seconds to wait for the line.

        Raises:
            ScriptTimeout: The line did not come in time. Twice in a row with `delivered` False, and the script has
                probably lost count: start it anew.
            ScriptExited: The script has ended, or ends without answering.
        """
        kind = str(event.get("event"))
        async with self._turn:
            child = self._running_child()
            try:
                async with asyncio.timeout(timeout):
                    if self._owed is not None:
                        await self._owed.over.wait()
                await self._pause()
                async with asyncio.timeout(timeout):
                    await self._drain(child)
            except TimeoutError:
                raise ScriptTimeout(self.name, kind, timeout, delivered=False) from None
            self._running_child()
            self._last_id += 1
            outstanding = _Outstanding(self._last_id, event)
            child.stdin.write(encode_event({**event, "id": outstanding.id}))
            self._awaited = outstanding
            try:
                async with asyncio.timeout(timeout):
                    await outstanding.over.wait()
            except TimeoutError:
                if outstanding.answer is None:
                    raise ScriptTimeout(self.name, kind, timeout, delivered=True) from None
            except asyncio.CancelledError:
                if outstanding.answer is not None:
                    # It came in the same turn of the loop. Nobody will take it from here, and it may send messages.
                    self._keep_late(outstanding.answer, event, 0)
                raise
            finally:
                # Time-out or cancellation: the script has the event, so its line is still to come.
                if self._awaited is outstanding:
                    self._awaited, self._owed = None, outstanding
            if outstanding.answer is None:
                raise self.exit_error(delivered=True)
            return outstanding.answer

    async def quiet(self, timeout: float) -> bool:
        """Wait until no line is owed, for ``timeout`` seconds; return whether none is. No exchange is held back."""
        if (outstanding := self._awaited or self._owed) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await outstanding.over.wait()
        return not self.owes

    async def take_late(self) -> LateAnswer | None:
        """Return the next late or unsolicited line that does something; wait for one; None after the script's end."""
        while not self._late:
            if self._ended.is_set():
                return None
            self._late_changed.clear()
            await self._late_changed.wait()
        late, size = self._late.popleft()
        self._late_bytes -= size
        self._late_changed.set()
        return late

    async def _pause(self) -> None:
        """Wait until no second line for the event before will come any more; the pause is short, and no time-out counts it."""
        loop = asyncio.get_running_loop()
        while (pause := self._settled_at - loop.time()) > 0 and not self._ended.is_set():
            # A line that comes meanwhile makes it longer or shorter.
            self._resettled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._resettled.wait()

    async def _drain(self, child: Child) -> None:
        """Wait until the script has read what was sent before."""
        try:
            await child.stdin.drain()
            # The transport knows some turns of the loop before the writer does, and drops what is written meanwhile.
            is_closed = child.stdin.is_closing()
        except (BrokenPipeError, ConnectionResetError):
            is_closed = True
        if is_closed:
            # It closed its stdin, which mostly means that it is about to end; if not, nothing can be asked of it.
            if not self._stopping.locked() and not await done(child.exited, EOF_TO_EXIT_S):
                self._why_ended = "closed its stdin and went on"
                child.signal_group(signal.SIGKILL)
            await self._ended.wait()

    def _running_child(self) -> Child:
        if self._child is None:
            raise RuntimeError(f"{self.name}: the script was not started")
        if self._ended.is_set():
            raise self.exit_error()
        return self._child

    def exit_error(self, *, delivered: bool = False) -> ScriptExited:
        """Return the end of the script as an error; ``delivered`` when it had the event that is under way."""
        return ScriptExited(self.name, self.returncode, self.stderr_tail, self._why_ended, delivered=delivered)

    async def _read_answers(self, stdout: asyncio.StreamReader) -> None:
        splitter = LineSplitter(self._line_limit)
        while data := await read_some(stdout):
            await self._take_lines(splitter.feed(data))
        await self._take_lines(splitter.finish())

    async def _take_lines(self, lines: list[bytes | OverlongLine]) -> None:
        for number, line in enumerate(lines):
            if number % LINES_PER_TURN == 0:
                await asyncio.sleep(0)
            # Millions of numbers take seconds, and there are other agents on this loop.
            is_long = isinstance(line, bytes) and len(line) > LONG_LINE_BYTES
            match await asyncio.to_thread(parse_line, line) if is_long else parse_line(line):
                case Noise(reason, excerpt):
                    self._complain(f"line ignored ({reason}): {excerpt}")
                case Answer() as answer:
                    self._match(answer, len(line) if isinstance(line, bytes) else 0)
                case Blank():
                    pass
            while len(self._late) >= MAX_LATE_ANSWERS or self._late_bytes > self._line_limit:
                self._late_changed.clear()
                await self._late_changed.wait()

    def _match(self, answer: Answer, size: int) -> None:
        """Give ``answer`` to the event that it belongs to."""
        for action in answer.actions:
            if isinstance(action, BadAction):
                excerpt = f": {action.excerpt}" if action.excerpt else ""
                self._complain(f"protocol error, taken as noop: {action.reason}{excerpt}")
        if answer.id is not None and not self._was_given(answer.id):
            self._complain(
                f"protocol error: no event has the id {ascii(answer.id)[:40]}; taken as an answer without one"
            )
            answer = replace(answer, id=None)
        outstanding = self._awaited or self._owed
        if outstanding is not None and (answer.id is None or outstanding.bears(answer.id)):
            is_late = outstanding is self._owed
            self._awaited = self._owed = None
            self._answered = outstanding
            if answer.id is None:
                self._settle(self._settling.answered)
            outstanding.answer = answer
            outstanding.over.set()
            if not is_late:
                return
            event: Mapping[str, Any] | None = outstanding.event
        elif answer.id is not None and self._answered is not None and self._answered.bears(answer.id):
            # One more line for an event that has its answer.
            event = self._answered.event
        else:
            if answer.id is None and outstanding is None:
                self._settle(self._settling.unsolicited)
            event = None
        self._keep_late(answer, event, size)

    def _was_given(self, answered: int | str) -> bool:
        """Whether an event had this id: some scripts number their lines for themselves, or mark them at random."""
        if isinstance(answered, str):
            # A longer one is none; Python refuses to make numbers of thousands of digits.
            return answered.isascii() and answered.isdecimal() and len(answered) < 20 and self._was_given(int(answered))
        return 1 <= answered <= self._last_id

    def _settle(self, came: Callable[[float], float]) -> None:
        """Note that a line without id came, and how long the next event waits because of it."""
        self._settled_at = came(asyncio.get_running_loop().time())
        self._resettled.set()

    def _keep_late(self, answer: Answer, event: Mapping[str, Any] | None, size: int) -> None:
        if not answer.idle:
            self._late.append((LateAnswer(answer, event), size))
            self._late_bytes += size
            self._late_changed.set()

    def _complain(self, text: str) -> None:
        self._complaints.log(logging.WARNING, self.name, text)

    # --- End ---

    async def _watch(self, child: Child) -> None:
        """Notice the end of the process or of its output, and then end everything."""
        output = self._readers[0]
        try:
            await asyncio.wait({child.exited, output}, return_when=asyncio.FIRST_COMPLETED)
            if not await done(child.exited, EOF_TO_EXIT_S):
                # Its output has ended and it has not: nothing that it does can be heard any more.
                self._why_ended = "closed its stdout and went on"
                child.signal_group(signal.SIGKILL)
                await done(child.exited, KILL_WAIT_S)
            # What it wrote before its end is in the pipes. EOF need not come: somebody else may hold the other ends.
            await asyncio.wait(self._readers, timeout=DRAIN_S)
        finally:
            self._finish()

    def _finish(self) -> None:
        """Let everybody know that the script has ended, and close its pipes. Repeating it does nothing."""
        if self._ended.is_set():
            return
        self._guard.dismiss()
        for reader in self._readers:
            reader.cancel()
        if self._child is not None:
            self._child.close()
            status = describe_exit(self.returncode)
            _logger.info("%s: script ended, %s", self.name, status, extra={"agent": self.name})
        self._ended.set()
        for outstanding in (self._awaited, self._owed):
            if outstanding is not None:
                outstanding.over.set()
        self._awaited = self._owed = None
        self._late_changed.set()
        self._resettled.set()


@dataclass(slots=True, eq=False)
class _Outstanding:
    """An event that was sent."""

    id: int
    event: Mapping[str, Any]
    answer: Answer | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the answer came, or when it never will."""

    def bears(self, answered: int | str) -> bool:
        """Whether an answer's id is this event's; scripts may make a text of the number."""
        return answered in (self.id, str(self.id))
