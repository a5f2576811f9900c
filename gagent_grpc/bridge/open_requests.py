"""Requests that a script took and has not answered yet, so that nobody waits for a script that is gone. Pure."""

from __future__ import annotations

from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import EXPECTS_ANSWER, Performative
from gagent_grpc.bridge.actions import local_name

MAX_OPEN_REQUESTS = 1_000
"""Requests that are remembered; beyond that the oldest is forgotten, since some scripts never answer."""


class OpenRequests:
    """Requests in the order in which they were taken."""

    def __init__(self) -> None:
        self._open: dict[int, ACLMessage] = {}
        self._taken = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, message: ACLMessage) -> None:
        """Remember a message that its handling left without an answer, when its act expects one."""
        if message.performative not in EXPECTS_ANSWER:
            return
        self._open[self._taken] = message
        self._taken += 1
        if len(self._open) > MAX_OPEN_REQUESTS:
            del self._open[next(iter(self._open))]

    def sent(self, message: ACLMessage, platform: str) -> None:
        """Forget the oldest request that ``message`` answers, when it answers one."""
        for number, request in self._open.items():
            if answers(message, request, platform):
                del self._open[number]
                return

    def take(self) -> list[ACLMessage]:
        """Return all of them and forget them."""
        found = list(self._open.values())
        self._open.clear()
        return found


def answers(message: ACLMessage, request: ACLMessage, platform: str) -> bool:
    """Whether ``message`` ends what ``request`` began: to whoever asked, in its conversation, and no mere `agree`."""
    if message.performative is Performative.AGREE or message.performative in EXPECTS_ANSWER:
        return False
    wanted = request.reply_to or ((request.sender,) if request.sender is not None else ())
    names = {local_name(one.name, platform) for one in wanted}
    if names.isdisjoint(local_name(one.name, platform) for one in message.receivers):
        return False
    if message.in_reply_to and request.reply_with:
        return message.in_reply_to == request.reply_with
    if message.conversation_id and request.conversation_id:
        return message.conversation_id == request.conversation_id
    # Scripts that know neither mean whoever asked first.
    return True
