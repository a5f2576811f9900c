"""What a script may use of the machine: memory, CPU time, open files.

Owns: the bounds and setting them for a process. Leaves to others: starting it (`bridge.process`).
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass, fields

from gagent_grpc.errors import ConfigurationError, ScriptError

MEGABYTE = 1_000_000
CPU_GRACE_S = 2
"""Seconds of CPU time from SIGXCPU, which a script may handle, to SIGKILL."""
_SMALLEST = {"memory_mb": 1, "cpu_seconds": 1, "open_files": 8}


@dataclass(frozen=True, slots=True)
class ScriptLimits:
    """Bounds of a script, kept by the kernel; None for the bridge's own.

    They hold for each process of the script, from a moment after its start on, and for what it starts from then on.

    Raises:
        ConfigurationError: A bound is too small to run anything.
    """

    memory_mb: int | None = None
    """Most memory that it may write to, in megabytes of 1,000,000 bytes; beyond that an allocation fails in it."""
    cpu_seconds: int | None = None
    """Most CPU time, in seconds; then it gets SIGXCPU, and SIGKILL 2 s of CPU time later."""
    open_files: int | None = None
    """Most open files, pipes and sockets, its stdin, stdout and stderr among them."""

    def __post_init__(self) -> None:
        """Look at the bounds, also whether there is anybody to keep them."""
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None:
                continue
            smallest = _SMALLEST[one.name]
            if not isinstance(value, int) or value < smallest:
                raise ConfigurationError(f"{one.name} is {value!r}; expected a whole number of at least {smallest}")
            if not hasattr(resource, "prlimit"):
                raise ConfigurationError(f"{one.name} is {value}: limits of scripts need Linux; leave it out")

    def apply(self, pid: int) -> None:
        """Bound the process ``pid``; no harm when it has ended. Where it is bounded more closely already, that stays.

        Not before its start, in the child: between fork and exec a process with threads, such as gRPC has, can wait for
        ever.

        Raises:
            ScriptError: The kernel refused.
        """
        for name, which, soft, hard in self._bounds():
            try:
                with contextlib.suppress(ProcessLookupError):
                    _, allowed = resource.prlimit(pid, which)
                    bounded = allowed != resource.RLIM_INFINITY
                    bounds = (min(soft, allowed), min(hard, allowed)) if bounded else (soft, hard)
                    resource.prlimit(pid, which, bounds)
            except (OSError, ValueError, OverflowError) as error:
                raise ScriptError(f"{name} {getattr(self, name)} cannot be set: {error}") from error

    def _bounds(self) -> Iterator[tuple[str, int, int, int]]:
        """Yield name, resource, soft and hard limit of each bound that is set."""
        if self.memory_mb is not None:
            # Not RLIMIT_AS: Node and Java reserve addresses by the gigabyte that they never write to.
            size = self.memory_mb * MEGABYTE
            yield "memory_mb", resource.RLIMIT_DATA, size, size
        if self.cpu_seconds is not None:
            yield "cpu_seconds", resource.RLIMIT_CPU, self.cpu_seconds, self.cpu_seconds + CPU_GRACE_S
        if self.open_files is not None:
            yield "open_files", resource.RLIMIT_NOFILE, self.open_files, self.open_files
