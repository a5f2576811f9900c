"""Actions about services, tasks and ACP messages. Owns: their form, and the checks that catch a mistake here.

Leaves to others: messages and the life cycle (`_actions`).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Union

from gagent_py._actions import Action, checked, shown
from gagent_py._tasks import ACPMessage, Task, TaskEvent

Service = Union[str, Mapping[str, Any]]  # Python 3.9 has no `|` here.
"""A type of service, or a description with `type` and maybe name, protocols, ontologies, languages, ownership, properties."""
TaskRef = Union[Task, TaskEvent, str]
"""A task, an event of it, or its id."""
ACP_TYPES = ("request", "response", "notification", "heartbeat", "error", "delegate", "result")
"""The seven types of ACP messages."""
_DELEGATE_KEYS = ("callback_url", "on_executor_lost", "max_attempts", "attachments")
_ACP_KEYS = ("id", "in_reply_to", "metadata", "timestamp")


def register(services: Service | Sequence[Service]) -> Action:
    """Return the action that offers services in the DF in the place of those before.

    Raises:
        TypeError: A service is neither a text nor an object.
        ValueError: There is none, or one without a type.
    """
    several = [services] if isinstance(services, (str, Mapping)) else list(services)
    if not several:
        raise ValueError("services is empty; expected at least one, or deregister() for none")
    made = []
    for one in several:
        if not isinstance(one, (str, Mapping)):
            raise TypeError(f"a service is {type(one).__name__}; expected its type, or a dict with `type`")
        kind = one if isinstance(one, str) else one.get("type")
        if not isinstance(kind, str) or not kind:
            raise ValueError(f"a service has the type {shown(kind)}; expected a text such as 'summarise'")
        made.append(one if isinstance(one, str) else dict(one))
    return {"action": "register", "services": as_json("services", made)}


def delegate(target: str, description: str, parameters: Mapping[str, Any] | None, keywords: dict[str, Any]) -> Action:
    """Return the action that delegates a task; keywords as `Agent.delegate`.

    Raises:
        TypeError: A keyword is unknown, or a value of a wrong type.
        ValueError: There is no target, or a value is none that JSON can say.
    """
    if not isinstance(target, str) or not target:
        raise ValueError(f"the target is {shown(target)}; expected an agent's name or role:TYPE")
    action: Action = {
        "action": "delegate",
        "target": target,
        "task_id": keywords.pop("task_id", None) or uuid.uuid4().hex,
    }
    checked("task_id", action["task_id"])
    if description:
        action["description"] = checked("description", description)
    if parameters is not None:
        if not isinstance(parameters, Mapping):
            raise TypeError(f"parameters is {type(parameters).__name__}; expected a dict")
        action["parameters"] = as_json("parameters", dict(parameters))
    deadline = keywords.pop("deadline", None)
    if isinstance(deadline, datetime):
        # A time without zone is local time in Python, and the bus wants one with a zone.
        action["deadline"] = (deadline if deadline.tzinfo else deadline.astimezone()).isoformat()
    elif deadline is not None:
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float, str)):
            raise TypeError(f"deadline is {type(deadline).__name__}; expected seconds from now, or a datetime")
        action["deadline"] = as_json("deadline", deadline)
    parent = keywords.pop("parent", None)
    if parent is not None:
        action["parent"] = _ref(parent)["task_id"]
    for key, value in keywords.items():
        if key not in _DELEGATE_KEYS:
            known = ", ".join(("task_id", "deadline", "parent", *_DELEGATE_KEYS))
            raise TypeError(f"unknown keyword {key!r}; expected one of: {known}")
        if value is not None:
            action[key] = as_json(key, value)
    return action


def about(word: str, task: TaskRef, **keys: Any) -> Action:
    """Return the action of that name about a task; keys that are None or "" are left out.

    Raises:
        TypeError: ``task`` is no task, or a text is none.
        ValueError: A value is none that JSON can say, or ``task`` names none.
    """
    action: Action = {"action": word, **_ref(task)}
    for key, value in keys.items():
        if value is not None and value != "":  # 0 and False are values.
            action[key] = as_json(key, value)
    return action


def progress(task: TaskRef, fraction: float | None, note: str) -> Action:
    """Return the action that tells how far a task is.

    Raises:
        TypeError: As `about`; or the fraction is no number.
        ValueError: As `about`; or the fraction is not from 0 to 1.
    """
    if fraction is not None:
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
            raise TypeError(f"fraction is {type(fraction).__name__}; expected a number from 0 to 1")
        if not 0 <= fraction <= 1:
            raise ValueError(f"fraction is {fraction}; expected a number from 0 to 1")
    return about("progress", task, progress=fraction, note=checked("note", note))


def with_value(word: str, task: TaskRef, key: str, value: Any) -> Action:
    """Return the action that tells a JSON value about a task; None is one, too. Raises as `about`."""
    return {**about(word, task), key: as_json(key, value)}


def acp(target: str, kind: str, content: Any, keywords: dict[str, Any]) -> Action:
    """Return the action that sends an ACP message.

    Raises:
        TypeError: A keyword is unknown, or the content of a type that JSON does not have.
        ValueError: The type is none of the seven, there is no target, or the content is none that JSON can say.
    """
    word = str(kind).strip().lower()
    if word not in ACP_TYPES:
        raise ValueError(f"unknown ACP type {shown(kind)}; expected one of: {', '.join(ACP_TYPES)}")
    if not isinstance(target, str) or not target:
        raise ValueError(f"the target is {shown(target)}; expected an agent's name")
    msg: dict[str, Any] = {"type": word, "target": target}
    if content is not None:
        msg["content"] = as_json("content", content)
    for key, value in keywords.items():
        if key not in _ACP_KEYS:
            raise TypeError(f"unknown field {key!r} of an ACP message; expected one of: {', '.join(_ACP_KEYS)}")
        if value is not None:
            msg[key] = as_json(key, value)
    return {"action": "acp", "msg": msg}


def reply_acp(original: ACPMessage, kind: str, content: Any, keywords: dict[str, Any]) -> Action:
    """Return the action that answers an ACP message: to its source, with its id as `in_reply_to`. Raises as `acp`."""
    taken = {"in_reply_to": original.id or None, **keywords}
    return acp(taken.pop("target", None) or original.source, kind, content, taken)


def as_json(key: str, value: Any) -> Any:
    """Return a value that JSON can say.

    Raises:
        TypeError: JSON has no such type.
        ValueError: It has such a type and not this value: NaN, an infinity, half a surrogate pair, endless nesting.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except TypeError as error:
        # It names a type, and no value.
        raise TypeError(f"{key}: {error}; expected what JSON can say") from None
    except UnicodeEncodeError:
        raise ValueError(f"{key} holds half a surrogate pair; expected valid Unicode") from None
    except RecursionError:
        raise ValueError(f"{key} is nested too deeply") from None
    except ValueError:
        raise ValueError(f"{key} holds NaN, an infinity or itself; expected what JSON can say") from None
    return value


def _ref(task: Any) -> dict[str, str]:
    """Return the keys that name a task."""
    if isinstance(task, str):
        if not task:
            raise ValueError("the task id is empty; expected that of a task")
        return {"task_id": checked("task_id", task)}
    if not isinstance(task, (Task, TaskEvent)):
        raise TypeError(f"task is {type(task).__name__}; expected a Task, a TaskEvent or a task id")
    return {"task_id": task.task_id, **({"delegator": task.delegator} if task.delegator else {})}
