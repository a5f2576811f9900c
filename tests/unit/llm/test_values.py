"""How long an endpoint asks to wait, how long is waited, and who asked whom."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gagent_grpc import InvalidArgument
from gagent_grpc.acp.tasks import DelegatedTask, TaskKey, TaskState
from gagent_grpc.llm import RetryPolicy
from gagent_grpc.llm.chain import attachment_with, chain_of, chain_of_task, parameters_with
from gagent_grpc.llm.providers.sdk import retry_after_of

NOW = datetime(2026, 3, 1, 10, 0, 0, tzinfo=UTC)
NAMES = st.lists(st.sampled_from(["a@x", "b@x", "ü@x", "c@hub.example:1099/JADE", "d@y"]), unique=True)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after-ms": "40", "retry-after": "1"}, 0.04),
        ({"retry-after": "Sun, 01 Mar 2026 10:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 01 Mar 2026 09:00:00 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.0),
        ({"retry-after": "1e99"}, 86_400.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_how_long_headers_ask_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_of(headers, NOW.timestamp()) == seconds


@given(attempt=st.integers(1, 10_000), drawn=st.floats(0, 1))
def test_a_wait_is_drawn_below_a_bound_that_doubles(attempt: int, drawn: float) -> None:
    policy = RetryPolicy(initial_delay=0.5, max_delay=8.0)
    assert 0 <= policy.delay(attempt, drawn) <= min(8.0, 0.5 * 2 ** min(attempt - 1, 10))


@pytest.mark.parametrize(
    "options", [{"attempts": 0}, {"initial_delay": -1.0}, {"initial_delay": 2.0, "max_delay": 1.0}]
)
def test_a_policy_that_is_none(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument):
        RetryPolicy(**options)  # type: ignore[arg-type]


@given(chain=NAMES, sender=st.sampled_from(["a@x", "z@x"]))
def test_a_chain_ends_with_whom_the_bus_vouches_for(chain: list[str], sender: str) -> None:
    found = chain_of(sender, parameters_with(chain))
    assert found == (*(one for one in chain if one != sender), sender)
    assert chain_of(sender, {}) == (sender,)


@given(chain=NAMES, delegator=st.sampled_from(["a@x", "z@x"]))
def test_a_chain_of_a_task_is_what_is_said_and_what_the_bus_knows(chain: list[str], delegator: str) -> None:
    task = DelegatedTask(
        "t", delegator, "b", "b@x", "do it", TaskState.RUNNING, NOW, NOW,
        parent=TaskKey("middle@x", "p"), root=TaskKey("first@x", "r"), attachments=(attachment_with(chain),),
    )  # fmt: skip
    found = chain_of_task(task)
    assert found[:2] == ("first@x", "middle@x")
    assert found[-1] == delegator
    assert set(found) == {"first@x", "middle@x", delegator, *chain}


def test_a_chain_that_somebody_made_up_has_an_end() -> None:
    assert len(chain_of("a@x", {"X-asked-by": " ".join(f"n{number}@x" for number in range(10_000))})) == 65
