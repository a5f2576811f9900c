"""Which pages may connect, and where a gateway may listen."""

from __future__ import annotations

import pytest

from gagent_grpc.errors import ConfigurationError
from gagent_grpc.gateway.origins import Address, Origins


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_an_address_is_read_and_said_the_same(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":8080", "here", "here:", "here:65536", "::1:80", "here:x", "here:٣", f"here:{'1' * 5000}"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected HOST:PORT"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("host", "loopback", "everywhere"),
    [("127.0.0.1", True, False), ("::1", True, False), ("localhost", True, False), ("0.0.0.0", False, True),
     ("::", False, True), ("10.0.0.1", False, False), ("host.example", False, False)],
)  # fmt: skip
def test_an_address_tells_who_reaches_it(host: str, loopback: bool, everywhere: bool) -> None:
    assert (Address(host, 1).is_loopback, Address(host, 1).is_any) == (loopback, everywhere)


LOCAL = Origins(Address("127.0.0.1", 8080), ["https://console.example", "http://dev.example:3000/"[:-1]])


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:8080",
        "http://localhost:8080",
        "http://[::1]:8080",
        "HTTP://LocalHost:8080",
        "https://console.example",
        "https://console.example:443",
        "http://dev.example:3000",
    ],
)
def test_own_pages_and_named_ones_may_connect(origin: str) -> None:
    assert LOCAL.allows(origin)


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "http://evil.example",
        # A page whose name leads here.
        "http://evil.example:8080",
        "http://127.0.0.1",
        "http://127.0.0.1:8081",
        "https://127.0.0.1:8080",
        "http://127.0.0.1:8080.evil.example",
        "http://127.0.0.1:8080@evil.example",
        "http://evil.example#http://127.0.0.1:8080",
        "http://console.example",
        "https://console.example.evil.example",
        "https://console.example:444",
        "file://127.0.0.1:8080",
        "http://[::1",
        "http://127.0.0.1:x",
    ],
)
def test_others_may_not(origin: str) -> None:
    assert not LOCAL.allows(origin)


def test_an_address_of_the_network_has_one_name_and_one_that_stands_for_all_has_none() -> None:
    named = Origins(Address("10.0.0.1", 80))
    assert named.allows("http://10.0.0.1")
    assert not named.allows("http://localhost")
    everywhere = Origins(Address("0.0.0.0", 80), ["http://host.example"])
    assert not everywhere.allows("http://0.0.0.0")
    assert not everywhere.allows("http://10.0.0.1")
    assert everywhere.allows("http://host.example")


@pytest.mark.parametrize("origin", ["*", "console.example", "https://", "https://a.example/path", "ws://a.example", ""])
def test_what_is_no_origin_is_named(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="expected SCHEME://HOST"):
        Origins(Address("127.0.0.1", 1), [origin])
