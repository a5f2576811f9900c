from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from waiting import until

from gagent_grpc.client.lanes import Job, Lanes


class Work:
    """Runs jobs for lanes: each waits until the test says how it ends."""

    def __init__(self, concurrency: int = 64) -> None:
        self.lanes = Lanes(self._run, concurrency=concurrency)
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._ends: dict[int, asyncio.Future[bool]] = {}

    async def _run(self, job: Job) -> bool:
        self.begun.append(job.sequence)
        self._ends[job.sequence] = asyncio.get_running_loop().create_future()
        go_on = await self._ends[job.sequence]
        self.ended.append(job.sequence)
        return go_on

    def add(self, *jobs: str) -> None:
        """Add jobs `lane + sequence`, such as "a1"; "A2" is an urgent one beside the lane a."""
        self.lanes.add(
            [Job(None, None, int(one[1:]), ("s", one[1:]), ("s", one[0].lower(), one[0].isupper())) for one in jobs]
        )

    async def end(self, *sequences: int, go_on: bool = True) -> None:
        for sequence in sequences:
            self._ends.pop(sequence).set_result(go_on)
        await self.turn()

    async def turn(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    made = Work()
    yield made
    await made.lanes.aclose()


async def test_a_lane_is_worked_on_in_order_and_lanes_side_by_side(work: Work) -> None:
    work.add("a1", "a2", "b3", "a4")
    await work.turn()
    assert work.begun == [1, 3]
    await work.end(1)
    assert work.begun == [1, 3, 2]
    work.add("b5")
    await work.end(3, 2)
    assert sorted(work.begun) == [1, 2, 3, 4, 5]
    await work.end(4, 5)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_no_more_run_than_may_and_no_lane_is_left_out(concurrency: int) -> None:
    work = Work(concurrency)
    work.add("a1", "b2", "c3", "a4")
    begun = 0
    while len(work.ended) < 4:
        await work.turn()
        running = [one for one in work.begun if one not in work.ended]
        assert len(running) == min(concurrency, 4 - begun)
        begun += 1
        await work.end(running[0])
    # A busy lane goes to the end of the line.
    assert work.ended == [1, 2, 3, 4]
    await work.lanes.aclose()


async def test_work_that_comes_in_the_turn_in_which_a_worker_leaves_is_begun() -> None:
    begun: list[int] = []

    async def run(job: Job) -> bool:
        begun.append(job.sequence)
        if job.sequence < 20:
            # Comes after the worker's last step and before its task counts as done.
            asyncio.get_running_loop().call_soon(lanes.add, [next_job(job.sequence + 1)])
        return True

    def next_job(sequence: int) -> Job:
        return Job(None, None, sequence, ("s", str(sequence)), ("s", str(sequence), False))

    lanes = Lanes(run, concurrency=1)
    lanes.add([next_job(1)])
    await until(lambda: len(begun) == 20)
    await lanes.aclose()


async def test_work_that_never_waits_needs_few_workers() -> None:
    most = 0

    async def run(job: Job) -> bool:
        nonlocal most
        most = max(most, len(lanes._workers))
        return True

    lanes = Lanes(run, concurrency=64)
    lanes.add([Job(None, None, number, ("s", str(number)), ("s", str(number), False)) for number in range(1, 1000)])
    await until(lambda: not lanes._workers)
    # One, and another one at each turn that it leaves to others.
    assert most <= 2 + 1000 // 128
    assert not lanes._lanes


async def test_a_lane_stops_for_a_job_on_its_way_back_and_others_go_on(work: Work) -> None:
    work.add("a1", "a2", "b3")
    await work.turn()
    await work.end(1, go_on=False)
    await work.end(3)
    work.add("a4", "b5")
    await work.turn()
    assert work.begun == [1, 3, 5]
    # 2 came back with 1; 4 was delivered after the bus had heard of it, so it stands.
    work.lanes.returned(frozenset({1, 2}))
    await work.turn()
    assert work.begun == [1, 3, 5, 4]
    await work.end(4)
    work.add("a1")
    await work.turn()
    assert work.begun[-1] == 1
    await work.end(1, 5)
    assert not work.lanes._lanes


async def test_a_return_that_names_only_the_job_itself_lets_the_rest_of_its_lane_go_on(work: Work) -> None:
    work.add("a1", "a2")
    await work.turn()
    await work.end(1, go_on=False)
    work.lanes.returned(frozenset({9}))
    await work.turn()
    assert work.begun == [1]
    work.lanes.returned(frozenset({1}))
    await work.turn()
    assert work.begun == [1, 2]
    await work.end(2)


async def test_forgetting_drops_what_has_not_begun_and_keeps_the_order_of_what_comes_again(work: Work) -> None:
    work.add("a1", "a2", "b3", "b4")
    await work.turn()
    work.lanes.forget_waiting()
    work.add("a2", "b4")
    await work.end(1)
    assert work.begun == [1, 3, 2]
    await work.end(2)
    await work.end(3)
    await work.end(4)
    assert not work.lanes._lanes


async def test_forgetting_frees_a_lane_that_waits_for_a_return_unless_the_job_is_still_held(work: Work) -> None:
    work.add("a1", "a2", "b3", "b4")
    await work.turn()
    await work.end(1, 3, go_on=False)
    work.lanes.forget_waiting(held={3})
    work.add("a1", "b4")
    await work.turn()
    assert work.begun == [1, 3, 1]
    work.lanes.returned(frozenset({3, 4}))
    work.add("b3", "b4")
    await work.turn()
    assert work.begun == [1, 3, 1, 3]
    await work.end(1, 3)
    await work.end(4)


async def test_a_job_that_ends_badly_after_the_forgetting_stops_its_lane_until_the_next(work: Work) -> None:
    work.add("a1", "a2")
    await work.turn()
    work.lanes.forget_waiting()
    await work.end(1, go_on=False)
    work.lanes.forget_waiting()
    work.add("a1")
    await work.turn()
    assert work.begun == [1, 1]
    await work.end(1)


async def test_a_job_that_is_no_longer_this_agents_drops_out_with_a_return(work: Work) -> None:
    work.add("a1", "b2")
    await work.turn()
    work.lanes.returned(frozenset({1, 2}))
    await work.end(1, 2)
    assert not work.lanes._lanes


async def test_closing_begins_nothing_more_and_opening_again_does(work: Work) -> None:
    work.add("a1", "a2", "b3")
    await work.turn()
    work.lanes.close()
    work.add("c4")
    await work.end(1, 3)
    assert work.begun == [1, 3]
    work.lanes.reopen()
    work.add("a2")
    await work.turn()
    assert work.begun == [1, 3, 2]
    await work.end(2)


async def test_the_end_cancels_what_runs_and_a_new_beginning_works_also_when_nothing_had_begun(work: Work) -> None:
    work.add("a1", "b2")
    await work.lanes.aclose()
    assert (work.begun, work.lanes._workers) == ([], set())
    work.add("a1", "b2")
    await work.turn()
    assert work.begun == [1, 2]
    await work.lanes.aclose()
    assert work.ended == []
    work.add("a1")
    await work.turn()
    assert work.begun == [1, 2, 1]
    assert work.lanes.has_worker(next(iter(work.lanes._workers)))
    assert not work.lanes.has_worker(asyncio.current_task())


# ---- urgent work ------------------------------------------------------------------------------------------------------


async def test_an_urgent_job_does_not_wait_for_workers_that_are_busy_nor_for_its_own_conversation() -> None:
    work = Work(2)
    work.add("a1", "b2", "c3")
    await work.turn()
    work.add("A4", "D5", "A6")
    await work.turn()
    # One worker more than may otherwise, and no second one more.
    assert work.begun == [1, 2, 4]
    await work.end(4)
    assert sorted(work.begun) == [1, 2, 4, 5]
    await work.end(5)
    assert sorted(work.begun) == [1, 2, 4, 5, 6]
    await work.end(6)
    # What is not urgent gets no worker more by that.
    assert sorted(work.begun) == [1, 2, 4, 5, 6]
    await work.end(1)
    assert work.begun[-1] == 3
    await work.end(2)
    await work.end(3)
    assert sorted(work.ended) == [1, 2, 3, 4, 5, 6]
    await work.lanes.aclose()


async def test_urgent_jobs_are_begun_before_others_that_waited_longer() -> None:
    work = Work(1)
    work.add("a1", "b2", "c3")
    await work.turn()
    work.add("D4")
    await work.turn()
    assert work.begun == [1, 4]
    work.add("E5")
    # Whoever is done first takes the urgent one.
    await work.end(1)
    assert work.begun == [1, 4, 5]
    await work.end(4)
    assert work.begun == [1, 4, 5]
    await work.end(5)
    assert work.begun == [1, 4, 5, 2]
    await work.end(2)
    await work.end(3)
    await work.lanes.aclose()


async def test_jobs_that_return_are_dropped_from_the_urgent_lane_beside_theirs_and_the_other_way() -> None:
    work = Work(1)
    work.add("a1", "a2")
    await work.turn()
    work.add("B3")
    await work.turn()
    work.add("A4")
    await work.end(1, go_on=False)
    # The urgent one may have begun before the bus said what returned; the others have not.
    assert work.begun == [1, 3, 4]
    work.lanes.returned(frozenset({1, 2, 4}))
    await work.end(4, go_on=False)
    work.add("a5", "C7")
    work.lanes.returned(frozenset({4, 5}))
    await work.turn()
    await work.end(3, 7)
    assert work.begun == [1, 3, 4, 7]
    work.add("a6")
    await work.turn()
    assert work.begun == [1, 3, 4, 7, 6]
    await work.end(6)
    await work.lanes.aclose()


async def test_urgent_jobs_that_wait_are_forgotten_with_the_session() -> None:
    work = Work(1)
    work.add("a1")
    await work.turn()
    work.add("B2")
    await work.turn()
    work.add("C3", "d4")
    work.lanes.forget_waiting()
    await work.end(*work.begun)
    assert sorted(work.begun) == [1, 2]
    await work.lanes.aclose()


# ---- what is in no lane -----------------------------------------------------------------------------------------------


async def test_what_is_put_back_comes_before_what_waits_in_its_lane_and_after_what_has_begun(work: Work) -> None:
    work.add("a3", "a6")
    await work.turn()
    for sequence in (4, 2, 5):
        work.lanes.put_back(Job(None, None, sequence, ("s", str(sequence)), ("s", "a", False)))
    for sequence in (3, 2, 4, 5, 6):
        assert work.begun[-1] == sequence
        await work.end(sequence)
    work.lanes.put_back(Job(None, None, 1, ("s", "1"), ("s", "a", False)))
    await work.turn()
    assert work.begun == [3, 2, 4, 5, 6, 1]
    work.lanes.close()
    work.lanes.put_back(Job(None, None, 7, ("s", "7"), ("s", "b", False)))
    await work.end(1)
    assert work.begun[-1] == 1


async def test_the_return_of_what_is_in_no_lane_drops_what_waits_in_any() -> None:
    work = Work(concurrency=1)
    work.add("a2", "a3", "b4")
    await work.turn()
    work.add("A5", "c6")
    await work.turn()
    # The urgent one has a worker of its own.
    assert work.begun == [2, 5]
    work.lanes.returned(frozenset({1, 2, 3, 4, 5}))
    await work.end(2, 5)
    # What has begun goes on, what waits and was not returned stays.
    assert sorted(work.begun) == [2, 5, 6]
    await work.end(6)
    work.add("a3", "b4")
    await work.turn()
    await work.end(3)
    await work.end(4)
    assert sorted(work.ended) == [2, 3, 4, 5, 6]
    await work.lanes.aclose()


async def test_nothing_begins_while_lanes_are_held_and_idle_says_when_the_last_has_ended(work: Work) -> None:
    work.lanes.hold()
    work.add("a1", "b2", "B3")
    await work.turn()
    assert work.begun == []
    assert await work.lanes.idle(0)
    work.lanes.release()
    await work.turn()
    assert sorted(work.begun) == [1, 2, 3]
    work.lanes.close()
    assert not await work.lanes.idle(0)
    idle = asyncio.create_task(work.lanes.idle(None))
    await work.end(1, 2)
    assert not idle.done()
    await work.end(3)
    assert await idle
