"""Static tokens: 256 random bits that stand for agents, kept as hashes in a file.

A token is `gag_ID_SECRET`. The file has the SHA-256 of the whole text, which is enough for a secret of full entropy, so that
who reads the file can act for nobody. Whoever changes it holds a lock and puts the new file in the place of the old one
whole, and a running bus reads it again once it has changed.

Owns: the file, its form, and which token may act for which agent. Leaves to others: how a token is shown
(`gateway.admission`), the command line (`cli.auth`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gagent_grpc.acl.aid import RESERVED_NAMES, check_name
from gagent_grpc.errors import ConfigurationError, InvalidArgument, Unauthenticated, shown

PREFIX = "gag_"
"""What every token begins with, so that a search for leaked ones finds it."""
_VERSION = 1
_ID_BYTES = 6
_SECRET_BYTES = 32
_TOKEN = re.compile(rf"{PREFIX}([0-9a-f]{{{2 * _ID_BYTES}}})_([A-Za-z0-9_-]{{43}})")
_ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOBODY = hashlib.sha256(b"").hexdigest()
"""Digest that an unknown id is compared with; no token has it."""
_MAX_LABEL = 200
"""Characters of a label."""
_MAX_AGENTS = 100
"""Names that one token may act for."""
_MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the file knows it: everything but its secret."""

    id: str
    """Twelve hexadecimal digits; part of the token, and no secret."""
    agents: tuple[str, ...]
    """Names that it may act for; `*` in one stands for any characters, as in `sales-*`."""
    digest: str = field(repr=False)
    """SHA-256 of the whole token, in hexadecimal digits."""
    created_at: datetime
    label: str = ""
    """What it is for, in words."""
    expires_at: datetime | None = None
    """When it ends by itself; None for never."""
    revoked_at: datetime | None = None
    """When it was revoked; None while it is not."""

    @property
    def agent(self) -> str | None:
        """The name that it is for when none is said: the first one that is no pattern; None when all are."""
        return next((one for one in self.agents if "*" not in one), None)

    def state(self, now: datetime | None = None) -> str:
        """Return `valid`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        if self.expires_at is not None and self.expires_at <= (now or datetime.now(UTC)):
            return "expired"
        return "valid"

    def allows(self, name: str) -> bool:
        """Whether it may act for the agent of this local name."""
        return any(_matches(pattern, name) for pattern in self.agents)


class TokenFile:
    """The tokens in one file, as it was read last."""

    def __init__(self, path: Path | None) -> None:
        """Nothing is read yet; the file may be absent, which is one without tokens. So is None, where none can be issued."""
        self.path = path
        self.required = False
        """Whether a token has ever been seen in the file, a revoked or expired one included. Stays set, so that a file that
        goes away opens nothing."""
        self._tokens: dict[str, Token] = {}
        self._seen: tuple[int, ...] | None = None

    @property
    def tokens(self) -> list[Token]:
        """All of them, oldest first."""
        return _oldest_first(self._tokens)

    def read(self) -> None:
        """Read the file.

        Raises:
            ConfigurationError: It is of another form, cannot be read, or others may read or write it.
        """
        # Before the content: what changes in between is read once more.
        seen = self._look()
        self._tokens = self._load()
        self._seen = seen
        self.required = self.required or bool(self._tokens)

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether it had. Errors as `read`; what was known stays then."""
        seen = self._look()
        if seen == self._seen:
            return False
        # Also when it cannot be read: its error is told once for each change.
        self._seen = seen
        self._tokens = self._load()
        self.required = self.required or bool(self._tokens)
        return True

    def authenticate(self, text: str) -> Token:
        """Return the token that ``text`` is.

        Raises:
            Unauthenticated: It is none that is valid. Which of the reasons it is, is not said.
        """
        match = _TOKEN.fullmatch(text)
        found = self._tokens.get(match[1]) if match is not None else None
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        # Compared in any case, so that an unknown id takes as long as a wrong secret.
        equal = hmac.compare_digest(digest, found.digest if found is not None else _NOBODY)
        if found is None or not equal or found.state() != "valid":
            raise Unauthenticated("the token is unknown, revoked or expired. Get one: gagent auth token issue NAME")
        return found

    def is_valid(self, token: Token) -> bool:
        """Whether a token that was valid once is so now."""
        found = self._tokens.get(token.id)
        return found is not None and found.digest == token.digest and found.state() == "valid"

    def stands_for(self, token: Token, name: str) -> bool:
        """Whether a token that was valid once is so now, and may act for the agent of this local name."""
        found = self._tokens.get(token.id)
        return found is not None and self.is_valid(token) and found.allows(name)

    def get(self, token_id: str) -> Token | None:
        """Return the token of an id as it is known now."""
        return self._tokens.get(token_id)

    # ---- changing --------------------------------------------------------------------------------------------------

    def issue(self, agents: Sequence[str], *, label: str = "", ttl: timedelta | None = None) -> tuple[Token, str]:
        """Make a token and write it down; return it, and its text, which nobody can tell again.

        Args:
            agents: Names that it may act for, 1 to 100; patterns such as `sales-*` among them.
            label: What it is for, in words, at most 200 characters.
            ttl: After which time it expires; None for never.

        Raises:
            InvalidArgument: One of these is of another form.
            ConfigurationError: The file cannot be read or written.
        """
        if not 1 <= len(agents) <= _MAX_AGENTS:
            raise InvalidArgument(f"{len(agents)} names; expected 1 to {_MAX_AGENTS}", field="agents")
        for one in agents:
            check_pattern(one)
        if len(label) > _MAX_LABEL or not label.isprintable():
            text = f"label {shown(label)}; expected at most {_MAX_LABEL} printable characters"
            raise InvalidArgument(text, field="label")
        now = datetime.now(UTC)
        try:
            if ttl is not None and ttl <= timedelta(0):
                raise InvalidArgument(f"ttl {ttl}; expected more than 0", field="ttl")
            ends = now + ttl if ttl is not None else None
        except OverflowError as error:
            raise InvalidArgument(f"ttl {ttl} ends after the year 9999", field="ttl") from error
        with self._changing() as tokens:
            token_id = next(one for one in iter(lambda: secrets.token_hex(_ID_BYTES), "") if one not in tokens)
            text = f"{PREFIX}{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
            made = Token(
                token_id, tuple(dict.fromkeys(agents)), hashlib.sha256(text.encode()).hexdigest(), now, label, ends
            )
            tokens[token_id] = made
        return made, text

    def revoke(self, token_id: str) -> Token:
        """Revoke a token, and return it as it is then. Idempotent: the first moment stays.

        Raises:
            InvalidArgument: There is none of this id.
            ConfigurationError: The file cannot be read or written.
        """
        with self._changing() as tokens:
            found = tokens.get(token_id)
            if found is None:
                # Somebody may give the whole token in the place of its id, which must not be shown.
                what = "a whole token" if token_id.startswith(PREFIX) else shown(token_id)
                raise InvalidArgument(f"{what}: no token has this id. See them: gagent auth token list", field="id")
            if found.revoked_at is None:
                found = replace(found, revoked_at=datetime.now(UTC).replace(microsecond=0))
                tokens[token_id] = found
        return found

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Token]]:
        """Hold the lock, and write what the block leaves of the tokens in the place of what is there."""
        if self.path is None:
            raise ConfigurationError("no file of tokens is given; expected one: --tokens PATH")
        lock_path = self.path.with_name(f"{self.path.name}.lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"{lock_path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # As it is now, and not as it was known: another process may have changed it.
            self.read()
            tokens = dict(self._tokens)
            yield tokens
            if tokens != self._tokens:
                _write(self.path, tokens)
            self.read()
        finally:
            os.close(lock)

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[int, ...] | None:
        """Return what changes whenever the file does; None when there is none."""
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode

    def _load(self) -> dict[str, Token]:
        if self.path is None:
            return {}
        try:
            # A pipe in its place would not be waited for.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise ConfigurationError(f"{self.path}: is no file; expected what gagent auth token issue writes")
                mode = stat.S_IMODE(found.st_mode)
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read(_MAX_FILE_BYTES + 1)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self.path}: cannot be read: {error.strerror}") from error
        if mode & 0o077:
            text = f"{self.path}: its mode is {mode:03o}, so that others may read or change tokens"
            raise ConfigurationError(f"{text}. Make it yours alone: chmod 600 {self.path}")
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigurationError(f"{self.path}: over {_MAX_FILE_BYTES:,} bytes; no file of tokens")
        try:
            return {one.id: one for one in _from_json(json.loads(data))}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, InvalidArgument) as error:
            # Which value it is could be a secret that somebody wrote there by mistake.
            text = f"{self.path}: no file of tokens of this version"
            raise ConfigurationError(f"{text}; expected what gagent auth token issue writes") from error


