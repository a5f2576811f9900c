"""Interaction protocols as pure state machines: who may say what next, and who owes the next word (FIPA SC00025 and after).

Owns: the way in. One protocol per module; what they share is `protocols.common`. Used by the SDK for its own conversations,
and by the bus for those that it watches.
"""

from __future__ import annotations

from gagent_grpc.protocols.common import InteractionProtocol, Move, Stage, Verdict
from gagent_grpc.protocols.contract_net import ContractNetProtocol
from gagent_grpc.protocols.propose import ProposeProtocol
from gagent_grpc.protocols.query import QueryProtocol
from gagent_grpc.protocols.request import RequestProtocol
from gagent_grpc.protocols.subscribe import SubscribeProtocol

__all__ = [
    "PROTOCOLS",
    "InteractionProtocol",
    "Move",
    "Stage",
    "Verdict",
    "open_protocol",
]

PROTOCOLS: dict[str, type[InteractionProtocol]] = {
    one.name: one for one in (RequestProtocol, QueryProtocol, ContractNetProtocol, SubscribeProtocol, ProposeProtocol)
}
"""The protocols that are known, by FIPA's names in lower case."""


def open_protocol(name: str, initiator: str) -> InteractionProtocol | None:
    """Return a new conversation under a protocol; None for a protocol that is not known here.

    Args:
        name: Value of the ACL parameter `protocol`, such as `fipa-contract-net`; case does not matter.
        initiator: Who begins it, as the moves will name it.
    """
    made = PROTOCOLS.get(name.strip().lower())
    return made(initiator) if made is not None else None
