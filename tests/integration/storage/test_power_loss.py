"""A power cut at any point leaves every message whose commit was reported.

The files are rebuilt as the worst disk would leave them: with what was synced and nothing else. Killing the process does
not show that, because the kernel still has what was written.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest

from gagent_grpc.bus.ports import StoredMessage
from gagent_grpc.storage.sqlite import SqliteStore

BASE = apsw.vfs_names()[0]


class Disk:
    """What was written to each file, and what of it was synced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._synced: defaultdict[str, bytearray] = defaultdict(bytearray)
        self._unsynced: defaultdict[str, list[tuple[int, bytes | None]]] = defaultdict(list)

    def write(self, name: str, offset: int, data: bytes | None) -> None:
        """Note a write, or with None for ``data`` that the file ends at ``offset``."""
        with self._lock:
            self._unsynced[name].append((offset, data))

    def sync(self, name: str) -> None:
        with self._lock:
            content = self._synced[name]
            for offset, data in self._unsynced.pop(name, []):
                if data is None:
                    del content[offset:]
                    continue
                content.extend(bytes(max(0, offset - len(content))))
                content[offset : offset + len(data)] = data

    def delete(self, name: str, *, synced: bool) -> None:
        with self._lock:
            self._unsynced.pop(name, None)
            if synced:
                self._synced.pop(name, None)

    def after_power_cut(self) -> dict[str, bytes]:
        with self._lock:
            return {name: bytes(content) for name, content in self._synced.items()}


class WatchedFile(apsw.VFSFile):
    def __init__(self, filename: Any, flags: list[int], disk: Disk) -> None:
        name = filename.filename() if isinstance(filename, apsw.URIFilename) else filename
        self._name = Path(name).name if name else ""
        self._disk = disk
        # By name: the default is the one that makes this file.
        super().__init__(BASE, filename, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.write(self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.write(self._name, newsize, None)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._disk.sync(self._name)


class WatchedVFS(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("watched", base=BASE, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> WatchedFile:
        return WatchedFile(name, flags, self._disk)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._disk.delete(Path(filename).name, synced=syncdir)


@contextlib.contextmanager
def watched_disk() -> Iterator[Disk]:
    disk = Disk()
    vfs = WatchedVFS(disk)
    try:
        yield disk
    finally:
        vfs.unregister()


def message(sequence: int) -> StoredMessage:
    payload = b"%d" % sequence * 200
    return StoredMessage("bob", sequence, "alice@local", f"m-{sequence}", "", b"d", "", 1.0, 0, payload)


async def cuts_that_lose(folder: Path, synchronous: Literal["FULL", "NORMAL"]) -> list[bool]:
    """Return for each of many power cuts, each right after a reported commit, whether it lost a message."""
    cuts = []
    with watched_disk() as disk:
        store = SqliteStore(folder / "bus.db", synchronous=synchronous)
        await store.open()
        for round_ in range(150):
            # Enough for several moves of the log into the database.
            for sequence in range(round_ * 40 + 1, round_ * 40 + 41):
                store.accept(message(sequence))
            commit = await store.next_commit()
            assert not commit.error
            cuts.append((commit.through, disk.after_power_cut()))
        await store.close(clean=False)

    lost = []
    for number, (through, files) in enumerate(cuts[::3]):
        rebuilt = folder / str(number)
        rebuilt.mkdir()
        for name, content in files.items():
            (rebuilt / name).write_bytes(content)
        store = SqliteStore(rebuilt / "bus.db")
        stored = await store.open()
        await store.close()
        # Whatever was lost: what is there is whole and has no gap.
        assert stored.messages == [message(n) for n in range(1, len(stored.messages) + 1)]
        lost.append(len(stored.messages) < through)
    return lost


async def test_power_cut_loses_no_message_whose_commit_was_reported(tmp_path: Path) -> None:
    lost = await cuts_that_lose(tmp_path, "FULL")
    assert len(lost) == 50
    assert not any(lost)


async def test_power_cut_loses_messages_without_a_sync_for_each_commit(tmp_path: Path) -> None:
    # Shows that the test above would notice.
    assert any(await cuts_that_lose(tmp_path, "NORMAL"))


def test_disk_keeps_what_was_synced_only() -> None:
    disk = Disk()
    disk.write("f", 2, b"abc")
    disk.sync("f")
    disk.write("f", 3, None)
    disk.write("f", 0, b"x")
    assert disk.after_power_cut() == {"f": b"\0\0abc"}
    disk.sync("f")
    assert disk.after_power_cut() == {"f": b"x\0a"}


@pytest.fixture(autouse=True)
def _default_vfs_is_back() -> Iterator[None]:
    before = apsw.vfs_names()
    yield
    assert apsw.vfs_names() == before
