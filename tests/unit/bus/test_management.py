"""`ams` and `df` as agents: requests in fipa-sl0 and in JSON, and the act and reason of each answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fakes import NotingOrigin

from gagent_grpc.acl import sl0
from gagent_grpc.acl.aid import AgentIdentifier
from gagent_grpc.acl.descriptions import AMSAgentDescription, DFAgentDescription, LifeCycleState, ServiceDescription
from gagent_grpc.acl.message import ACLMessage
from gagent_grpc.acl.performative import Performative
from gagent_grpc.bus.platform import Hello, Platform
from gagent_grpc.codec.envelope import EnvelopeCodec
from gagent_grpc.config import BusLimits
from gagent_grpc.storage.memory import MemoryStore
from gagent_grpc.testing import FakeClock

ONTOLOGY = "fipa-agent-management"
SUM = DFAgentDescription(services=(ServiceDescription(type="sum"),))


class Bench:
    """A platform with the agents alice and bob; alice asks."""

    def __init__(self) -> None:
        limits = BusLimits()
        self.codec = EnvelopeCodec(max_id_bytes=limits.max_id_bytes)
        self.platform = Platform("local", MemoryStore(), self.codec, FakeClock(), limits)
        self.origin = NotingOrigin("alice@local")

    async def start(self) -> Bench:
        for name in ("alice", "bob"):
            await self.platform.attach(Hello(name, description=SUM if name == "bob" else None), "local")
        return self

    def ask(self, whom: str, content: Any, **changes: Any) -> ACLMessage | None:
        """Send a request; return the answer that is in the mailbox."""
        fields: dict[str, Any] = {
            "content": json.dumps(content) if isinstance(content, dict) else content,
            "ontology": ONTOLOGY,
            "protocol": "fipa-request",
            "conversation_id": "c",
            "reply_with": "r",
        }
        fields.update(changes)
        act = fields.pop("act", Performative.REQUEST)
        message = ACLMessage(act, receivers=(AgentIdentifier(whom),), **fields)
        self.platform.router.submit(self.codec.encode(message, message_id=""), self.origin, 1)
        record = self.platform.ams.find("alice")
        if record is None:
            return None
        letters = record.mailbox.drain()
        assert len(letters) <= 1
        return self.codec.decode_acl(letters[0].envelope.payload) if letters else None

    def answer(self, whom: str, content: Any, **changes: Any) -> tuple[str, Any]:
        """Send a request; return the act and the content of the answer, read as JSON where it is that."""
        found = self.ask(whom, content, **changes)
        assert found is not None
        assert str(found.sender) == f"{whom}@local"
        assert (found.conversation_id, found.in_reply_to, found.protocol) == ("c", "r", "fipa-request")
        text = str(found.content)
        return str(found.performative), json.loads(text) if text.startswith("{") else text


@pytest.fixture
async def bench() -> Bench:
    return await Bench().start()


def action(actor: str, function: str) -> str:
    return f"((action (agent-identifier :name {actor}@local) ({function})))"


REGISTER_DF = "register (df-agent-description :name (agent-identifier :name alice@local) :services (set (service-description :name s :type sum)))"
SEARCH_SUM = (
    "search (df-agent-description :services (set (service-description :type sum))) (search-constraints :max-results -1)"
)


# ---- fipa-sl0 --------------------------------------------------------------------------------------------------------


async def test_df_request_in_sl0_is_done_and_answered_with_result_or_done(bench: Bench) -> None:
    act, text = bench.answer("df", action("df", REGISTER_DF))
    assert act == "inform"
    answer = sl0.parse_answer(text)
    assert isinstance(answer, sl0.Done | sl0.Result)
    assert bench.platform.df.get("alice@local") is not None
    act, text = bench.answer("df", action("df", SEARCH_SUM), language="FIPA-SL0")
    answer = sl0.parse_answer(text)
    assert isinstance(answer, sl0.Result)
    assert [item.name for item in answer.items] == ["bob@local", "alice@local"]
    deregister = "deregister (df-agent-description :name (agent-identifier :name alice@local))"
    act, text = bench.answer("df", action("df", deregister))
    assert act == "inform"
    assert isinstance(sl0.parse_answer(text), sl0.Done)
    assert bench.platform.df.get("alice@local") is None


async def test_addresses_of_the_actor_are_not_repeated(bench: Bench) -> None:
    for index in range(300):
        await bench.platform.attach(Hello(f"s{index}", description=SUM), "")
    addresses = " ".join(["a"] * 20_000)
    actor = f"(agent-identifier :name df@local :addresses (sequence {addresses}))"
    act, text = bench.answer("df", f"((action {actor} ({SEARCH_SUM})))")
    assert act == "inform"
    answer = sl0.parse_answer(text)
    assert isinstance(answer, sl0.Result)
    assert len(answer.items) == 301
    assert answer.action.actor == AgentIdentifier("df@local")


async def test_search_without_a_limit_returns_one(bench: Bench) -> None:
    bench.answer("df", action("df", REGISTER_DF))
    _, text = bench.answer("df", action("df", "search (df-agent-description)"))
    answer = sl0.parse_answer(text)
    assert isinstance(answer, sl0.Result)
    assert len(answer.items) == 1


async def test_ams_search_and_description_in_sl0(bench: Bench) -> None:
    _, text = bench.answer("ams", action("ams", "search (ams-agent-description) (search-constraints :max-results -1)"))
    answer = sl0.parse_answer(text)
    assert isinstance(answer, sl0.Result)
    assert [item.name for item in answer.items] == ["alice@local", "bob@local"]


async def test_platform_describes_itself_in_both_languages(bench: Bench) -> None:
    bench.platform.addresses.append("127.0.0.1:50051")
    act, text = bench.answer("ams", action("ams", "get-description"))
    answer = sl0.parse_answer(text)
    assert act == "inform"
    assert isinstance(answer, sl0.Result)
    assert answer.items == (bench.platform.get_description(),)
    act, answer = bench.answer("ams", {"action": "get_description"})
    (described,) = answer["result"]
    assert (act, described["name"]) == ("inform", "local")
    assert described["services"][0] == {
        "name": "ams@local",
        "type": "fipa.agent-management.ams",
        "addresses": ["127.0.0.1:50051"],
    }
    assert [one["name"] for one in described["services"]] == ["ams@local", "df@local", "gagent.v1.BusService"]


async def test_modify_changes_owner_and_state_and_returns_the_entry(bench: Bench) -> None:
    function = "modify (ams-agent-description :name (agent-identifier :name alice) :ownership ops :state waiting)"
    act, text = bench.answer("ams", action("ams", function))
    answer = sl0.parse_answer(text)
    assert act == "inform"
    assert isinstance(answer, sl0.Result)
    assert answer.items == (AMSAgentDescription(name="alice@local", ownership="ops", state=LifeCycleState.WAITING),)
    act, answer = bench.answer("ams", {"action": "modify", "description": {"name": "bob", "state": "suspended"}})
    assert (act, answer["result"]) == ("inform", [{"name": "bob@local", "state": "suspended"}])


@pytest.mark.parametrize(
    ("whom", "function", "act", "reason"),
    [
        ("df", "frobnicate", "refuse", "(unsupported-function frobnicate)"),
        (
            "ams",
            "modify (ams-agent-description :ownership x)",
            "refuse",
            "(missing-parameter ams-agent-description name)",
        ),
        ("ams", "modify (ams-agent-description :name (agent-identifier :name nobody))", "failure", "not-registered"),
        (
            "ams",
            "modify (ams-agent-description :name (agent-identifier :name bob) :state waiting)",
            "refuse",
            "unauthorised",
        ),
        ("df", "get-description", "refuse", "unsupported-function"),
        ("df", REGISTER_DF.replace("alice", "bob"), "refuse", "unauthorised"),
        ("df", REGISTER_DF.replace("alice", "nobody"), "failure", "not-registered"),
        ("df", REGISTER_DF.replace(":type sum", ""), "refuse", "(missing-parameter service-description type)"),
        ("df", "register", "refuse", "missing-parameter"),
        (
            "df",
            "search (df-agent-description) (search-constraints :max-results 0)",
            "refuse",
            "unrecognised-parameter-value",
        ),
        ("df", "deregister (df-agent-description :name (agent-identifier :name alice))", "failure", "not-registered"),
        ("df", "modify (df-agent-description :name (agent-identifier :name alice))", "failure", "not-registered"),
        ("ams", "register (ams-agent-description :name (agent-identifier :name bob))", "failure", "already-registered"),
        (
            "ams",
            "register (ams-agent-description :ownership x)",
            "refuse",
            "(missing-parameter ams-agent-description name)",
        ),
        ("ams", "register (ams-agent-description :name (agent-identifier :name df))", "refuse", "unauthorised"),
        (
            "ams",
            "deregister (ams-agent-description :name (agent-identifier :name nobody))",
            "failure",
            "not-registered",
        ),
    ],
)
async def test_request_that_cannot_be_done_has_its_act_and_reason(
    bench: Bench, whom: str, function: str, act: str, reason: str
) -> None:
    got, text = bench.answer(whom, action(whom, function))
    assert got == act
    assert reason in text
    assert isinstance(sl0.parse_answer(text), sl0.Exceptional)


async def test_agent_that_is_registered_by_another_has_a_mailbox(bench: Bench) -> None:
    function = "register (ams-agent-description :name (agent-identifier :name carol@local) :ownership ops)"
    act, text = bench.answer("ams", action("ams", function))
    assert act == "inform"
    assert isinstance(sl0.parse_answer(text), sl0.Done)
    carol = bench.platform.ams.get("carol")
    assert (carol.state, carol.ownership) == (LifeCycleState.INITIATED, "ops")
    act, _ = bench.answer(
        "ams", action("ams", "deregister (ams-agent-description :name (agent-identifier :name carol))")
    )
    assert act == "inform"
    assert bench.platform.ams.find("carol") is None


# ---- JSON ------------------------------------------------------------------------------------------------------------


async def test_requests_in_json_are_answered_in_json(bench: Bench) -> None:
    offer = {"services": [{"type": "paint"}]}
    act, answer = bench.answer("df", {"action": "register", "description": offer})
    assert act == "inform"
    assert answer["result"][0]["name"] == "alice@local"
    act, answer = bench.answer("df", {"action": "search", "description": {}, "constraints": {"max_results": -1}})
    assert act == "inform"
    assert [one["name"] for one in answer["result"]] == ["bob@local", "alice@local"]
    assert bench.answer("df", {"action": "modify", "description": SING})[0] == "inform"
    entry = bench.platform.df.get("alice@local")
    assert entry is not None
    assert [service.type for service in entry.services] == ["sing"]
    assert bench.answer("df", {"action": "deregister"}) == ("inform", {"done": "deregister"})
    act, answer = bench.answer("ams", {"action": "search", "constraints": {"max_results": -1}})
    assert [one["name"] for one in answer["result"]] == ["alice@local", "bob@local"]


SING = {"services": [{"type": "sing"}]}


@pytest.mark.parametrize(
    ("whom", "content", "act", "error"),
    [
        ("df", {"action": "frobnicate"}, "refuse", "unsupported-function"),
        ("df", {"action": "register", "description": {"services": [{}]}}, "refuse", "missing-parameter"),
        ("df", {"action": "register", "description": {"name": "bob", **SING}}, "refuse", "unauthorised"),
        ("df", {"action": "modify", "description": SING}, "failure", "not-registered"),
        ("df", {"action": "deregister"}, "failure", "not-registered"),
        ("ams", {"action": "modify", "description": {"state": "active"}}, "refuse", "missing-parameter"),
        (
            "ams",
            {"action": "modify", "description": {"name": "alice", "state": "unknown"}},
            "refuse",
            "precondition-failed",
        ),
        ("df", {"action": "get_description"}, "refuse", "unsupported-function"),
        ("ams", {"action": "register", "description": {"ownership": "x"}}, "refuse", "missing-parameter"),
        ("ams", {"action": "register", "description": {"name": "bob"}}, "failure", "already-registered"),
        ("ams", {}, "refuse", "missing-parameter"),
    ],
)
async def test_request_in_json_that_cannot_be_done_has_its_act_and_reason(
    bench: Bench, whom: str, content: dict[str, Any], act: str, error: str
) -> None:
    got, answer = bench.answer(whom, content)
    assert (got, answer["error"]) == (act, error)
    assert answer["detail"]


async def test_search_that_comes_again_is_a_failure_in_both_languages(bench: Bench) -> None:
    function = "search (df-agent-description) (search-constraints :search-id s1 :max-depth 3)"
    assert bench.answer("df", action("df", function))[0] == "inform"
    act, text = bench.answer("df", action("df", function))
    assert act == "failure"
    assert "made here before" in text
    act, answer = bench.answer("df", {"action": "search", "constraints": {"search_id": "s1", "max_depth": -1}})
    assert (act, answer["error"]) == ("failure", "search-repeated")


# ---- what is no request ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [one for one in Performative if one is not Performative.REQUEST])
@pytest.mark.parametrize("whom", ["ams", "df"])
async def test_act_that_is_not_served_is_not_understood_and_failures_are_not_answered(
    bench: Bench, whom: str, act: Performative
) -> None:
    found = bench.ask(whom, "hello", act=act)
    if whom == "df" and act in {Performative.SUBSCRIBE, Performative.CANCEL}:
        assert found is not None
        assert found.performative in {Performative.REFUSE, Performative.FAILURE}
    elif act in {Performative.FAILURE, Performative.NOT_UNDERSTOOD, Performative.REFUSE}:
        assert found is None
    else:
        assert found is not None
        assert found.performative is Performative.NOT_UNDERSTOOD
        assert "unsupported-act" in str(found.content)
    assert bench.origin.reached == [(1, whom)]


async def test_other_ontology_is_not_understood_and_its_case_does_not_matter(bench: Bench) -> None:
    for content in ({"action": "search"}, action("df", SEARCH_SUM)):
        found = bench.ask("df", content, ontology="beer")
        assert found is not None
        assert found.performative is Performative.NOT_UNDERSTOOD
        assert "unsupported-value" in str(found.content)
        for ontology in (None, "FIPA-Agent-Management"):
            found = bench.ask("df", content, ontology=ontology)
            assert found is not None
            assert found.performative is Performative.INFORM


@pytest.mark.parametrize(
    ("content", "language"),
    [
        (None, None),
        (b"\xff\x00", None),
        ("", None),
        ("hello", None),
        ("(", None),
        ("(" * 100_000, None),
        ("[" * 100_000, None),
        ('{"a":' * 100_000, None),
        ("x" * 500_000, "fipa-sl0"),
        ('{"action": "search"}', "fipa-sl0"),
        ("()", "json"),
        ('{"action": "search", "constraints": {"max_results": 1e400}}', None),
        ('{"action": "search", "constraints": {"max_results": "many"}}', None),
        ('{"action": "search", "description": [1]}', None),
        ('{"action": ["search"]}', None),
        ('"search"', None),
        ("1" * 10_000, None),
        (
            "((action (agent-identifier :name df@local) (search (df-agent-description :lease-time 99991231T235959999Z))))",
            None,
        ),
        ('{"action": "register", "description": {"name": "' + "x" * 1_000 + '"}}', None),
        ('{"action": "register", "description": {"services": [{"type": "a"}], "lease_s": NaN}}', None),
    ],
    ids=lambda value: repr(value)[:30],
)
@pytest.mark.parametrize("whom", ["ams", "df"])
async def test_any_content_is_answered_and_the_bus_goes_on(
    bench: Bench, whom: str, content: Any, language: str | None
) -> None:
    found = bench.ask(whom, content, language=language)
    assert found is not None
    assert found.performative in {
        Performative.REFUSE,
        Performative.FAILURE,
        Performative.NOT_UNDERSTOOD,
        Performative.INFORM,
    }
    assert "Traceback" not in str(found.content)
    assert "internal" not in str(found.content)
    assert bench.answer("df", {"action": "search"})[0] == "inform"


async def test_defect_in_a_platform_agent_is_an_internal_error_and_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("secret")

    monkeypatch.setattr(bench.platform, "search_agents", broken)
    act, answer = bench.answer("ams", {"action": "search"})
    assert (act, answer["error"]) == ("failure", "internal-error")
    assert "secret" not in answer["detail"]


async def test_agent_that_deregisters_itself_is_gone_and_nothing_is_left(bench: Bench) -> None:
    session = bench.platform.ams.get("alice").session
    assert session is not None
    assert bench.ask("ams", {"action": "deregister"}) is None
    assert bench.platform.ams.find("alice") is None
    assert session.ended
    assert bench.origin.reached == [(1, "ams")]
    assert bench.platform.post.mail_bytes == 0


async def test_nobody_in_particular_governs_nobody(bench: Bench) -> None:
    bench.origin.aid = "anonymous"
    assert bench.ask("ams", {"action": "deregister", "description": {"name": "bob"}}) is None
    assert bench.ask("ams", {"action": "deregister"}) is None
    assert bench.platform.ams.find("bob") is not None


@pytest.mark.parametrize("language", ["json", "fipa-sl0"])
@pytest.mark.parametrize("whom", ["ams", "df"])
async def test_search_stops_at_what_a_message_can_carry_and_says_how_many_fit(whom: str, language: str) -> None:
    bench = await Bench().start()
    platform = bench.platform
    for index in range(1_200):
        described = DFAgentDescription(services=(ServiceDescription(type="sum", name="x" * 1_000),))
        platform.register(f"a{index}", "x" * 1_000, platform.caller_for("x"))
        await platform.attach(Hello(f"a{index}", description=described), "")
    if language == "json":
        content: Any = {"action": "search", "constraints": {"max_results": -1}}
    else:
        pattern = f"({whom}-agent-description)"
        content = (
            f"((action (agent-identifier :name {whom}@local) (search {pattern} (search-constraints :max-results -1))))"
        )
    answer = bench.ask(whom, content)
    assert answer is not None
    assert answer.performative is Performative.FAILURE
    text = str(answer.content)
    assert "results fit a message" in text
