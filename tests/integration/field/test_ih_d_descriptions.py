"""IH-D: descriptions of the DF and the AMS in their JSON form, and the words of the errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gagent_grpc import (
    Agent,
    BusLimits,
    DFAgentDescription,
    FailureFromAgent,
    LifeCycleState,
    Property,
    RefusedByAgent,
    ServiceDescription,
)

ENTRY = json.loads(
    '{"name":"sum1@n1","services":[{"name":"s-en","type":"summarise","protocols":["fipa-request"],"ontologies":["docs"],'
    '"languages":["fipa-sl0"],"ownership":"ops","properties":{"max_tokens":"4000","lang":"en"}}],'
    '"protocols":["fipa-request","fipa-query"],"lease_s":30}'
)
KEPT = {**ENTRY, "protocols": sorted(ENTRY["protocols"])}
"""The same as it is written by the bus: sets have no order of their own."""
SEARCH = json.loads(
    '{"search":{"services":[{"type":"summarise","properties":{"lang":"en"}}]},"constraints":{"max_results":-1}}'
)
OF_AMS = json.loads('{"ams":{"name":"sum1@n1","ownership":"ops","state":"active"}}')["ams"]


@pytest.fixture
async def sum1(buses: Any) -> AsyncIterator[Agent]:
    """The agent of the descriptions, on its platform."""
    bus = await buses(platform="n1", limits=BusLimits(drain_grace=1.0))
    async with Agent("sum1", bus=bus.address, ownership="ops") as agent:
        yield agent


async def ask(agent: Agent, whom: str, **request: Any) -> Any:
    """Return what `df` or `ams` answers, as JSON."""
    answer = await agent.request(whom, json.dumps(request), ontology="fipa-agent-management")
    return json.loads(str(answer.content))


async def test_ih_d_entry_of_the_df_comes_back_as_it_was_written(sum1: Agent) -> None:
    assert await ask(sum1, "df", action="register", description=ENTRY) == {"result": [KEPT]}
    found = await ask(sum1, "df", action="search", description=SEARCH["search"], constraints=SEARCH["constraints"])
    assert found == {"result": [KEPT]}
    (described,) = await sum1.df.search_all("summarise")
    (service,) = described.services
    assert described == DFAgentDescription(
        name="sum1@n1",
        services=(service,),
        protocols=frozenset({"fipa-request", "fipa-query"}),
        lease_seconds=30,
    )
    assert service == ServiceDescription(
        name="s-en",
        type="summarise",
        protocols=frozenset({"fipa-request"}),
        ontologies=frozenset({"docs"}),
        languages=frozenset({"fipa-sl0"}),
        ownership="ops",
        # Numbers stay the text that they were.
        properties=(Property("max_tokens", "4000"), Property("lang", "en")),
    )
    other = {"services": [{"type": "summarise", "properties": {"lang": "de"}}]}
    assert await ask(sum1, "df", action="search", description=other) == {"result": []}


async def test_ih_d_entry_of_the_ams_comes_back_as_it_was_written(sum1: Agent) -> None:
    assert await ask(sum1, "ams", action="search", description=OF_AMS) == {"result": [OF_AMS]}
    modified = await ask(sum1, "ams", action="modify", description={**OF_AMS, "ownership": "dev"})
    assert modified == {"result": [{**OF_AMS, "ownership": "dev"}]}


@pytest.mark.parametrize("state", [state for state in LifeCycleState if state is not LifeCycleState.UNKNOWN])
async def test_ih_d_states_are_the_words_of_the_standard(sum1: Agent, state: LifeCycleState) -> None:
    word = str(state)
    assert word in {"initiated", "active", "suspended", "waiting", "transit"}
    found = await ask(sum1, "ams", action="search", description={"state": word})
    assert [one["state"] for one in found["result"]] == (["active"] if word == "active" else [])


@pytest.mark.parametrize(
    ("whom", "request_", "ending", "word"),
    [
        ("ams", {"action": "register", "description": {"name": "sum1"}}, FailureFromAgent, "already-registered"),
        ("df", {"action": "deregister"}, FailureFromAgent, "not-registered"),
        ("ams", {"action": "deregister", "description": {"name": "df"}}, RefusedByAgent, "unauthorised"),
        ("df", {"action": "register", "description": {"services": [{}]}}, RefusedByAgent, "missing-parameter"),
        ("df", {"action": "sing"}, RefusedByAgent, "unsupported-function"),
    ],
)
async def test_ih_d_errors_are_the_words_of_the_standard(
    sum1: Agent, whom: str, request_: dict[str, Any], ending: type[Exception], word: str
) -> None:
    with pytest.raises(ending) as raised:
        await ask(sum1, whom, **request_)
    assert json.loads(getattr(raised.value, "text"))["error"] == word  # noqa: B009  # Of both classes.
