"""Who may open a socket, and as whom: what a request shows of its caller, and what its query asks for.

A token comes as `Authorization: Bearer TOKEN`; a browser, which can set no headers for a WebSocket, offers the subprotocols
`gagent.acp` and `bearer.TOKEN` and gets the first one. In the query, where it would stay in logs and histories, it is
refused.

Owns: reading requests, and the order of the checks. Pure but for the tokens that it is given. Leaves to others: tokens
(`security.tokens`), names that somebody holds already (`gateway.app`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl

from gagent_grpc.acl.aid import split_aid
from gagent_grpc.config import GatewayLimits
from gagent_grpc.errors import BusError, InvalidArgument, Unauthenticated, Unauthorised, shown
from gagent_grpc.gateway.origins import Origins
from gagent_grpc.security.tokens import Token, TokenFile

SUBPROTOCOL = "gagent.acp"
"""Subprotocol of the socket."""
BEARER = "bearer."
"""What the subprotocol that is no subprotocol but a token begins with."""
Acks = Literal["socket", "client"]
"""Who acknowledges what was delivered: the socket, once the peer's WebSocket has it, or the client itself."""
_KEYS = ("agent", "acks", "window", "ephemeral")
_STATUS = {
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 503,
    "UNAVAILABLE": 503,
}


@dataclass(frozen=True, slots=True)
class Admission:
    """A caller that may open a socket."""

    agent: str
    """Name of the agent that it is, as it was asked for: `name` or `name@platform`."""
    token: Token | None
    """What it has shown; None for nothing."""
    acks: Acks
    window: int
    """Deliveries that it takes before they are acknowledged."""
    ephemeral: bool
    """The name ends by itself when no socket has been open for a while."""
    subprotocol: str | None
    """Subprotocol to answer with; None for none."""

    @property
    def name(self) -> str:
        """Local name of the agent."""
        return self.agent.partition("@")[0]


def admit(
    headers: Sequence[tuple[bytes, bytes]],
    query: bytes,
    *,
    tokens: TokenFile,
    origins: Origins,
    limits: GatewayLimits,
) -> Admission:
    """Return who the caller is.

    Args:
        headers: Those of the request, names in lower case.
        query: Query of its URL.
        tokens: Tokens as they are now; none is asked for before there was one.
        origins: Where pages may be from.
        limits: Bounds of what may be asked for.

    Raises:
        Unauthorised: A page of a foreign origin, or an agent that is not the token's.
        Unauthenticated: No token, or none that is valid.
        InvalidArgument: The query asks for something that is not known here, or in another form.
    """
    for origin in _values(headers, b"origin"):
        if not origins.allows(origin):
            raise Unauthorised(f"pages of {shown(origin)} may not connect here. Allow them: --web-origin ORIGIN")
    offered = [one.strip() for value in _values(headers, b"sec-websocket-protocol") for one in value.split(",")]
    token = _token(headers, offered, tokens)
    asked = _query(query)
    agent = asked.get("agent") or (token.agent if token is not None else None)
    if agent is None:
        raise InvalidArgument("no agent is named; expected /acp?agent=NAME", field="agent")
    name, _ = split_aid(agent)
    if token is not None and not token.allows(name):
        raise Unauthorised(f"the token {token.id} does not stand for the agent {shown(name)}")
    return Admission(
        agent,
        token,
        _acks(asked.get("acks", "socket")),
        _window(asked.get("window"), limits),
        _flag(asked.get("ephemeral", "false"), "ephemeral"),
        SUBPROTOCOL if SUBPROTOCOL in offered else None,
    )


def http_status(error: BusError) -> int:
    """Return the HTTP status that says what kind of error it is."""
    return _STATUS.get(error.status, 500)


def _token(headers: Sequence[tuple[bytes, bytes]], offered: Iterable[str], tokens: TokenFile) -> Token | None:
    shown_by_header = _values(headers, b"authorization")
    found = {one.removeprefix(BEARER) for one in offered if one.startswith(BEARER)}
    for value in shown_by_header:
        scheme, _, rest = value.partition(" ")
        if scheme.lower() != "bearer" or not rest.strip():
            raise Unauthenticated("the header Authorization is of another form; expected: Bearer TOKEN")
        found.add(rest.strip())
    if len(found) > 1 or len(shown_by_header) > 1:
        raise Unauthenticated("several credentials are shown; expected one token")
    if found:
        return tokens.authenticate(found.pop())
    if tokens.required:
        text = "a token is required: Authorization: Bearer TOKEN, or from a browser the subprotocols"
        raise Unauthenticated(f"{text} {SUBPROTOCOL}, {BEARER}TOKEN. Get one: gagent auth token issue NAME")
    return None


def _query(query: bytes) -> dict[str, str]:
    asked: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError as error:
        raise InvalidArgument("the query is of another form; expected such as ?agent=NAME", field="query") from error
    for key, value in pairs:
        if key.lower() in {"token", "bearer", "authorization", "access_token"}:
            raise InvalidArgument("a token is never in the URL, where it would stay in logs; use a header", field=key)
        if key not in _KEYS:
            raise InvalidArgument(f"{shown(key)} in the query; expected: {', '.join(_KEYS)}", field="query")
        if key in asked:
            raise InvalidArgument(f"{key} is twice in the query; expected once", field=key)
        asked[key] = value
    return asked


def _acks(value: str) -> Acks:
    if value == "socket":
        return "socket"
    if value == "client":
        return "client"
    raise InvalidArgument(f"acks {shown(value)}; expected socket or client", field="acks")


def _window(value: str | None, limits: GatewayLimits) -> int:
    if value is None:
        return limits.window_messages
    is_digits = value.isascii() and value.isdecimal() and len(value) < 10
    if not is_digits or not 1 <= int(value) <= limits.max_window_messages:
        text = f"window {shown(value)}; expected 1 to {limits.max_window_messages}"
        raise InvalidArgument(text, field="window")
    return int(value)


def _flag(value: str, field: str) -> bool:
    if value not in {"true", "false"}:
        raise InvalidArgument(f"{field} {shown(value)}; expected true or false", field=field)
    return value == "true"


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]
