"""ACL messages and ACP messages as each other, so that an agent of one kind can ask one of the other.

    REQUEST        request (conversation-id and reply-with are its id)
    RESPONSE       agree when its status is `accepted`, else inform
    NOTIFICATION   inform that answers nothing
    DELEGATE       request, protocol fipa-request, conversation-id is the task's id
    RESULT         inform; failure when its status is `failed`
    ERROR          failure, refuse when nothing was begun, not-understood for a type that is not known
    HEARTBEAT      none

Owns: this table in both directions. Pure. Leaves to others: when something is mapped (`client.acp.handling`).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.acp.free_json import json_text, json_value
from gagent_grpc.acp.message import AUTOMATIC_ENTRY, ACPMessage, ACPMessageType, ACPMetadata, error_content
from gagent_grpc.errors import InvalidArgument

JSON_LANGUAGE = "json"
"""Language of ACL content that is JSON text; plain text has none."""
FIPA_REQUEST = "fipa-request"
TASK_ID = "X-task-id"
"""User parameter of ACL messages that are about a task: its id."""
FAILED_ID = "X-failed-id"
"""User parameter of a `failure` of the AMS: id of the message that failed."""
ACCEPTED = "accepted"
"""Status of a RESPONSE that accepts, and has the answer still to come."""

REFUSED, FAILED, NOT_UNDERSTOOD = "REFUSED", "FAILED", "NOT_UNDERSTOOD"
"""Codes of the ERRORs that the three acts become."""
_NOTHING_BEGUN = frozenset({REFUSED, "REJECTED", "DENIED"})
_UNKNOWN = frozenset({NOT_UNDERSTOOD, "UNKNOWN_TYPE"})
_CODES = {
    Performative.REFUSE: REFUSED,
    Performative.FAILURE: FAILED,
    Performative.NOT_UNDERSTOOD: NOT_UNDERSTOOD,
}
ANSWERS = frozenset({ACPMessageType.RESPONSE, ACPMessageType.RESULT, ACPMessageType.ERROR})
"""Types that are an answer to something."""


def acl_from_acp(message: ACPMessage) -> ACLMessage | None:
    """Return the ACL message that says the same; None for a HEARTBEAT, which ACL has no word for.

    Content that is text stays as it is; anything else becomes JSON text, with `language` saying so. The task is named by
    `X-task-id`.

    Raises:
        InvalidArgument: The content is no JSON value.
    """
    kind = message.type
    if kind is ACPMessageType.HEARTBEAT:
        return None
    parameters: dict[str, Any] = {
        "receivers": message.receivers,
        "sender": None if message.source is None else AgentIdentifier(message.source),
    }
    task_id = message.task_id
    users = {} if task_id is None else {TASK_ID: task_id}
    if message.automatic:
        users[AUTOMATIC] = "true"
    if kind in {ACPMessageType.REQUEST, ACPMessageType.DELEGATE}:
        parameters["conversation_id"] = message.id
        parameters["reply_with"] = message.id
    else:
        parameters["conversation_id"] = task_id or message.in_reply_to
        parameters["in_reply_to"] = message.in_reply_to
    if kind is ACPMessageType.DELEGATE:
        parameters["protocol"] = FIPA_REQUEST
        parameters["conversation_id"] = task_id or message.id
    content = message.content
    act = Performative.INFORM
    if kind is ACPMessageType.REQUEST:
        act = Performative.REQUEST
    elif kind is ACPMessageType.DELEGATE:
        act, content = Performative.REQUEST, _order(content)
    elif kind is ACPMessageType.RESPONSE and _said(content, "status") == ACCEPTED:
        act = Performative.AGREE
        content = _said(content, "note")
    elif kind is ACPMessageType.RESULT and isinstance(content, Mapping):
        act = Performative.FAILURE if _said(content, "status") == "failed" else Performative.INFORM
        content = content.get("result") if task_id is not None else content
    elif kind is ACPMessageType.ERROR:
        code = _said(content, "code")
        act = Performative.FAILURE
        if code in _NOTHING_BEGUN:
            act = Performative.REFUSE
        elif code in _UNKNOWN:
            act = Performative.NOT_UNDERSTOOD
        content = _said(content, "error") or content
    if content is not None and not isinstance(content, str):
        content, parameters["language"] = json_text(content, "content"), JSON_LANGUAGE
    return ACLMessage(act, content=content, user_parameters=users, **parameters)


def acp_from_acl(
    message: ACLMessage,
    *,
    message_id: str | None = None,
    timestamp: datetime | None = None,
    task_id: str | None = None,
    in_reply_to: str | None = None,
    delegates: bool = True,
) -> ACPMessage:
    """Return the ACP message that says the same.

    An act that the table does not have becomes a REQUEST when it expects an answer, else a NOTIFICATION; the entry
    `performative` of the metadata names it. Content with the language `json` is read; bytes become
    ``{"content_base64": TEXT}``.

    Args:
        message: The ACL message.
        message_id: Identity that it gets.
        timestamp: When it was made.
        task_id: Task that it answers; by default the one that it names by `X-task-id`.
        in_reply_to: What it answers, where it is another than the message says.
        delegates: A `request` of the protocol fipa-request in a conversation is a DELEGATE; else a REQUEST like any other.
    """
    act = message.performative
    content = _value(message)
    task_id = task_id or message.user_parameters.get(TASK_ID)
    # What the AMS says of a message that was no ACL message, and so had no reply-with.
    answered = in_reply_to or message.in_reply_to or message.user_parameters.get(FAILED_ID)
    entries: dict[str, Any] = {}
    if message.user_parameters.get(AUTOMATIC) == "true":
        entries[AUTOMATIC_ENTRY] = "true"
    kind = ACPMessageType.NOTIFICATION
    if act in EXPECTS_ANSWER:
        kind = ACPMessageType.REQUEST
        if delegates and act is Performative.REQUEST and _is_order(message):
            kind = ACPMessageType.DELEGATE
            content = _task(content, task_id or message.conversation_id or "")
    elif act is Performative.AGREE:
        kind = ACPMessageType.RESPONSE
        content = {**({} if task_id is None else {"task_id": task_id}), "status": ACCEPTED}
        if message.content is not None:
            content["note"] = _value(message)
    elif act in _CODES:
        kind = ACPMessageType.ERROR
        text = content if isinstance(content, str) else "" if content is None else json_text(content, "content")
        content = error_content(_CODES[act], text or act.text, task_id)
    elif act is Performative.INFORM and task_id is not None:
        kind = ACPMessageType.RESULT
        content = {"task_id": task_id, "status": "completed", "result": content}
    elif act is Performative.INFORM and answered:
        kind = ACPMessageType.RESPONSE
    if act not in _IN_TABLE:
        entries["performative"] = act.text
    return ACPMessage(
        id=message_id,
        type=kind,
        source=None if message.sender is None else message.sender.name,
        target=message.receivers[0].name if len(message.receivers) == 1 else None,
        content=content,
        metadata=ACPMetadata(entries=entries) if entries else None,
        timestamp=timestamp,
        in_reply_to=answered,
    )


_IN_TABLE = frozenset({Performative.REQUEST, Performative.AGREE, Performative.INFORM, *_CODES})


def _order(content: Any) -> Any:
    """Return what a task asks for: its description, with the parameters where it has any."""
    if not isinstance(content, Mapping):
        return content
    description = content.get("description", content.get("task_description"))
    parameters = content.get("parameters")
    return {"description": description, "parameters": parameters} if parameters else description


def _task(content: Any, task_id: str) -> dict[str, Any]:
    """Return the content of a DELEGATE for what `_order` returned."""
    if isinstance(content, dict) and set(content) == {"description", "parameters"}:
        return {"task_id": task_id, **content}
    description = content if isinstance(content, str) else "" if content is None else json_text(content, "content")
    return {"task_id": task_id, "description": description}


def _is_order(message: ACLMessage) -> bool:
    return bool(message.conversation_id) and (message.protocol or "").lower() == FIPA_REQUEST


def _said(content: Any, name: str) -> Any:
    return content.get(name) if isinstance(content, Mapping) else None


def _value(message: ACLMessage) -> Any:
    content = message.content
    if isinstance(content, bytes):
        return {"content_base64": base64.b64encode(content).decode()}
    if content is not None and (message.language or "").lower() == JSON_LANGUAGE:
        try:
            return json_value(content, "content")
        except InvalidArgument:
            # It says JSON and is none: text like any other.
            return content
    return content
