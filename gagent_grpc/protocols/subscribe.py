"""FIPA Subscribe (SC00035): the participant informs whenever there is something new, until one of the two ends it."""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols.common import InteractionProtocol, Stage, Steps


class SubscribeProtocol(InteractionProtocol):
    """One conversation under `fipa-subscribe`. It ends with `refuse`, `failure`, or the answer to a cancel.

    After a cancel an `inform` that answers something else, the subscription itself, is a notice that crossed it.

    Spec: FIPA SC00035.
    """

    name: ClassVar[str] = "fipa-subscribe"
    opening: ClassVar[frozenset[Performative]] = frozenset({Performative.SUBSCRIBE})
    answers: ClassVar[Steps] = {
        (Stage.ASKED, Performative.REFUSE): Stage.OVER,
        (Stage.ASKED, Performative.AGREE): Stage.SUBSCRIBED,
        # The agree may be skipped.
        (Stage.ASKED, Performative.INFORM): Stage.SUBSCRIBED,
        (Stage.ASKED, Performative.FAILURE): Stage.OVER,
        (Stage.SUBSCRIBED, Performative.INFORM): Stage.SUBSCRIBED,
        (Stage.SUBSCRIBED, Performative.FAILURE): Stage.OVER,
    }
