"""FIPA Query (SC00027): somebody is asked whether something is so, or what something is, and answers as to a request."""

from __future__ import annotations

from typing import ClassVar

from gagent_grpc.acl.performative import Performative
from gagent_grpc.protocols.common import InteractionProtocol, Steps
from gagent_grpc.protocols.request import ANSWERS


class QueryProtocol(InteractionProtocol):
    """One conversation under `fipa-query`; the answer is an `inform`, of a truth value or of what was asked for.

    Spec: FIPA SC00027.
    """

    name: ClassVar[str] = "fipa-query"
    opening: ClassVar[frozenset[Performative]] = frozenset({Performative.QUERY_IF, Performative.QUERY_REF})
    answers: ClassVar[Steps] = ANSWERS
