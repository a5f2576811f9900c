"""Who may open a socket, by what a request shows and asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gagent_grpc.config import GatewayLimits
from gagent_grpc.errors import BusError, InvalidArgument, InvalidName, Unauthenticated, Unauthorised
from gagent_grpc.gateway.admission import Admission, admit, http_status
from gagent_grpc.gateway.origins import Address, Origins
from gagent_grpc.security.tokens import TokenFile

ORIGINS = Origins(Address("127.0.0.1", 8080))


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json")


def ask(tokens: TokenFile, query: str = "agent=alice", **headers: str) -> Admission:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return admit(pairs, query.encode(), tokens=tokens, origins=ORIGINS, limits=GatewayLimits())


def test_without_any_token_everybody_of_this_machine_is_whom_he_says(tokens: TokenFile) -> None:
    found = ask(tokens)
    assert (found.agent, found.token, found.acks, found.window, found.ephemeral, found.subprotocol) == (
        "alice", None, "socket", 16, False, None,
    )  # fmt: skip
    asked = ask(tokens, "agent=alice%40local&acks=client&window=3&ephemeral=true")
    assert (asked.agent, asked.name, asked.acks, asked.window, asked.ephemeral) == (
        "alice@local", "alice", "client", 3, True,
    )  # fmt: skip


def test_a_token_comes_in_a_header_or_as_a_subprotocol(tokens: TokenFile) -> None:
    made, text = tokens.issue(["alice", "sales-*"])
    assert ask(tokens, "", authorization=f"Bearer {text}").agent == "alice"
    assert ask(tokens, "", authorization=f"bearer  {text}").token == made
    found = ask(tokens, "agent=sales-eu", sec_websocket_protocol=f"gagent.acp, bearer.{text}")
    # The token is not repeated to anybody.
    assert (found.agent, found.token, found.subprotocol) == ("sales-eu", made, "gagent.acp")


def test_once_there_is_a_token_everybody_needs_one(tokens: TokenFile) -> None:
    made, _ = tokens.issue(["alice"])
    with pytest.raises(Unauthenticated, match="a token is required"):
        ask(tokens)
    tokens.revoke(made.id)
    with pytest.raises(Unauthenticated, match="a token is required"):
        ask(tokens)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer gag_000000000000_" + "A" * 43},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Basic YWxpY2U6"},
        {"authorization": ""},
        {"authorization": "TOKEN"},
        {"sec_websocket_protocol": "gagent.acp, bearer."},
        {"sec_websocket_protocol": "bearer.nonsense"},
    ],
)
def test_what_is_no_token_is_refused_also_where_none_is_asked_for(tokens: TokenFile, headers: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated):
        ask(tokens, **headers)
    tokens.issue(["alice"])
    with pytest.raises(Unauthenticated):
        ask(tokens, **headers)


def test_two_credentials_are_one_too_many(tokens: TokenFile) -> None:
    _, one = tokens.issue(["alice"])
    _, other = tokens.issue(["bob"])
    with pytest.raises(Unauthenticated, match="several"):
        ask(tokens, authorization=f"Bearer {one}", sec_websocket_protocol=f"gagent.acp, bearer.{other}")
    pairs = [(b"authorization", f"Bearer {one}".encode())] * 2
    with pytest.raises(Unauthenticated, match="several"):
        admit(pairs, b"", tokens=tokens, origins=ORIGINS, limits=GatewayLimits())


@pytest.mark.parametrize("agent", ["bob", "Alice", "alice2", "presales-eu", "ams"])
def test_a_token_is_for_its_agents_alone(tokens: TokenFile, agent: str) -> None:
    made, text = tokens.issue(["alice", "sales-*"])
    with pytest.raises(Unauthorised, match=made.id) as raised:
        ask(tokens, f"agent={agent}", authorization=f"Bearer {text}")
    assert text not in str(raised.value)


@pytest.mark.parametrize("key", ["token", "bearer", "Authorization", "access_token"])
def test_a_token_in_the_url_is_refused(tokens: TokenFile, key: str) -> None:
    _, text = tokens.issue(["alice"])
    with pytest.raises(BusError) as raised:
        ask(tokens, f"agent=alice&{key}={text}")
    assert text not in str(raised.value)
    with pytest.raises(InvalidArgument, match="never in the URL"):
        ask(TokenFile(None), f"agent=alice&{key}={text}")


def test_a_page_of_another_origin_is_refused_before_anything_else(tokens: TokenFile) -> None:
    _, text = tokens.issue(["alice"])
    assert ask(tokens, "", authorization=f"Bearer {text}", origin="http://127.0.0.1:8080").agent == "alice"
    with pytest.raises(Unauthorised, match=r"'http://evil\.example' may not connect"):
        ask(tokens, "", authorization=f"Bearer {text}", origin="http://evil.example")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "no agent is named"),
        ("agent=", "no agent is named"),
        ("agent=a&agent=b", "agent is twice"),
        ("agent=a&acks=maybe", "acks 'maybe'"),
        ("agent=a&window=0", "window '0'"),
        ("agent=a&window=1025", "window '1025'"),
        ("agent=a&window=x", "window 'x'"),
        ("agent=a&ephemeral=yes", "ephemeral 'yes'"),
        ("agent=a&name=b", "'name' in the query"),
        ("agent=%ff", "the query is of another form"),
    ],
)
def test_a_query_that_asks_for_something_else_is_refused(tokens: TokenFile, query: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        ask(tokens, query)


@pytest.mark.parametrize("agent", ["two%20words", "a/b", "%2A", "a%0Ab", "x" * 129, "a@b@c"])
def test_what_is_no_name_is_refused(tokens: TokenFile, agent: str) -> None:
    with pytest.raises(InvalidName):
        ask(tokens, f"agent={agent}")


def test_errors_have_the_status_of_their_kind() -> None:
    assert http_status(Unauthenticated("x")) == 401
    assert http_status(Unauthorised("x")) == 403
    assert http_status(InvalidArgument("x")) == 400
    assert http_status(BusError("x")) == 500
