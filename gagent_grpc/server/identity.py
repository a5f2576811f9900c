"""Who is calling: the principal of a connection, and the agent whose session token a unary call shows."""

from __future__ import annotations

from typing import Any

import grpc

from gagent_grpc.bus.platform import Caller, Platform
from gagent_grpc.config import SESSION_METADATA_KEY
from gagent_grpc.errors import Unauthenticated

DEVELOPER = "local"
"""Principal of everyone on a bus without credentials, which is why such a bus listens on loopback only."""


def principal_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return who the credentials of the call say it is."""
    return DEVELOPER


def caller_of(platform: Platform, context: grpc.aio.ServicerContext[Any, Any]) -> Caller:
    """Return who makes a unary call.

    Raises:
        Unauthenticated: It shows a session token that is not, or no longer, a session's, or more than one.
    """
    tokens = [value for key, value in context.invocation_metadata() or () if key == SESSION_METADATA_KEY]
    if len(tokens) > 1:
        raise Unauthenticated(f"{len(tokens)} values of {SESSION_METADATA_KEY} in the metadata; expected one")
    agent = None
    if tokens:
        token = tokens[0]
        agent = platform.agent_of(token if isinstance(token, str) else token.decode("ascii", "replace"))
        if agent is None:
            raise Unauthenticated("the session token is not, or no longer, that of an open session")
    return Caller(agent=agent, principal=principal_of(context), operator=True)
