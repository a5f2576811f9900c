"""Between the lines of a script and the messages of the bus: events that tell of messages, and sends that are carried out.

Owns: what of a message a script sees, what a send inherits from the message that it answers, and who hears of it when
it cannot be sent. Leaves to others: lines (`bridge.framing`), when an event is due and every other action
(`bridge.events`).
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Sequence
from typing import Any

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.management import ONTOLOGY
from gagent_grpc.acl.message import AUTOMATIC, ACLMessage, identifiers
from gagent_grpc.acl.performative import EXPECTS_ANSWER, NEVER_ANSWERED, Performative
from gagent_grpc.bridge.framing import SendAction
from gagent_grpc.client.agent import Agent
from gagent_grpc.client.message import answer_headers
from gagent_grpc.envelope import Report
from gagent_grpc.errors import BusError, DeliveryRefused, InvalidArgument, MessageTooLarge, PreconditionFailed

_ALWAYS_TOLD = ("conversation_id", "ontology", "language", "reply_with", "in_reply_to")
_TOLD_WHEN_SET = ("encoding", "protocol")
_NOT_DECIDED = {AUTOMATIC: "true"}
"""Parameters of a message that no agent decided to write; nothing answers it by itself."""

_logger = logging.getLogger(__name__)


class MessageEvent(dict[str, Any]):
    """A `message` event, with the message that it tells of."""

    __slots__ = ("message",)

    def __init__(self, message: ACLMessage, own_name: str) -> None:
        """Tell the agent ``own_name`` of ``message``."""
        super().__init__(event="message", msg=msg_of(message, own_name))
        self.message = message


def msg_of(message: ACLMessage, own_name: str) -> dict[str, Any]:
    """Return the `msg` object for a message: what scripts always find in it, and what else the message has.

    The parameters that every script may look at are there as texts, "" when absent, so that a simple script needs no
    test; the others only when they are set. Content that is bytes is `content_base64`.
    """
    msg: dict[str, Any] = {
        "performative": message.performative.text,
        "sender": message.sender.name if message.sender is not None else "",
    }
    content = message.content
    if isinstance(content, bytes):
        msg["content_base64"] = base64.b64encode(content).decode("ascii")
    else:
        msg["content"] = content or ""
    for name in _ALWAYS_TOLD:
        msg[name] = getattr(message, name) or ""
    for name in _TOLD_WHEN_SET:
        value = getattr(message, name)
        if value is not None:
            msg[name] = value
    receivers = [one.name for one in message.receivers]
    if receivers and [name.partition("@")[0] for name in receivers] != [own_name]:
        msg["receivers"] = receivers
    if message.reply_to:
        msg["reply_to"] = [one.name for one in message.reply_to]
    if message.reply_by is not None:
        msg["reply_by"] = message.reply_by.isoformat()
    # Only what is named as FIPA wants it: a parameter named `sender` would pass for the sender that the bus vouches for.
    msg.update({name: value for name, value in message.user_parameters.items() if name[:2] in ("X-", "x-")})
    return msg


def message_of(action: SendAction, answers: ACLMessage | None = None, platform: str = "") -> ACLMessage:
    """Return the message that a send stands for. An empty text in it counts as absent.

    Args:
        action: The send.
        answers: Message that it inherits from, when it goes to whoever asked: conversation_id and protocol, and
            in_reply_to from its reply_with, each where the send has none of its own. None inherits nothing.
        platform: This platform, whose agents have a name with and one without it.
    """
    inherited = answers if answers is not None and goes_to_asker(action, answers, platform) else None
    return ACLMessage(
        action.performative,
        receivers=identifiers(action.receivers or action.to),
        content=action.content,
        reply_to=identifiers(action.reply_to),
        language=action.language or None,
        encoding=action.encoding or None,
        ontology=action.ontology or None,
        protocol=action.protocol or (inherited.protocol if inherited else None),
        conversation_id=action.conversation_id or (inherited.conversation_id if inherited else None),
        reply_with=action.reply_with or None,
        in_reply_to=action.in_reply_to or (inherited.reply_with if inherited else None),
        reply_by=action.reply_by,
        user_parameters=action.user_parameters,
    )


def goes_to_asker(action: SendAction, message: ACLMessage, platform: str) -> bool:
    """Whether a send goes to the sender of ``message``, or to where that one wants its answers, and to nobody else."""
    return {local_name(name, platform) for name in action.to} in (
        {local_name(one.name, platform) for one in message.reply_to},
        {local_name(message.sender.name, platform)} if message.sender is not None else set(),
    )


def local_name(name: str, platform: str) -> str:
    """Return a name without the platform when it is this one."""
    return name.removesuffix(f"@{platform}") if platform else name


async def send_all(
    agent: Agent, sends: Sequence[tuple[SendAction, ACLMessage]], original: ACLMessage | None = None
) -> None:
    """Send messages in order, and wait until each has its outcome.

    A receiver that is not reached is told to the script by a `failure` message, of the AMS or, where the message did
    not get so far, of its own bridge. Whoever waits for an answer that cannot be sent gets a `failure`, too.

    Args:
        agent: Who sends.
        sends: Actions, and the messages that they stand for.
        original: Message whose handling led to this; None for none.
    """
    async with asyncio.TaskGroup() as group:
        # Tasks begin in the order of their making, and each puts its message into the outbox before it waits.
        for action, message in sends:
            group.create_task(_send(agent, action, message, original))


async def _send(agent: Agent, action: SendAction, message: ACLMessage, original: ACLMessage | None) -> None:
    headers = answer_headers(original) if original is not None else None
    to = action.to if action.receivers and action.receivers != action.to else ()
    try:
        await agent.send_message(message, report=Report.FAILURE_MESSAGE, headers=headers, to=to)
    except DeliveryRefused as error:
        _logger.info("%s: not delivered to %s: %s", agent.name, error.receiver, error.outcome)
        if all(getattr(receipt, "receiver", "") for receipt in error.receipts):
            # The AMS told the script, receiver by receiver.
            return
        why = f"{error.outcome}: {error.detail}"
    except (MessageTooLarge, InvalidArgument) as error:
        why = f"{'TOO_LARGE' if isinstance(error, MessageTooLarge) else 'INVALID'}: {error}"
    except PreconditionFailed as error:
        # The session is over for good, which whoever runs the agent is told.
        _logger.info("%s: a message was not sent: %s", agent.name, error)
        return
    except BusError as error:
        _logger.warning("%s: a message was not sent: %s", agent.name, error)
        return
    else:
        return
    _logger.warning("%s: a message cannot be sent: %s", agent.name, why)
    if message.performative not in NEVER_ANSWERED:
        await _tell_script(agent, action, message, why)
    platform = agent.aid.partition("@")[2]
    if original is not None and goes_to_asker(action, original, platform):
        await fail(agent, original, f"the answer cannot be sent: {why}")


async def _tell_script(agent: Agent, action: SendAction, message: ACLMessage, why: str) -> None:
    """Put a `failure` into the agent's own mailbox, as the AMS does for what gets as far as the bus."""
    failure = ACLMessage(
        Performative.FAILURE,
        receivers=(AgentIdentifier(agent.aid),),
        content=why,
        ontology=ONTOLOGY,
        protocol=message.protocol,
        conversation_id=message.conversation_id,
        in_reply_to=message.reply_with,
        user_parameters={**_NOT_DECIDED, "X-failed-receiver": ", ".join(action.to)[:1000]},
    )
    await _send_quietly(agent, failure)


async def fail(agent: Agent, message: ACLMessage, why: str, *, always: bool = False) -> None:
    """Answer ``message`` with a `failure` that says why, where somebody waits for an answer.

    Args:
        agent: Who answers.
        message: What is answered.
        why: Reason; it reaches another agent, so nothing that a script wrote to stderr.
        always: Also for acts that expect no answer, as long as they are none that nobody answers.
    """
    expected = message.performative in EXPECTS_ANSWER or (always and message.performative not in NEVER_ANSWERED)
    if expected and (message.sender is not None or message.reply_to):
        answer = message.create_reply(Performative.FAILURE, why, user_parameters=_NOT_DECIDED)
        await _send_quietly(agent, answer, answer_headers(message))


async def _send_quietly(agent: Agent, message: ACLMessage, headers: dict[str, str] | None = None) -> None:
    """Send what nobody asked for; when that fails, too, the log is the only one left to tell."""
    try:
        await agent.send_message(message, headers=headers)
    except BusError as error:
        _logger.warning("%s: a failure was not delivered: %s", agent.name, error)
