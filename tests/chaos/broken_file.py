"""Files that something else has damaged: the store says what is wrong with which file, or holds what once was committed.

A store works for a while; after each of its commits it is known what it holds, and now and then its two files are copied
as a crash would leave them. Each damage is done to such a copy. A store that opens it has to hold one of the states that
were committed, and has to be able to go on; a store that refuses has to name the file.

Owns: the damages and what is made of them. Leaves to others: what a crash does by itself (`power_cut`).

    python -m tests.chaos.broken_file [--long] [--seed N]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import apsw

from gagent_grpc.bus.ports import StoredMessage, StoredPlatform
from gagent_grpc.errors import BusError
from gagent_grpc.storage import sqlite_file
from gagent_grpc.storage.sqlite import SqliteStore
from tests.chaos.scenario import Report, Scale, Scenario

State = frozenset[int]
"""Sequences of the messages that a store holds; `_message` says what is in each."""
Damage = Callable[[Path, random.Random], None]
"""Damages the database at a path, or its log."""

_CHECKPOINT_PAGES = 60
_FRAME = 24 + 4096
"""Bytes of one page in the log."""

MUST_BE_REFUSED = frozenset(
    {
        "database is a folder",
        "database is a pipe",
        "database of another program",
        "database replaced by a text",
        "database replaced by noise",
        "empty database beside its log",
        "no database beside its log",
    }
)
"""Damages after which nothing can be right any more."""


def _message(sequence: int) -> StoredMessage:
    payload = random.Random(sequence).randbytes(sequence * 37 % 900)
    return StoredMessage("bob", sequence, "alice@local", f"m{sequence}", "", b"d", "", 1.0, 0, payload)


@dataclass(slots=True)
class History:
    """What a store held after each of its commits, and copies of its files."""

    states: set[State] = field(default_factory=lambda: {frozenset()})
    copies: list[Path] = field(default_factory=list)
    """Databases, each with its log beside it."""


async def make_history(folder: Path, drawn: random.Random) -> History:
    """Have a store accept and settle, and copy its files at times."""
    history = History()
    kept: set[int] = set()
    sequence = 0
    path = folder / "bus.db"
    store = SqliteStore(path)
    with mock.patch.object(sqlite_file, "_WAL_PAGES", _CHECKPOINT_PAGES):
        await store.open()
        for step in range(80):
            for _ in range(drawn.randint(1, 20)):
                sequence += 1
                store.accept(_message(sequence))
                kept.add(sequence)
            for settled in drawn.sample(sorted(kept), drawn.randint(0, min(12, len(kept) // 2))):
                store.settle("bob", settled, None)
                kept.discard(settled)
            await store.flush()
            history.states.add(frozenset(kept))
            if step % 10 == 9:
                copy = folder / f"copy-{step}.db"
                for part in ("", "-wal"):
                    shutil.copy(f"{path}{part}", f"{copy}{part}")
                history.copies.append(copy)
        await store.close()
    return history


# ---- damages


def _log(path: Path) -> Path:
    return Path(f"{path}-wal")


def _cut_off(path: Path, size: int) -> None:
    os.truncate(path, max(0, path.stat().st_size - size))


def _flip(path: Path, drawn: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
    path.write_bytes(content)


def _exchange_pages(path: Path, drawn: random.Random) -> None:
    content = bytearray(path.read_bytes())
    pages = [slice(start, start + 4096) for start in range(0, len(content), 4096)]
    one, other = drawn.sample(pages, 2)
    content[one], content[other] = content[other], content[one]
    path.write_bytes(content)


def _erase_page(path: Path, drawn: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = drawn.randrange(0, len(content), 4096)
    content[start : start + 4096] = bytes(4096)
    path.write_bytes(content)


def _cut_log_at_frame(path: Path, drawn: random.Random) -> None:
    frames = (_log(path).stat().st_size - 32) // _FRAME
    os.truncate(_log(path), 32 + drawn.randint(0, frames) * _FRAME + drawn.choice([-1, 0, 1]))


def _append(path: Path, drawn: random.Random) -> None:
    with path.open("ab") as file:
        file.write(drawn.randbytes(drawn.choice([1, 100, 4096, 10_000])))


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def _make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def _replace_journal(path: Path, drawn: random.Random) -> None:
    Path(f"{path}-journal").write_bytes(drawn.randbytes(9_000))


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _make_foreign(path: Path) -> None:
    path.unlink()
    _log(path).unlink()
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.pragma("application_id", 0x12345678)
        connection.execute("CREATE TABLE messages (receiver, sequence)")


DAMAGES: dict[str, Damage] = {
    "log cut short": lambda path, drawn: _cut_off(_log(path), drawn.randint(1, 64)),
    "log cut at a frame": _cut_log_at_frame,
    "log cut anywhere": lambda path, drawn: _cut_off(_log(path), drawn.randrange(_log(path).stat().st_size)),
    "log with a flipped bit": lambda path, drawn: _flip(_log(path), drawn),
    "log with more behind it": lambda path, drawn: _append(_log(path), drawn),
    "log replaced by noise": lambda path, drawn: _replace(_log(path), drawn.randbytes(9_000)),
    "log erased": lambda path, drawn: _replace(_log(path), bytes(_log(path).stat().st_size)),
    "log removed": lambda path, drawn: _log(path).unlink(),
    "log is a folder": lambda path, drawn: _make_folder(_log(path)),
    "noise as a rollback journal": _replace_journal,
    "database cut short": lambda path, drawn: _cut_off(path, drawn.randint(1, 64)),
    "database cut anywhere": lambda path, drawn: _cut_off(path, drawn.randrange(path.stat().st_size - 1)),
    "database with a flipped bit": _flip,
    "database with two pages exchanged": _exchange_pages,
    "database with an erased page": _erase_page,
    "database with more behind it": _append,
    "database replaced by noise": lambda path, drawn: _replace(path, drawn.randbytes(9_000)),
    "database replaced by a text": lambda path, drawn: _replace(path, b"# notes\n" * 1_000),
    "database is a folder": lambda path, drawn: _make_folder(path),
    "database is a pipe": lambda path, drawn: _make_pipe(path),
    "database of another program": lambda path, drawn: _make_foreign(path),
    "no database beside its log": lambda path, drawn: path.unlink(),
    "empty database beside its log": lambda path, drawn: os.truncate(path, 0),
}


# ---- what is made of them


async def judge(name: str, path: Path, history: History) -> tuple[str, str]:
    """Open a damaged database; return what happened, and what is wrong with that, or ""."""
    try:
        found = await _content(path)
    except BusError as refused:
        named = str(path) in str(refused)
        return "refused", "" if named else f"{name}: does not say which file: {refused}"
    state = _state_of(found)
    if state is None or state not in history.states:
        return "garbage", f"{name}: serves {len(found.messages):,} messages that were never there together"
    # It has to be able to go on with what is left.
    new = _message(max(state, default=0) + 1)
    store = SqliteStore(path)
    await store.open()
    store.accept(new)
    await store.flush()
    await store.close()
    if _state_of(await _content(path)) != state | {new.sequence}:
        return "garbage", f"{name}: does not keep what it accepts afterwards"
    return "recovered", ""


async def _content(path: Path) -> StoredPlatform:
    store = SqliteStore(path)
    try:
        return await store.open()
    finally:
        await store.close(clean=False)


def _state_of(found: StoredPlatform) -> State | None:
    """Return the sequences of what was found; None when a message is not what was written."""
    if any(message != _message(message.sequence) for message in found.messages):
        return None
    return frozenset(message.sequence for message in found.messages)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def _copied(copy: Path, folder: Path) -> Iterator[Path]:
    """Give a copy of a database and its log in a folder of their own."""
    folder.mkdir()
    path = folder / "bus.db"
    for part in ("", "-wal"):
        shutil.copy(f"{copy}{part}", f"{path}{part}")
    yield path
    shutil.rmtree(folder)


# ---- what cannot be written

_OPEN = """
import asyncio, os, sys
from gagent_grpc.errors import BusError
from gagent_grpc.storage.sqlite import SqliteStore
if sys.argv[2] == "nobody":
    os.setegid(65534)
    os.seteuid(65534)
