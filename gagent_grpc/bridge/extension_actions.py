"""Actions beyond messages and the life cycle, pure: tasks that a script delegates or works on, and ACP messages.

Owns: their form, and what a script may write in each. Leaves to others: lines (`bridge.framing`), carrying them out
(`bridge.extensions`).

    {"action":"delegate","target":"role:count","description":"...","parameters":{},"task_id":"T-1","deadline":600}
    {"action":"answer","task_id":"T-1","value":...}         {"action":"cancel","task_id":"T-1","reason":"..."}
    {"action":"progress","task_id":"T-1","progress":0.5}    {"action":"output","task_id":"T-1","text":"..."}
    {"action":"save","task_id":"T-1","checkpoint":...}      {"action":"ask","task_id":"T-1","question":"..."}
    {"action":"complete","task_id":"T-1","result":...}      {"action":"fail","task_id":"T-1","reason":"..."}
    {"action":"acp","msg":{"type":"notification","target":"bob","content":...}}

An action about a task that the script works on may leave out `task_id` where it answers an event of that task.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from gagent_grpc.acp.message import ACPMessage
from gagent_grpc.acp.tasks import Attachment, OnExecutorLost
from gagent_grpc.bridge.values import (
    Unusable,
    json_of,
    kind_of,
    names_of,
    needed_text,
    number_of,
    object_of,
    shown,
    text_of,
    time_of,
)
from gagent_grpc.errors import BusError

EXTENSIONS = ("delegate", "task", "acp")
"""Events beyond those of every script; a script that takes them names them in its answer to `start`."""
MAX_ATTEMPTS = 100
"""Most attempts that a script may ask for."""
MAX_DEADLINE_S = 1e9
"""Farthest deadline, about 31 years: moments have an end."""


@dataclass(frozen=True, slots=True)
class Delegate:
    """Delegate a task, and hear of it."""

    target: str
    description: str = ""
    parameters: dict[str, Any] | None = None
    task_id: str | None = None
    """None for one that the bridge makes."""
    deadline: float | datetime | None = None
    """Seconds from now, or an aware moment; None for never."""
    callback_url: str | None = None
    on_executor_lost: OnExecutorLost = OnExecutorLost.FAIL
    max_attempts: int | None = None
    parent: str | None = None
    """Task in hand that the new one comes of; None for none."""
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerTask:
    """Give the input that a delegated task asks for."""

    task_id: str
    value: Any


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Ask to end a delegated task."""

    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Something about a task in hand; `word` is the action: progress, output, save, ask, complete, fail or reject."""

    word: str
    task_id: str | None
    """None for the task of the event that is answered."""
    delegator: str | None
    """Whose task it is, where ids of two delegators are the same; None for the only one."""
    value: Any = None
    """Checkpoint of save, result of complete, fraction of progress."""
    text: str = ""
    """Note of progress, part of output, question of ask, reason of fail and reject."""
    channel: str = ""
    """Of output: where the part belongs."""


@dataclass(frozen=True, slots=True)
class SendACP:
    """Send an ACP message; one without a target answers the ACP message of the event."""

    message: ACPMessage


ExtensionAction: TypeAlias = Delegate | AnswerTask | CancelTask | TaskReport | SendACP


def extensions_of(value: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the extensions that a line declares; those that are not known are left out."""
    named = value.get("extensions")
    return tuple(name for name in EXTENSIONS if name in named) if isinstance(named, list) else ()


def _delegate(value: dict[str, Any]) -> Delegate:
    deadline = value.get("deadline")
    lost = text_of(value, "on_executor_lost") or "fail"
    if lost not in ("fail", "redeliver"):
        raise Unusable(f"`on_executor_lost` is {shown(lost)}; expected fail or redeliver")
    attempts = number_of(value, "max_attempts", least=1, most=MAX_ATTEMPTS)
    if isinstance(attempts, float):
        raise Unusable("`max_attempts` is not a whole number")
    return Delegate(
        target=needed_text(value, "target"),
        description=text_of(value, "description") or "",
        parameters=object_of(value, "parameters"),
        task_id=text_of(value, "task_id") or None,
        deadline=time_of(value, "deadline")
        if isinstance(deadline, str)
        else number_of(value, "deadline", most=MAX_DEADLINE_S),
        callback_url=text_of(value, "callback_url"),
        on_executor_lost=OnExecutorLost[lost.upper()],
        max_attempts=attempts,
        parent=text_of(value, "parent") or None,
        attachments=_attachments(value),
    )


def _attachments(value: dict[str, Any]) -> tuple[Attachment, ...]:
    several = value.get("attachments")
    if several is None:
        return ()
    if not isinstance(several, list) or not all(isinstance(one, dict) for one in several):
        raise Unusable("`attachments` is not a list of objects")
    made = []
    for one in several:
        size = number_of(one, "size_bytes")
        if isinstance(size, float):
            raise Unusable("`size_bytes` is not a whole number")
        made.append(
            Attachment(
                needed_text(one, "uri"),
                needed_text(one, "media_type"),
                text_of(one, "name") or "",
                text_of(one, "digest") or "",
                size,
            )
        )
    return tuple(made)


def _report(word: str, value_key: str = "", text_key: str = "", *, needed: bool = False) -> Callable[..., TaskReport]:
    def parse(value: dict[str, Any]) -> TaskReport:
        if word == "progress":
            told = number_of(value, "progress", most=1.0)
        else:
            told = json_of(value, value_key) if value_key else None
        text = (text_of(value, text_key) or "") if text_key else ""
        if needed and not text:
            raise Unusable(f"missing `{text_key}`")
        return TaskReport(
            word,
            text_of(value, "task_id") or None,
            text_of(value, "delegator") or None,
            told,
            text,
            text_of(value, "channel") or "",
        )

    return parse


def _acp(value: dict[str, Any]) -> SendACP:
    msg = value.get("msg")
    if not isinstance(msg, dict):
        raise Unusable("missing `msg`" if msg is None else f"`msg` is {kind_of(msg)}, not an object")
    to = names_of(value, "to")
    if len(to) > 1:
        raise Unusable("`to` holds several names; an ACP message has one target")
    object_of(value, "msg")
    # The source is not the script's to say: the bridge stamps it.
    own = {key: found for key, found in msg.items() if key != "source"}
    if to:
        own["target"] = to[0]
    try:
        return SendACP(ACPMessage.from_dict(own))
    except (BusError, OverflowError) as error:
        # OverflowError: an integer that no float can hold.
        raise Unusable(str(error)) from None


EXTENSION_PARSERS: dict[str, Callable[[dict[str, Any]], ExtensionAction]] = {
    "delegate": _delegate,
    "answer": lambda value: AnswerTask(needed_text(value, "task_id"), json_of(value, "value")),
    "cancel": lambda value: CancelTask(needed_text(value, "task_id"), text_of(value, "reason") or ""),
    "progress": _report("progress", text_key="note"),
    "output": _report("output", text_key="text"),
    "save": _report("save", "checkpoint"),
    "ask": _report("ask", text_key="question", needed=True),
    "complete": _report("complete", "result"),
    "fail": _report("fail", text_key="reason"),
    "reject": _report("reject", text_key="reason"),
    "acp": _acp,
}
"""Parsers by the word of the action; each raises `Unusable`."""
