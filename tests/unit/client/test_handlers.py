from __future__ import annotations

import functools
from typing import Any

import pytest

from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.performative import Performative
from gagent_grpc.client.handlers import Handlers
from gagent_grpc.client.message import Received
from gagent_grpc.errors import InvalidArgument, UnknownPerformative
from gagent_grpc.pb.gagent.v1 import bus_service_pb2 as pb


def received(performative: Performative = Performative.INFORM, sender: str = "alice", **texts: Any) -> Received:
    delivery = pb.Delivery(sequence=1, sender=f"{sender}@local", receiver="bob@local")
    delivery.message.acl.performative = int(performative)  # type: ignore[assignment]
    for name, value in texts.items():
        setattr(delivery.message.acl, name, value)
    return Received(delivery, AgentIdentifier(sender))


def found(handlers: Handlers, message: Received) -> Any:
    entry = handlers.find(message)
    return entry.handler if entry is not None else None


def made(*registrations: tuple[Any, dict[str, Any]]) -> tuple[Handlers, list[Any]]:
    handlers = Handlers()
    functions: list[Any] = [lambda message: None for _ in registrations]
    for (performative, parameters), function in zip(registrations, functions, strict=True):
        handlers.add(performative, parameters, function)
    return handlers, functions


def test_the_first_that_fits_gets_the_message() -> None:
    handlers, (first, second, third) = made(
        ("request", {"ontology": "weather"}), (Performative.REQUEST, {}), (None, {"content": "x"})
    )
    assert found(handlers, received(Performative.REQUEST, ontology="weather")) is first
    assert found(handlers, received(Performative.REQUEST, ontology="news")) is second
    assert found(handlers, received(Performative.INFORM, text="x")) is third
    assert found(handlers, received(Performative.INFORM, text="y")) is None


@pytest.mark.parametrize("wanted", ["alice", "alice@local", AgentIdentifier("alice", addresses=("x",))])
def test_a_sender_is_meant_by_name_with_or_without_platform(wanted: Any) -> None:
    handlers, (function,) = made((None, {"sender": wanted}))
    assert found(handlers, received()) is function
    assert found(handlers, received(sender="alic")) is None


def test_absent_and_empty_differ_and_text_is_not_bytes() -> None:
    handlers, (absent, empty, octets) = made(
        (None, {"ontology": None, "content": None}), (None, {"ontology": ""}), (None, {"content": b"x"})
    )
    assert found(handlers, received()) is absent
    assert found(handlers, received(ontology="")) is empty
    assert found(handlers, received(ontology="o", data=b"x")) is octets
    assert found(handlers, received(ontology="o", text="b'x'")) is None


def test_what_cannot_be_matched_is_refused_when_it_is_registered() -> None:
    handlers = Handlers()
    with pytest.raises(UnknownPerformative):
        handlers.add("shout", {}, print)
    with pytest.raises(InvalidArgument, match="'performative' is no ACL parameter"):
        handlers.add(None, {"performative": "inform"}, print)
    with pytest.raises(InvalidArgument, match="'topic' is no ACL parameter; expected one of sender, receivers"):
        handlers.add(None, {"topic": "x"}, print)


def test_what_runs_on_the_loop_and_what_in_a_thread() -> None:
    async def coroutine(message: Received) -> None: ...
    def function(message: Received) -> None: ...

    class Object:
        async def __call__(self, message: Received) -> None: ...

        async def method(self, message: Received) -> None: ...

    forms = {
        coroutine: True,
        functools.partial(coroutine): True,
        Object(): True,
        Object().method: True,
        function: False,
        functools.partial(function): False,
        print: False,
    }
    for form, is_async in forms.items():
        handlers = Handlers()
        handlers.add(None, {}, form)
        entry = handlers.find(received())
        assert entry is not None
        assert entry.is_async is is_async, form