try:
    found = asyncio.run(SqliteStore(sys.argv[1]).open())
except BusError as refused:
    print("refused", refused)
else:
    print("opened", len(found.messages))
"""


def _opened_elsewhere(path: Path, *, user: str = "", read_only: bool = False) -> str:
    """Open a database in another process, which cannot write there; return what it says."""
    command = [sys.executable, "-c", _OPEN, str(path), user]
    if read_only:
        mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, str(path.parent), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        return "cannot be made here"
    return done.stdout + done.stderr


def judge_unwritable(history: History, folder: Path) -> tuple[Counter[str], list[str]]:
    """Open databases that cannot be written; return how often what happened, and what is wrong with that."""
    counted: Counter[str] = Counter()
    problems = []
    if os.geteuid():
        return Counter({"skipped (needs root)": 3}), []
    copy = history.copies[-1]
    # Not below the folder of the run, which another user may not be able to enter.
    with tempfile.TemporaryDirectory() as there:
        Path(there).chmod(0o755)
        for name in ("read-only file system", "read-only folder", "read-only file"):
            with _copied(copy, Path(there) / "bus") as path:
                _hand_over(path, name)
                said = _opened_elsewhere(
                    path, user="nobody" if "file system" not in name else "", read_only="system" in name
                )
                if said.startswith("cannot"):
                    counted[f"skipped ({name} {said})"] += 1
                elif said.startswith("refused") and str(path) in said:
                    counted["refused"] += 1
                else:
                    problems.append(f"{name}: {said.strip()[-200:]}")
    return counted, problems


def _hand_over(path: Path, name: str) -> None:
    """Give a database to everybody, but for what is to be read-only."""
    for one in (path, _log(path)):
        one.chmod(0o444 if name == "read-only file" else 0o666)
    path.parent.chmod(0o555 if name == "read-only folder" else 0o777)


# ---- the scenario


async def break_files(folder: Path, *, seed: int, times: int) -> tuple[Counter[str], list[str]]:
    """Do every damage some times, each to another copy; return how often what happened, and what is wrong with that."""
    drawn = random.Random(seed)
    history = await make_history(_made(folder / "made"), drawn)
    counted: Counter[str] = Counter()
    problems: list[str] = []
    for name, damage in DAMAGES.items():
        for number in range(times):
            copy = drawn.choice(history.copies)
            with _copied(copy, folder / f"{name}, {number}") as path:
                damage(path, drawn)
                what, problem = await judge(name, path, history)
            counted[what] += 1
            problems += [problem] if problem else []
            if name in MUST_BE_REFUSED and what != "refused":
                problems.append(f"{name}: {what}; expected a refusal")
    more, wrong = judge_unwritable(history, folder)
    return counted + more, problems + wrong


async def _broken_file(scale: Scale) -> Report:
    started = time.monotonic()
    counted, problems = await break_files(scale.folder / "broken", seed=scale.seed, times=40 if scale.long else 4)
    said = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
    done = (
        f"{len(DAMAGES)} kinds of damage, {sum(counted.values())} files in {time.monotonic() - started:.0f} s: {said}"
    )
    return Report("broken file", done, problems=problems)


SCENARIOS: dict[str, Scenario] = {"broken file": _broken_file}


def main() -> None:
    """Run the scenario once and print its line."""
    arguments = argparse.ArgumentParser(description="Open databases that are damaged in many ways.")
    arguments.add_argument("--long", action="store_true")
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="broken-file-") as folder:
        report = asyncio.run(_broken_file(Scale(given.long, given.seed, Path(folder))))
    print(report.line(), f"(seed {given.seed})")
    raise SystemExit(not report.good)


if __name__ == "__main__":
    main()
