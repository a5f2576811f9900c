"""Whether the files of a database are still those under its name.

Owns: that comparison. Leaves to others: opening and writing them (`storage.sqlite_file`). A file that somebody removes or
replaces lives on for whoever has it open: everything could be written to it, and the next start would find nothing of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from gagent_grpc.errors import StoreUnavailable

_log = logging.getLogger(__name__)


class FileNames:
    """The files of one open database, each as it was when it was seen first."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Watch ``paths``; one that is not there yet is taken as it comes."""
        self._paths = tuple(paths)
        self._seen: dict[Path, tuple[int, int]] = {}

    def check(self) -> None:
        """Make sure that what was written can be found again.

        Raises:
            StoreUnavailable: A file was removed, or there is another one in its place.
        """
        for path in self._paths:
            try:
                found = os.stat(path)
            except FileNotFoundError:
                identity = None
            else:
                identity = (found.st_dev, found.st_ino)
            if identity is None and path not in self._seen:
                continue
            if identity is None or self._seen.setdefault(path, identity) != identity:
                text = (
                    f"{path}: was {'replaced' if identity else 'removed'} while the bus had it open, so nothing more is "
                    f"accepted; put the files of the database back where that is wrong, and restart the bus"
                )
                _log.error("%s", text)
                raise StoreUnavailable(text)
