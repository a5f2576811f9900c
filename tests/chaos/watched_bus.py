"""`gagent serve` that also tells how many asyncio tasks it has, and gives back what it does not use: neither is seen from outside.

Run in the place of `python -m gagent_grpc`. At SIGUSR1 it collects its garbage and returns free memory to the system, so that its
resident memory is what it holds, and writes the number of its tasks to the file that CHAOS_TASKS_FILE names.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from gagent_grpc.cli.main import main

TASKS_FILE = "CHAOS_TASKS_FILE"
"""Environment variable that names the file."""


def _tell(number: int, frame: FrameType | None) -> None:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
    path = Path(os.environ[TASKS_FILE])
    draft = path.with_suffix(".draft")
    draft.write_text(str(len(asyncio.all_tasks())))
    draft.replace(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _tell)
    main()
