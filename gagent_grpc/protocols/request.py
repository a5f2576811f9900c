"""FIPA Request (SC00026): somebody is asked to do something, agrees to it or not, and says what came of it."""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols.common import InteractionProtocol, Stage, Steps

ANSWERS: Steps = {
    (Stage.ASKED, Performative.REFUSE): Stage.OVER,
    (Stage.ASKED, Performative.AGREE): Stage.AGREED,
    # The agree may be skipped where what was asked is done at once.
    (Stage.ASKED, Performative.INFORM): Stage.OVER,
    (Stage.ASKED, Performative.FAILURE): Stage.OVER,
    (Stage.AGREED, Performative.INFORM): Stage.OVER,
    (Stage.AGREED, Performative.FAILURE): Stage.OVER,
}
"""Answers to a request, and to a query."""


class RequestProtocol(InteractionProtocol):
    """One conversation under `fipa-request`. Spec: FIPA SC00026."""

    name: ClassVar[str] = "fipa-request"
    opening: ClassVar[frozenset[Performative]] = frozenset({Performative.REQUEST})
    answers: ClassVar[Steps] = ANSWERS
