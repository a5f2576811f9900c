"""Who ends a script when its bridge was killed: a shell of its own that waits at the other end of a pipe.

A bridge that ends in any way but SIGKILL ends its scripts itself. Of SIGKILL it hears nothing, and a script that ignores
the end of its stdin, or what it has started, would live on for ever. The signal that Linux can send at the death of a
parent (PR_SET_PDEATHSIG) reaches one process and not its group, comes at the death of a thread, and asks for code
between fork and exec; so it is a third process that looks after both: it sleeps in a read until the bridge says a word, or
until the pipe closes because there is no bridge any more.

Owns: that process. Leaves to others: every end of a script that its bridge lives to see (`bridge.process`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess

POLITE_S = 2
"""Seconds after its bridge's death that a script has to end by itself, by the end of its stdin."""
TERM_S = 1
"""Seconds from SIGTERM to SIGKILL then; so nothing of a group lives longer than 3 s."""

_SHELL = "/bin/sh"
# The first shell ends at once, so that the second one is nobody's child: whoever counts the children of a bridge finds
# scripts, and nothing is left to be reaped. First line of the pipe: the process group. Second one: it has ended.
_PROGRAM = f"""exec 3<&0
(
  read -r group <&3 || exit 0
  read -r word <&3 && exit 0
  for second in {" ".join(str(number) for number in range(POLITE_S))}; do
    kill -s 0 -- "-$group" || exit 0
    sleep 1
  done
  kill -s TERM -- "-$group" || exit 0
  sleep {TERM_S}
  kill -s KILL -- "-$group"
) </dev/null >/dev/null 2>&1 &
"""

_logger = logging.getLogger(__name__)


class Guard:
    """The one who outlives the bridge and ends one process group after it.

    Not handled: what has left the group for a session of its own, as daemons do; a guard that was killed itself; a copy of
    the bridge's process that was made by fork and lives on, since it holds the pipe, too.
    """

    def __init__(self, pipe: int | None) -> None:
        """Take over this end of the pipe; None where there is no guard."""
        self._pipe = pipe

    @classmethod
    def post(cls) -> Guard:
        """Start a guard, before the script, so that there is no moment at which the script has none.

        It takes about 2 ms, and is not asynchronous, so that a start that is cancelled leaves nothing. Where it cannot be
        started, that is logged, and the guard returned does nothing.
        """
        if os.getpid() == 1:
            # The first process of a container: the kernel ends all others with it, and nobody would reap the guard.
            return cls(None)
        reading, writing = os.pipe()
        try:
            subprocess.run(  # noqa: S603  # A fixed program and no input.
                [_SHELL, "-c", _PROGRAM],
                stdin=reading,
                # Neither Ctrl-C nor a signal to the bridge's group reaches it; it keeps no folder in use.
                start_new_session=True,
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(writing)
            _logger.warning("nothing ends scripts when this process is killed: cannot start %s: %s", _SHELL, error)
            return cls(None)
        finally:
            os.close(reading)
        return cls(writing)

    def watch(self, group: int) -> None:
        """Name the process group to end."""
        self._say(f"{group}\n")

    def dismiss(self) -> None:
        """Let it go: there is nothing to end any more. Idempotent."""
        self._say("over\n")
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _say(self, line: str) -> None:
        if self._pipe is not None:
            # It was killed. Two short lines always find room in the pipe.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, line.encode("ascii"))
