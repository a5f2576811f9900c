"""ACP messages as methods of an agent: one decorator to handle them, one call to send one, one to answer one.

Owns: these methods. Leaves to others: choosing the handler (`client.acp.handling`), tasks that the bus keeps
(`client.tasks`), the classes of the ACP interface (`client.acp.service`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acp.message import ACPMessage, ACPMessageType, ACPMetadata
from gagent_grpc.client.acp.handling import ACPHandling
from gagent_grpc.client.acp.message import encoded_acp, filled, headers_after
from gagent_grpc.client.message import Receipt, encoded
from gagent_grpc.client.sending import Sender, WhenFull, patience_of, waits_for
from gagent_grpc.config import ClientLimits
from gagent_grpc.envelope import Priority
from gagent_grpc.errors import InvalidArgument

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])


class Exchanging:
    """The part of an `Agent` that speaks ACP.

    An agent without a handler for an ACP message handles it as the ACL message that says the same, and its answer goes back
    as an ACP message; an agent that has handlers of ACP messages alone likewise gets ACL messages as ACP messages.
    """

    _limits: ClientLimits
    _sender: Sender
    _acp: ACPHandling

    @property
    def aid(self) -> str:
        """As `Agent.aid`."""
        raise NotImplementedError

    # ---- receiving -------------------------------------------------------------------------------------------------

    def on_acp(self, type: str | ACPMessageType | None = None) -> Callable[[HandlerT], HandlerT]:  # noqa: A002  # ACP's word.
        """Register the decorated function for ACP messages of a type, or of every type; the first one that fits gets it.

            @agent.on_acp("request")
            async def answer(message):
                return {"you_said": message.content}

        The function gets a `ReceivedACP`, which is an `ACPMessage`. What it returns for a REQUEST is the content of the
        RESPONSE; None sends nothing, and the function may answer with `reply_acp`. `Refuse` and `Fail`, raised or returned,
        become an ERROR with the code REFUSED or FAILED. After any other error the message comes again. `async def` runs on
        the agent's loop, `def` in a thread.

        Args:
            type: The type, as `ACPMessageType` or its name; None for every type.

        Raises:
            InvalidArgument: It is none of the seven, or the parentheses are missing.
        """
        if callable(type):
            raise InvalidArgument("@agent.on_acp without parentheses; expected @agent.on_acp(...)", field="type")
        kind = None if type is None else ACPMessageType.parse(type)

        def register(handler: HandlerT) -> HandlerT:
            self._acp.add(kind, handler)
            return handler

        return register

    # ---- sending ---------------------------------------------------------------------------------------------------

    async def send_acp(
        self,
        message: ACPMessage,
        *,
        transient: bool = False,
        headers: Mapping[str, str] | None = None,
        to: Sequence[str] = (),
        when_full: WhenFull = "fail",
    ) -> list[Receipt]:
        """Send an ACP message and wait for its receipts.

        What it leaves out is filled in: an id, this agent as source, the time, metadata of normal priority. Priority and
        ttl of its metadata are those of the bus message. The same id with the same message arrives once: to send a message
        again, send what `filled` returns. An answer to what came as an ACL message goes back as an ACL message.

        Args:
            message: What is sent.
            transient: Need not survive a restart of the bus.
            headers: Trace context and hops, as an answer carries them on.
            to: Delivery addresses, where they are others than its target.
            when_full: As `Agent.send`.

        Returns:
            As `Agent.send`.

        Raises:
            MissingParameter: It has no target.
            InvalidArgument: A field has a value that cannot be sent, or there is a signature, which is not served yet.
            DeliveryRefused, MessageTooLarge, PreconditionFailed, BusError: As `Agent.send`.
        """
        return await self._hand_over(
            message, transient=transient, headers=headers, to=to, patience=patience_of(when_full)
        )

    async def reply_acp(
        self,
        original: ACPMessage,
        type: str | ACPMessageType,  # noqa: A002  # ACP's word.
        content: Any = None,
        **fields: Any,
    ) -> list[Receipt]:
        """Answer an ACP message: to its source, with `in_reply_to`, its priority and its trace.

        Args:
            original: What is answered.
            type: Type of the answer.
            content: JSON value; None for none.
            fields: Fields of the answer that differ from what it has by itself, as `ACPMessage` has them.

        Returns:
            As `Agent.send`.

        Raises:
            InvalidArgument, DeliveryRefused, MessageTooLarge, PreconditionFailed, BusError: As `send_acp`.
        """
        return await self.send_acp(original.create_reply(type, content, **fields), headers=headers_after(original))

    def filled(self, message: ACPMessage) -> ACPMessage:
        """Return an ACP message as `send_acp` sends it: what it leaves out is filled in."""
        return filled(message, self.aid)

    async def _hand_over(
        self,
        message: ACPMessage,
        *,
        patience: float = 0.0,
        to: Sequence[str] = (),
        transient: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> list[Receipt]:
        acl = self._acp.translated_to_acl(message)
        if acl is not None:
            # It answers what came as an ACL message.
            payload = encoded(acl, transient=transient, headers=headers)
            return await self._sender.send(acl, payload, patience=patience)
        made = filled(message, self.aid)
        payload = encoded_acp(made, headers=headers, transient=transient, to=to)
        urgency = made.metadata.urgency if made.metadata is not None else Priority.NORMAL
        return await self._sender.send(
            made, payload, to=to, patience=patience, waits_for=waits_for("wait", provider=False), priority=urgency
        )

    async def _send_acp_answer(self, message: ACPMessage, headers: Mapping[str, str]) -> None:
        """Send what a handler answers; it may wait for room for `answer_patience`."""
        await self._hand_over(message, patience=self._limits.answer_patience, headers=headers)

    def _in_acp(
        self,
        message: ACLMessage,
        *,
        priority: Priority = Priority.NORMAL,
        expires_in: float | None = None,
        message_id: str | None = None,
    ) -> list[ACPMessage]:
        """Return what goes in the place of an ACL message, the last one as its own; nothing where that one goes itself."""
        made = self._acp.translated(message)
        for place, one in enumerate(made):
            entries = one.metadata.entries if one.metadata is not None else {}
            is_own = place == len(made) - 1
            metadata = ACPMetadata(str(priority), expires_in if is_own else None, entries=entries)
            made[place] = one.replace(id=message_id if is_own else None, metadata=metadata)
        return made

    async def _answer_in_acp(self, messages: Sequence[ACPMessage], **options: Any) -> list[Receipt]:
        """Hand over what `_in_acp` returned, in order; return the receipts of the last one."""
        receipts: list[Receipt] = []
        for message in messages:
            receipts = await self._hand_over(message, **options)
        return receipts
