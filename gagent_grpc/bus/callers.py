"""Who calls, and what of which agent a caller may change.

Owns: callers, the tokens by which they show whose session they have, and the rights that follow. Leaves to others: who
the credentials say it is (`server.identity`), what is done then (`bus.registrations`).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from gagent_grpc.acl.aid import RESERVED_NAMES
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.errors import Unauthorised


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a unary call."""

    agent: AgentRecord | None
    """The agent whose session token was shown."""
    principal: str
    """Who the credentials say it is."""
    operator: bool
    """May govern other agents: everyone, on a bus without credentials."""

    @property
    def name(self) -> str:
        """Who it is, in words: the agent, else the principal."""
        return self.agent.aid if self.agent is not None else self.principal

    def may_act_for(self, record: AgentRecord) -> bool:
        """Whether the caller is the agent itself or may govern it."""
        return self.operator or self.agent is record


class Callers:
    """The tokens of one node's sessions, and the rights of who shows one."""

    def __init__(self, ams: AgentManagementSystem) -> None:
        self._ams = ams
        self._tokens: dict[bytes, AgentRecord] = {}

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Know the tokens of the agents that a store held, so that their sessions can be resumed."""
        self._tokens = {record.resume_digest: record for record in self._ams if record.resume_digest}

    def new_token(self, record: AgentRecord) -> str:
        """Return a token for a new session of an agent; the one of the session before is worth nothing any more."""
        token = secrets.token_urlsafe(24)
        self.forget(record)
        record.resume_digest = digest_of(token)
        self._tokens[record.resume_digest] = record
        return token

    def forget(self, record: AgentRecord) -> None:
        """The token of an agent is worth nothing any more."""
        self._tokens.pop(record.resume_digest, None)

    def agent_of(self, token: str) -> AgentRecord | None:
        """Return the agent whose session has this token; None when it is not, or no longer, a session's."""
        record = self._tokens.get(digest_of(token))
        return record if record is not None and record.session is not None else None

    # ---- rights ----------------------------------------------------------------------------------------------------

    @staticmethod
    def standing_for(record: AgentRecord | None) -> Caller:
        """Return the caller that a message of an agent stands for; None is nobody in particular."""
        # Without credentials everybody governs, which is why such a bus listens on loopback only.
        return Caller(
            agent=record, principal=record.principal if record is not None else "", operator=record is not None
        )

    def governed(self, address: str, caller: Caller) -> AgentRecord:
        """Return the agent at ``address`` when the caller may govern it.

        Raises:
            InvalidName: No valid name, or one of another platform.
            AgentNotRegistered: Nobody has the name.
            Unauthorised: The caller is neither the agent nor may it govern others, or the name is reserved.
        """
        name = self._ams.local_name(address)
        if name in RESERVED_NAMES:
            raise Unauthorised(f"{name}: this name is reserved for the platform's own agent, which nobody governs")
        record = self._ams.get(name)
        if not caller.may_act_for(record):
            raise Unauthorised(f"{caller.name} may not govern {record.name}")
        return record

    def described(self, name: str | None, caller: Caller) -> AgentRecord:
        """Return the agent whose DF entry the caller may change: only its own (SC00023 §4.1.2).

        Raises:
            InvalidName: No valid name, or one of another platform.
            AgentNotRegistered: The AMS does not know the agent.
            Unauthorised: The caller is not the agent.
        """
        if caller.agent is None:
            raise Unauthorised("only an agent registers itself with the DF; open a session and show its token")
        if name is None:
            return caller.agent
        record = self._ams.get(name)
        if record is not caller.agent:
            raise Unauthorised(f"{caller.agent.aid} may not change the DF entry of {record.aid}")
        return record


def digest_of(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode()).digest()
