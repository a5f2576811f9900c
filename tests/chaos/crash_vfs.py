"""A disk that remembers in which order it was written and synced, and what a power cut would leave of it.

A process that is killed leaves everything to the kernel; a power cut leaves what was synced. So the real files are
written as always, through a layer of SQLite's own that notes every change, and afterwards the files are rebuilt as they
would be had the power gone at any one of these changes.

Owns: noting and rebuilding. Leaves to others: the load, where to cut, and what must have survived (`power_cut`).
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512
"""Bytes that a disk writes as a whole or not at all."""

_KEPT = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
"""Files that a database needs after a crash. The index of the log is none: it is made anew."""
_FOLDER_IS_SYNCED = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL
"""Files with whose first sync SQLite syncs the folder, too, when it may have made them."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change. `sync folder` has no name; it makes names that came and went durable, as `sync` makes contents."""

    kind: str
    """create, delete, write, truncate, sync, or sync folder."""
    name: str = ""
    offset: int = 0
    """Where a write begins; the new size for truncate."""
    data: bytes = b""


class Disk:
    """What happened to the files of one folder, in order."""

    def __init__(self, base: Mapping[str, bytes]) -> None:
        """Make the record of a folder that holds ``base``, all of it durable."""
        self._base = dict(base)
        self._names = set(base)
        self._lock = threading.Lock()
        self._events: list[Event] = []

    @property
    def position(self) -> int:
        """Changes so far. What somebody knows now has to survive every cut from here on."""
        return len(self._events)

    @property
    def events(self) -> list[Event]:
        """All changes so far."""
        with self._lock:
            return list(self._events)

    def note(self, kind: str, name: str = "", offset: int = 0, data: bytes = b"") -> None:
        """Note a change that was just made."""
        with self._lock:
            self._events.append(Event(kind, name, offset, data))

    def note_opened(self, name: str) -> None:
        """Note that a file is there, which is news unless it was there before."""
        with self._lock:
            if name not in self._names:
                self._names.add(name)
                self._events.append(Event("create", name))

    def note_deleted(self, name: str) -> None:
        """Note that a name is gone."""
        with self._lock:
            self._names.discard(name)
            self._events.append(Event("delete", name))

    def image_after(
        self, cut: int, *, lose_unsynced: bool = True, torn: random.Random | None = None
    ) -> dict[str, bytes]:
        """Return the files as the disk holds them when the power is cut after the first ``cut`` changes.

        Args:
            cut: From 0 to `position`.
            lose_unsynced: Nothing is there that was not synced: neither contents nor names. Else all of it is, as when
                only the process dies.
            torn: Draws what is there of what was not synced: each sector as it was after some of its writes, each size
                as it was at some time, and names in the order in which they came and went, up to some point.
        """
        made = _Replay(self._base)
        with self._lock:
            events = self._events[:cut]
        for event in events:
            made.apply(event)
        if torn is not None:
            return made.some(torn)
        return made.synced() if lose_unsynced else made.all()


