"""What one client process saw, line by line, in a file that outlives it.

Owns: the events, how they are written so that `kill -9` of the writer loses at most the line under way, and reading them
back. Leaves to others: doing what is written down (`tests.chaos.clients`), judging it (`tests.chaos.checker`).

One file per client process, JSON lines, each with `e` (the event), `t` (monotonic seconds, the same clock for all processes
of the machine) and `w` (wall clock, which a fault may turn):

    start      kind, client, pid         first line; kind is sender, sdk, raw or collector
    sent       id, to, sender, number, body, conversation   before the message is handed over; `number` rises per sender
    receipt    id, receiver, outcome, detail                outcome is a word of `Outcome`, or UNKNOWN
    delivered  id, sender, receiver, sequence, attempt, redelivered, body, conversation
    handled    id, receiver              the handler is done with it; the acknowledgement follows
    settled    id, receiver, how         `ack`, `nack` or `reject`, before it is said to the bus
    dead       id, receiver, reason      accepted, and given up by the bus later: a `failure` came, or it is a dead letter
    error      text, id                  what the client heard or raised that no receipt tells
    end                                  last line of a client that ended as it was told to

The identity of a message in here is its *mark*, the first word of its content, which is also its id on the bus where the
sender gives one. So a message can be followed whose id the SDK made.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SUFFIX = ".history.jsonl"
FAILED_RECEIVER = "X-failed-receiver"
"""Parameter of a `failure` of the bus that says for which receiver a message failed."""


class History:
    """Writes the history of one client process."""

    def __init__(self, path: Path, *, kind: str) -> None:
        """Begin a history at ``path``, which must not exist: who comes again writes another one.

        Args:
            path: File; `history_path` gives one that is free.
            kind: What the client is: `sender`, `sdk` (receives with the SDK: handler runs are recorded), `raw` (receives on
                the wire: every delivery is recorded) or `collector` (reads what is left at the end).
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        # One `write` per line and no buffer of our own: what the kernel has survives the death of the process.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self.path = path
        self._write("start", kind=kind, client=path.name.removesuffix(SUFFIX), pid=os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file; with an `end` when nothing was raised."""
        if error is None:
            self._write("end")
        os.close(self._descriptor)

    def sent(
        self, mark: str, to: str, *, sender: str, number: int, body: str, conversation: str = "", **more: Any
    ) -> None:
        """A message is about to be handed over. One call per receiver, and one more each time that it is sent again.

        Args:
            mark: Its mark.
            to: Receiver.
            sender: Agent that sends it.
            number: Rises with each message of this sender: the order in which they are handed over.
            body: `body_hash` of its content.
            conversation: Its conversation_id.
            more: What is not as usual: ``expires_at`` (wall clock), ``transient`` (true), ``priority``.
        """
        self._write("sent", id=mark, to=to, sender=sender, number=number, body=body, conversation=conversation, **more)

    def receipt(self, mark: str, receiver: str, outcome: str, detail: str = "") -> None:
        """The bus said what became of a message; UNKNOWN when it can say nothing any more."""
        self._write("receipt", id=mark, receiver=receiver, outcome=outcome, detail=detail)

    def delivered(
        self,
        mark: str,
        *,
        sender: str,
        receiver: str,
        sequence: int,
        attempt: int,
        redelivered: bool,
        body: str,
        conversation: str = "",
    ) -> None:
        """A message came: on the wire, or to a handler."""
        self._write(
            "delivered",
            id=mark,
            sender=sender,
            receiver=receiver,
            sequence=sequence,
            attempt=attempt,
            redelivered=redelivered,
            body=body,
            conversation=conversation,
        )

    def handled(self, mark: str, receiver: str) -> None:
        """The handler is done with a message. Written before the acknowledgement can leave."""
        self._write("handled", id=mark, receiver=receiver)

    def settled(self, mark: str, receiver: str, how: str) -> None:
        """A delivery is about to be settled: `ack`, `nack` or `reject`."""
        self._write("settled", id=mark, receiver=receiver, how=how)

    def dead(self, mark: str, receiver: str, reason: str) -> None:
        """The bus gave an accepted message up, and said so."""
        self._write("dead", id=mark, receiver=receiver, reason=reason)

    def error(self, text: str, mark: str = "") -> None:
        """Something else went wrong, maybe about a message."""
        self._write("error", text=text, id=mark)

    def _write(self, event: str, **fields: Any) -> None:
        line = {"e": event, "t": round(time.monotonic(), 6), "w": round(time.time(), 3), **fields}
        os.write(self._descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")


def history_path(folder: Path, client: str) -> Path:
    """Return a path in ``folder`` for the next history of ``client``, which may have been killed and started before."""
    for life in range(1, 100_000):
        path = folder / f"{client}.{life}{SUFFIX}"
        if not path.exists():
            return path
    raise RuntimeError(f"{folder}: too many histories of {client}")


def body_hash(content: str | bytes | None) -> str:
    """Return a short hash by which a content is compared."""
    data = content.encode() if isinstance(content, str) else content or b""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def mark_of(content: str | bytes | None) -> str:
    """Return the mark of a message: the first word of its content; "" when there is none."""
    text = content[:200].decode("utf-8", "replace") if isinstance(content, bytes) else content or ""
    return text.partition(" ")[0]


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Return the events of one history. A last line that is torn, since its writer was killed, is left out."""
    with path.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n"):
                yield json.loads(line)


def histories(folder: Path) -> list[Path]:
    """Return the histories in ``folder``, by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))