def _oldest_first(tokens: dict[str, Token]) -> list[Token]:
    return sorted(tokens.values(), key=lambda one: (one.created_at, one.id))


def _write(path: Path, tokens: dict[str, Token]) -> None:
    """Put a new file in the place of the one that is there, whole and on the disk."""
    text = json.dumps({"version": _VERSION, "tokens": [_to_json(one) for one in _oldest_first(tokens)]}, indent=2)
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        # Removed first, so that the mode is that of a new file.
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise ConfigurationError(f"{path}: cannot be written: {error.strerror}") from error


def check_pattern(pattern: str) -> str:
    """Return ``pattern`` when it is a local name, or one with `*` in it.

    Raises:
        InvalidName: It is none.
        InvalidArgument: It is the name of an agent of the platform itself.
    """
    if "*" not in pattern:
        if pattern in RESERVED_NAMES:
            raise InvalidArgument(f"{pattern}: an agent of the platform itself; expected another name", field="agents")
        return check_name(pattern, what="agent name")
    # A letter in its place, which a name may have anywhere.
    check_name(pattern.replace("*", "a"), what="pattern of agent names")
    return pattern


def _matches(pattern: str, name: str) -> bool:
    if "*" not in pattern:
        return pattern == name
    # Not by a regular expression, where some names would take hours against a pattern of several stars.
    first, *middle, last = pattern.split("*")
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _to_json(token: Token) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": token.id,
        "agents": list(token.agents),
        "label": token.label,
        "sha256": token.digest,
        "created_at": token.created_at.isoformat(),
    }
    if token.expires_at is not None:
        made["expires_at"] = token.expires_at.isoformat()
    if token.revoked_at is not None:
        made["revoked_at"] = token.revoked_at.isoformat()
    return made


def _from_json(found: Any) -> Iterator[Token]:
    """Yield the tokens in the value of a file.

    What is of another form raises ValueError, TypeError, KeyError, OverflowError or InvalidArgument.
    """
    if found["version"] != _VERSION or not isinstance(found["tokens"], list):
        raise ValueError("of another version")
    ids: set[str] = set()
    for one in found["tokens"]:
        digest, agents = one["sha256"], one["agents"]
        if not _DIGEST.fullmatch(digest) or not isinstance(agents, list) or not _ID.fullmatch(one["id"]):
            raise ValueError("of another form")
        if one["id"] in ids:
            # Which of them counts would be a matter of their order, and one may be revoked.
            raise ValueError("an id is there twice")
        ids.add(one["id"])
        yield Token(
            one["id"],
            tuple(check_pattern(name) for name in agents),
            digest,
            _moment(one["created_at"]),
            str(one.get("label", "")),
            _moment(one["expires_at"]) if one.get("expires_at") is not None else None,
            _moment(one["revoked_at"]) if one.get("revoked_at") is not None else None,
        )


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("no time zone")
    return found.astimezone(UTC)
