"""FIPA Propose (SC00036): the initiator says what it would do, and the participant accepts that or not."""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols.common import InteractionProtocol, Stage, Steps


class ProposeProtocol(InteractionProtocol):
    """One conversation under `fipa-propose`. Spec: FIPA SC00036."""

    name: ClassVar[str] = "fipa-propose"
    opening: ClassVar[frozenset[Performative]] = frozenset({Performative.PROPOSE})
    answers: ClassVar[Steps] = {
        (Stage.ASKED, Performative.ACCEPT_PROPOSAL): Stage.OVER,
        (Stage.ASKED, Performative.REJECT_PROPOSAL): Stage.OVER,
        # Not in the specification's diagram, and yet what an agent says that could not judge the proposal.
        (Stage.ASKED, Performative.FAILURE): Stage.OVER,
        (Stage.ASKED, Performative.REFUSE): Stage.OVER,
    }
