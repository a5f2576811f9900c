"""The agent as a child of the bridge: JSON lines on what were stdin and stdout.

Owns: the two descriptors of the protocol and the loop that answers events. Leaves to others: what hooks return
(`_hooks`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gagent_py import _hooks
from gagent_py._message import ACLMessage
from gagent_py._tasks import ACPMessage, Task, TaskEvent

if TYPE_CHECKING:
    from gagent_py._actions import Action
    from gagent_py._agent import Agent

MARKER = "GAGENT_BRIDGE"
"""Environment variable that the bridge sets to `stdio` for its children."""
MAX_LINE_BYTES = 6 * 1_000_000 + 64 * 1024
"""Longest line that a bridge takes: that of a message of the largest size, all of it escaped."""


class Channel:
    """Private copies of the descriptors 0 and 1, with the lines that go over them.

    Attributes:
        taken: The one channel of this process; None while the descriptors are where they were.
    """

    taken: ClassVar[Channel | None] = None

    def __init__(self) -> None:
        """Copy the descriptors and put the null device and stderr in their place."""
        # os.dup makes copies that no program started from here inherits.
        self._input = os.dup(0)
        self._output = os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        try:
            os.dup2(2, 1)
        except OSError:  # There is no stderr.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.close(null)
        # sys.stdin and sys.stdout stay the objects that they were, since loggers and others may hold them: they read
        # and write the descriptors 0 and 1. What a print left in the buffer follows to stderr. Output that the
        # encoding of the locale does not have must not end the agent.
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace", line_buffering=True)
        # closefd=False: `forget` closes the descriptor, and the reader must not close its successor once more.
        self._lines = open(self._input, "rb", closefd=False)  # noqa: SIM115  # Lives as long as the process.

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines of the bridge, cut at byte 0x0A only, until it closes its end."""
        return iter(self._lines)

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._output, view) :]

    def forget(self) -> None:
        """Close the copies. For forked children: one that kept them would hold the pipe open after the agent's end."""
        os.close(self._input)
        os.close(self._output)


def take_when_marked() -> None:
    """Take the descriptors when the bridge is the parent; otherwise leave the process as it is."""
    if os.environ.get(MARKER) != "stdio":
        return
    # Children of this script are no children of the bridge, whatever they import.
    del os.environ[MARKER]
    os.environ.pop("GAGENT_NAME", None)
    take()


def take() -> Channel:
    """Take the descriptors of the protocol, at most once in a process."""
    if Channel.taken is not None:
        return Channel.taken
    channel = Channel.taken = Channel()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=channel.forget)
    # Ctrl-C goes to every process of the terminal's group. The bridge answers it with a `stop` event, and only a script
    # that is still alive can run its on_stop. A handler that does nothing, and not SIG_IGN: programs that the script
    # starts would inherit that. Only the main thread may set handlers.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, lambda *_: None)
    return channel


def serve(agent: Agent, channel: Channel) -> bool:
    """Answer events until `stop` or the end of the input; then call `on_stop`.

    Returns:
        Whether any event came.

    Raises:
        SystemExit: `on_start` raised; its traceback is on stderr and the exit code is 1.
    """
    seen = False
    try:
        for line in channel:
            event = _parse(line)
            if event is None:
                continue
            seen = True
            if event["event"] == "stop":
                break
            channel.write(answer(agent, event))
        if seen:
            _stop(agent, channel)
    except BrokenPipeError:
        # The bridge is gone. What the agent holds is still to be put away.
        _stop(agent, channel)
    return seen


def answer(agent: Agent, event: dict[str, Any]) -> bytes:
    """Return the line that answers ``event``. Every event but `stop` owes one, unknown ones of later bridges too."""
    kind = event["event"]
    if kind == "start":
        config = {key: value for key, value in event.items() if key not in ("event", "id")}
        try:
            return _line(_hooks.start(agent, config), event, _hooks.extensions(agent))
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
    if kind == "message":
        msg = ACLMessage()
        try:
            msg = ACLMessage.from_msg(event["msg"])
            return _line(_hooks.message(agent, msg), event)
        except Exception as error:
            traceback.print_exc()
            return _line(_hooks.failed_message(msg, error), event)
    if kind == "delegate":
        task = Task.from_event(event)
        try:
            return _line(_hooks.delegate(agent, task), event)
        except Exception as error:
            traceback.print_exc()
            return _line(_hooks.failed_task(task, error), event)
    if kind == "acp":
        told = ACPMessage()
        try:
            told = ACPMessage.from_msg(event["msg"])
            return _line(_hooks.acp(agent, told), event)
        except Exception as error:
            traceback.print_exc()
            return _line(_hooks.failed_acp(told, error), event)
    if kind == "task":
        try:
            return _line(_hooks.task_event(agent, TaskEvent.from_event(event)), event)
        except Exception:
            traceback.print_exc()
    if kind == "tick":
        try:
            return _line(_hooks.tick(agent), event)
        except Exception:
            traceback.print_exc()
    return _line([{"action": "noop"}], event)


def stop(agent: Agent) -> bytes | None:
    """Call `on_stop` and return the line for what it wants done; None for nothing, and when it raised."""
    try:
        actions = _hooks.stop(agent)
        return _line(actions, {}) if actions else None
    except Exception:
        traceback.print_exc()
        return None


def _stop(agent: Agent, channel: Channel) -> None:
    line = stop(agent)
    if line is not None:
        with contextlib.suppress(BrokenPipeError):
            channel.write(line)


def _line(actions: list[Action], event: dict[str, Any], extensions: Sequence[str] = ()) -> bytes:
    """Return one line of ASCII: no character in it can be taken for a newline, or depends on the locale.

    Raises:
        TypeError: An action holds what JSON does not have.
        ValueError: Likewise; or the line is longer than a bridge takes.
    """
    answer: dict[str, Any] = dict(actions[0]) if len(actions) == 1 else {"actions": actions}
    if extensions:
        answer["extensions"] = list(extensions)
    if "id" in event:
        answer["id"] = event["id"]
    line = json.dumps(answer, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"the answer is a line of {len(line):,} bytes; a bridge takes at most {MAX_LINE_BYTES:,}")
    return line


def _parse(line: bytes) -> dict[str, Any] | None:
    if line.startswith(b"\xef\xbb\xbf"):
        line = line[3:]
    if not line.strip():
        return None
    try:
        event = json.loads(line.decode("utf-8"))
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            return event
    except (ValueError, RecursionError):
        pass
    print(f"gagent_py: not an event: {line[:80]!r}", file=sys.stderr)
    return None
