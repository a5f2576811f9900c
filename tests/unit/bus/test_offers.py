"""What searches find of an agent, and when that is another thing: sessions, states, leases and entries."""

from __future__ import annotations

from typing import Any

import pytest

from gagent_grpc.acl.changes import DescriptionEventKind as Kind
from gagent_grpc.acl.descriptions import DFAgentDescription, SearchConstraints, ServiceDescription
from gagent_grpc.bus.ams import AgentManagementSystem, AgentRecord
from gagent_grpc.bus.df import DirectoryFacilitator
from gagent_grpc.bus.mailbox import Mailbox
from gagent_grpc.bus.offers import Offers, news_of
from gagent_grpc.config import BusLimits
from gagent_grpc.errors import ResourceExhausted
from gagent_grpc.testing import FakeClock

ALL = SearchConstraints(max_results=-1)
SUMS = DFAgentDescription(services=(ServiceDescription(type="sum"),))


def entry(name: str, *types: str, lease: float | None = None) -> DFAgentDescription:
    services = tuple(ServiceDescription(type=one) for one in types)
    return DFAgentDescription(name=name, services=services, lease_seconds=lease)


class Market:
    """Offers of agents that come and go."""

    def __init__(self, **limits: Any) -> None:
        self.clock = FakeClock()
        self.ams = AgentManagementSystem("local", max_agents=10)
        self.df = DirectoryFacilitator(max_entries=10)
        self.offers = Offers(self.ams, self.df, self.clock, BusLimits(**limits))

    def open(self, name: str) -> AgentRecord:
        box = Mailbox(max_messages=4, max_bytes=1_000)
        record = AgentRecord(name, "local", principal="", mailbox=box, registered_at=0.0)
        self.ams.add(record)
        session: Any = object()
        record.session = session
        self.ams.invoke(record)
        return record

    def found(self) -> list[str | None]:
        return [one.name for one in self.offers.search(SUMS, ALL)]


@pytest.fixture
def market() -> Market:
    return Market()


def test_each_change_of_what_is_found_is_told_once(market: Market) -> None:
    record = market.open("a")
    assert market.offers.refresh("a@local", "nothing yet") is None
    market.df.register(entry("a@local", "sum"), now=market.clock.time())
    added = market.offers.refresh("a@local", "registered")
    assert added is not None
    assert (added.before, added.cause) == (None, "registered")
    assert market.offers.refresh("a@local", "again") is None
    record.session = None
    gone = market.offers.refresh("a@local", "agent lost")
    assert gone is not None
    assert (gone.before, gone.after) == (added.after, None)
    assert market.offers.refresh("a@local", "again") is None


@pytest.mark.parametrize("how", ["away", "suspended", "lease ended", "withdrawn"])
def test_what_is_not_there_is_not_found_and_its_end_is_a_change(market: Market, how: str) -> None:
    record = market.open("a")
    market.df.register(entry("a@local", "sum", lease=10.0), now=market.clock.time())
    market.offers.refresh("a@local", "")
    assert market.found() == ["a@local"]
    if how == "away":
        record.session = None
    elif how == "suspended":
        market.ams.suspend(record)
    elif how == "lease ended":
        market.clock.advance(11.0)
    else:
        market.df.withdraw("a@local")
    assert market.found() == []
    change = market.offers.refresh("a@local", how)
    assert change is not None
    assert change.after is None


async def test_a_watch_begins_with_what_is_found_and_goes_on_from_its_cursor(market: Market) -> None:
    market.open("a")
    market.open("b")
    market.df.register(entry("a@local", "sum"), now=0.0)
    market.offers.refresh("a@local", "")
    with market.offers.watch(SUMS, "") as watch:
        present, end = await watch.next()
        assert (present.kind, present.cursor, end.kind) == (Kind.PRESENT, "", Kind.SNAPSHOT_END)
        market.df.register(entry("b@local", "sing"), now=0.0)
        market.offers.refresh("b@local", "not for this one")
        market.df.modify(entry("b@local", "sum"), now=0.0)
        market.offers.refresh("b@local", "modified")
        (added,) = await watch.next()
    assert (added.kind, added.cause) == (Kind.ADDED, "modified")
    with market.offers.watch(SUMS, end.cursor) as again:
        (seen,) = await again.next()
    assert (seen.kind, seen.cursor) == (Kind.ADDED, added.cursor)


def test_one_caller_cannot_have_all_the_watches() -> None:
    market = Market(max_watches=4)
    with market.offers.watch(SUMS, "", ("alice",)):
        with pytest.raises(ResourceExhausted, match=r"alice has 1 .*max_watches"):
            market.offers.watch(SUMS, "", ("alice",))
        market.offers.watch(SUMS, "", ("bob",)).__exit__(None, None, None)
    market.offers.watch(SUMS, "", ("alice",)).__exit__(None, None, None)


def test_what_a_change_is_depends_on_what_is_watched() -> None:
    sums, sings = entry("a@local", "sum"), entry("a@local", "sing")
    assert news_of(SUMS, None, sums) == (Kind.ADDED, sums)
    assert news_of(SUMS, sums, entry("a@local", "sum", "sing")) == (Kind.CHANGED, entry("a@local", "sum", "sing"))
    assert news_of(SUMS, sums, sings) == (Kind.REMOVED, DFAgentDescription(name="a@local"))
    assert news_of(SUMS, sums, None) == (Kind.REMOVED, DFAgentDescription(name="a@local"))
    assert news_of(SUMS, sings, None) is None
