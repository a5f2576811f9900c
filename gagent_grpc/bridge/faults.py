"""What goes wrong with a script, as errors: it did not answer in time, or it ended."""

from __future__ import annotations

import signal

from gagent_grpc.errors import ScriptError


class ScriptTimeout(ScriptError):
    """A script did not answer an event in time.

    Attributes:
        event: Name of the event, such as `message`.
        seconds: How long was waited.
        delivered: Whether this event was written to the script. When False, the script still owes the line of an event
            before it, and this one may be tried again.
    """

    reason = "timeout"

    def __init__(self, name: str, event: str, seconds: float, *, delivered: bool) -> None:
        before = "" if delivered else " for an earlier event, so the event was not sent"
        super().__init__(f"{name}: the script did not answer `{event}` within {seconds:g} s{before}")
        self.event = event
        self.seconds = seconds
        self.delivered = delivered


class ScriptExited(ScriptError):
    """A script ended, or closed its output, and answers nothing any more.

    Attributes:
        returncode: Exit code, negative for the number of the signal that killed it; None when it could not be reaped.
        stderr_tail: The last lines that it wrote to stderr.
        summary: How it ended, without anything that it wrote: fit for other agents to read.
        delivered: Whether the event that was under way had been written to it. When False, another run of the script
            may be given this event.
    """

    def __init__(
        self, name: str, returncode: int | None, stderr_tail: str, why: str = "", *, delivered: bool = False
    ) -> None:
        summary = f"the script {why or 'ended'} ({describe_exit(returncode)})"
        text = f"{name}: {summary}"
        super().__init__(f"{text}. Last lines on stderr:\n{stderr_tail}" if stderr_tail else text)
        self.returncode = returncode
        self.stderr_tail = stderr_tail
        self.summary = summary
        self.delivered = delivered


def describe_exit(returncode: int | None) -> str:
    """Return an exit status in words: `exit code 3`, `killed by SIGKILL`."""
    if returncode is None:
        return "not ended"
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"