@dataclass(slots=True, eq=False)
class _Content:
    """One file: what is durable of it, and what is not yet."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)

    def sync(self) -> None:
        for event in self.pending:
            _change(self.durable, event)
        self.pending.clear()

    def all(self) -> bytes:
        made = bytearray(self.durable)
        for event in self.pending:
            _change(made, event)
        return bytes(made)

    def some(self, drawn: random.Random) -> bytes:
        """Return one of the states that a disk may be in that writes as it likes what it was not told to sync."""
        made = bytearray(self.durable)
        sizes = [len(made)]
        sectors: dict[int, list[bytes]] = {}
        for event in self.pending:
            first, last = event.offset // SECTOR, (event.offset + max(1, len(event.data)) - 1) // SECTOR
            if event.kind == "truncate":
                last = max(first, (len(made) - 1) // SECTOR)
            touched = range(first, last + 1)
            for sector in touched:
                if sector not in sectors:
                    sectors[sector] = [_sector(made, sector)]
            _change(made, event)
            sizes.append(len(made))
            for sector in touched:
                sectors[sector].append(_sector(made, sector))
        left = bytearray(self.durable)
        _resize(left, drawn.choice(sizes))
        size = len(left)
        for sector, versions in sectors.items():
            start = sector * SECTOR
            if start < size:
                left[start : start + SECTOR] = drawn.choice(versions)
        del left[size:]
        return bytes(left)


class _Replay:
    """The folder and the disk below it, change by change."""

    def __init__(self, base: Mapping[str, bytes]) -> None:
        self._seen = {name: _Content(bytearray(content)) for name, content in base.items()}
        self._durable = dict(self._seen)
        self._pending: list[tuple[str, _Content | None]] = []

    def apply(self, event: Event) -> None:
        if event.kind == "create":
            self._name(event.name, _Content())
        elif event.kind == "delete":
            self._name(event.name, None)
        elif event.kind == "sync":
            self._seen[event.name].sync()
        elif event.kind == "sync folder":
            _rename(self._durable, self._pending)
            self._pending.clear()
        else:
            self._seen[event.name].pending.append(event)

    def synced(self) -> dict[str, bytes]:
        return {name: bytes(content.durable) for name, content in self._durable.items()}

    def all(self) -> dict[str, bytes]:
        return {name: content.all() for name, content in self._seen.items()}

    def some(self, drawn: random.Random) -> dict[str, bytes]:
        names = dict(self._durable)
        _rename(names, self._pending[: drawn.randint(0, len(self._pending))])
        return {name: content.some(drawn) for name, content in names.items()}

    def _name(self, name: str, content: _Content | None) -> None:
        change = (name, content)
        _rename(self._seen, [change])
        self._pending.append(change)


def _rename(names: dict[str, _Content], changes: list[tuple[str, _Content | None]]) -> None:
    for name, content in changes:
        if content is None:
            names.pop(name, None)
        else:
            names[name] = content


def _change(content: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        _resize(content, event.offset)
        return
    end = event.offset + len(event.data)
    if len(content) < end:
        _resize(content, end)
    content[event.offset : end] = event.data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _sector(content: bytearray, sector: int) -> bytes:
    """Return one sector as the disk has it: beyond the end of the file there are zeros."""
    return bytes(content[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")


class _RecordedFile(apsw.VFSFile):
    """A file of the folder that is watched; every change is noted once it is made."""

    def __init__(self, base: str, filename: apsw.URIFilename | str, flags: list[int], name: str, disk: Disk) -> None:
        self._name = name
        self._disk = disk
        super().__init__(base, filename, flags)
        self._folder_is_due = bool(flags[0] & apsw.SQLITE_OPEN_CREATE and flags[0] & _FOLDER_IS_SYNCED)
        disk.note_opened(name)

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.note("write", self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.note("truncate", self._name, newsize)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.note("sync", self._name)
        if self._folder_is_due:
            # What SQLite does on Unix below this method, where no other layer sees it.
            self._folder_is_due = False
            self._disk.note("sync folder")


class _RecordingVFS(apsw.VFS):
    """SQLite's way to files, made the default one, so that a store needs to know nothing of it."""

    def __init__(self, name: str, folder: Path, disk: Disk) -> None:
        self._base = apsw.vfs_names()[0]
        self._folder = folder
        self._disk = disk
        super().__init__(name, base=self._base, makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        if text and flags[0] & _KEPT and Path(text).parent == self._folder:
            assert name is not None
            return _RecordedFile(self._base, name, flags, Path(text).name, self._disk)
        return apsw.VFSFile(self._base, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        path = Path(filename)
        if path.parent == self._folder:
            self._disk.note_deleted(path.name)
            if syncdir:
                self._disk.note("sync folder")


@contextlib.contextmanager
def recorded_disk(folder: Path) -> Iterator[Disk]:
    """Record what SQLite does to the files in ``folder`` while the block lasts; what is there already counts as durable.

    Every connection that this process opens meanwhile goes through the record; those to other folders leave no trace.
    All connections have to be closed before the block ends.
    """
    folder = folder.resolve()
    disk = Disk({path.name: path.read_bytes() for path in folder.glob("*") if _is_kept(path)})
    vfs = _RecordingVFS(f"recording {folder}", folder, disk)
    try:
        yield disk
    finally:
        vfs.unregister()


def _is_kept(path: Path) -> bool:
    return path.is_file() and not path.name.endswith(("-shm", ".lock"))


def write_image(folder: Path, image: Mapping[str, bytes]) -> None:
    """Make ``folder`` hold the files of ``image`` and nothing else that SQLite would read."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in image.items():
        (folder / name).write_bytes(content)
