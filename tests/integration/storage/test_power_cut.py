"""What a power cut under load leaves is what the platform had promised; and the check of that finds what is missing.

The short forms of `tests.chaos.power_cut` and `tests.chaos.broken_file`, and tests of the disk that cuts are made with.
"""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.chaos.broken_file import break_files
from tests.chaos.crash_vfs import Disk, recorded_disk, write_image
from tests.chaos.power_cut import cut_power


@pytest.fixture(autouse=True)
def _default_vfs_is_back() -> Iterator[None]:
    before = apsw.vfs_names()
    yield
    assert apsw.vfs_names() == before


async def test_power_cut_under_load_breaks_no_promise(tmp_path: Path) -> None:
    outcomes = await cut_power(tmp_path, seed=11, lives=4, cuts=5, bursts=120)
    assert outcomes.problems == []
    assert (outcomes.cuts, outcomes.lost, outcomes.doubled_unflagged) == (20, 0, 0)
    # What the cuts hit was worth hitting.
    assert outcomes.promised > 1_000
    assert outcomes.stored > 100
    assert outcomes.checkpoints > 10
    assert outcomes.torn


async def test_check_finds_what_is_lost_without_a_sync_for_each_commit(tmp_path: Path) -> None:
    outcomes = await cut_power(tmp_path, seed=11, lives=1, cuts=20, bursts=120, synchronous="NORMAL")
    assert outcomes.cuts_with_loss > 10


async def test_damaged_files_are_refused_or_hold_what_once_was_committed(tmp_path: Path) -> None:
    counted, problems = await break_files(tmp_path, seed=3, times=2)
    assert problems == []
    assert counted["refused"] > 10
    assert counted["recovered"] > 10


# ---- the disk


def disk_of(*events: tuple[object, ...], **base: bytes) -> Disk:
    disk = Disk(base)
    for event in events:
        disk.note(*event)  # type: ignore[arg-type]  # Each is (kind, name, offset, data), or its beginning.
    return disk


def test_disk_keeps_what_was_synced_only() -> None:
    disk = disk_of(
        ("write", "f", 2, b"abc"), ("sync", "f"), ("truncate", "f", 3), ("write", "f", 0, b"x"), ("sync", "f"), f=b""
    )
    images = [disk.image_after(cut)["f"] for cut in range(disk.position + 1)]
    assert images == [b"", b"", b"\0\0abc", b"\0\0abc", b"\0\0abc", b"x\0a"]
    assert disk.image_after(4, lose_unsynced=False) == {"f": b"x\0a"}


def test_disk_forgets_names_until_their_folder_is_synced() -> None:
    disk = disk_of(
        ("create", "f"), ("write", "f", 0, b"1"), ("sync", "f"), ("sync folder",), ("delete", "f"), ("sync folder",)
    )
    assert [disk.image_after(cut) for cut in range(7)] == [{}, {}, {}, {}, {"f": b"1"}, {"f": b"1"}, {}]
    # A new file of the same name is another one.
    disk.note("create", "f")
    disk.note("write", "f", 0, b"2")
    assert disk.image_after(disk.position) == {}
    disk.note("sync folder")
    assert disk.image_after(disk.position) == {"f": b""}
    assert disk.image_after(disk.position, lose_unsynced=False) == {"f": b"2"}


def test_torn_disk_has_each_sector_as_it_was_at_some_time() -> None:
    old, new = b"o" * 1_024, b"n" * 1_024
    disk = disk_of(("write", "f", 0, new), ("write", "f", 1_024, b"m" * 100), f=old)
    seen = {disk.image_after(2, torn=random.Random(seed))["f"] for seed in range(60)}
    assert {image[:512] for image in seen} == {b"o" * 512, b"n" * 512}
    assert {image[512:1024] for image in seen} == {b"o" * 512, b"n" * 512}
    assert any(image[:512] != image[512:1024] for image in seen)
    # The new end of a file may be there without what was written.
    assert {image[1_024:] for image in seen} == {b"", b"\0" * 100, b"m" * 100}
    disk.note("sync", "f")
    assert {disk.image_after(3, torn=random.Random(seed))["f"] for seed in range(9)} == {new + b"m" * 100}


def test_recorded_disk_gives_the_files_that_are_there(tmp_path: Path) -> None:
    folder, rebuilt = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    for start in range(2):
        with recorded_disk(folder) as disk:
            with contextlib.closing(apsw.Connection(str(folder / "x.db"))) as connection:
                connection.pragma("journal_mode", "wal")
                connection.execute("CREATE TABLE IF NOT EXISTS t (n)")
                connection.execute("INSERT INTO t VALUES (?)", (start,))
                there = {name: (folder / name).read_bytes() for name in ("x.db", "x.db-wal")}
                assert disk.image_after(disk.position, lose_unsynced=False) == there
            position = disk.position
            # A database elsewhere is nobody's business.
            with contextlib.closing(apsw.Connection(str(tmp_path / f"{start}.db"))) as connection:
                connection.execute("CREATE TABLE t (n)")
            assert disk.position == position
        write_image(rebuilt, disk.image_after(position))
        with contextlib.closing(apsw.Connection(str(rebuilt / "x.db"))) as connection:
            assert connection.execute("SELECT n FROM t").fetchall() == [(n,) for n in range(start + 1)]
