"""FIPA Contract Net (SC00029): a call for proposals, proposals by a deadline, awards, and what came of them."""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols.common import InteractionProtocol, Move, Part, Stage, Steps


class ContractNetProtocol(InteractionProtocol):
    """One conversation under `fipa-contract-net`.

    A proposal that was accepted by the bus after the reply-by of the call is in sequence, and can only be rejected. Whoever
    proposed in time is accepted or rejected; a decision that names another message than the proposal is none. Whoever is
    accepted ends with `inform` or `failure`.

    Spec: FIPA SC00029.
    """

    name: ClassVar[str] = "fipa-contract-net"
    opening: ClassVar[frozenset[Performative]] = frozenset({Performative.CFP})
    answers: ClassVar[Steps] = {
        (Stage.ASKED, Performative.PROPOSE): Stage.PROPOSED,
        (Stage.ASKED, Performative.REFUSE): Stage.OVER,
        (Stage.ASKED, Performative.FAILURE): Stage.OVER,
        # It cannot keep what it proposed, and says so before it is decided on.
        (Stage.PROPOSED, Performative.FAILURE): Stage.OVER,
        (Stage.LATE, Performative.FAILURE): Stage.OVER,
        (Stage.AGREED, Performative.INFORM): Stage.OVER,
        (Stage.AGREED, Performative.FAILURE): Stage.OVER,
    }
    decisions: ClassVar[Steps] = {
        (Stage.PROPOSED, Performative.ACCEPT_PROPOSAL): Stage.AGREED,
        (Stage.PROPOSED, Performative.REJECT_PROPOSAL): Stage.OVER,
        (Stage.LATE, Performative.REJECT_PROPOSAL): Stage.OVER,
    }

    def _answered(self, part: Part, stage: Stage, move: Move) -> Stage:
        if stage is not Stage.PROPOSED:
            return stage
        part.mark = move.reply_with
        return Stage.LATE if 0.0 < part.reply_by < move.at else stage
