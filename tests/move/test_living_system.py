"""A system moves while producers, workers and coordinators run at both brokers: cron jobs and workflows go on, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from tests.ojs.eye import until
from waybill.broker import Broker
from waybill.client import connect
from waybill.move import JobsMove, System
from waybill.move.leadership import hold
from waybill.move.sessions import Sessions
from waybill.ojs import Coordinator, Jobs, Topology, Worker, WorkflowHandle, chain, current_job

QUEUE = "living"


@pytest.fixture
def quick_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators that notice soon whether they may lead."""
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.1)
    monkeypatch.setattr("waybill.ojs.coordinator.leader.LEASE_SECONDS", 1.0)
    monkeypatch.setattr("waybill.ojs.coordinator.leader.STAND_AGAIN_SECONDS", 0.3)
    monkeypatch.setattr("waybill.move.jobs_move.LEASE_ENDS_SECONDS", 1.2)


class Place:
    """Jobs, a worker and a coordinator at one broker; it counts how often each job ran."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.ran: Counter[str] = Counter()
        self.ticks: Counter[str] = Counter()
        self.jobs = Jobs(uri)

        @self.jobs.cron(every=timedelta(seconds=1), missed="all", overlap="allow", name="tick")
        @self.jobs.handler("living.tick", queue=QUEUE)
        async def tick() -> None:
            self.ticks[current_job().id] += 1

        @self.jobs.handler("living.step", queue=QUEUE)
        async def step(number: int) -> int:
            self.ran[current_job().id] += 1
            await asyncio.sleep(0.05)
            return number + 1

        self.step = step

    async def open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.jobs)
        await stack.enter_async_context(Coordinator(self.jobs, queues=[QUEUE]))
        await stack.enter_async_context(Worker(self.jobs, concurrency=2))


async def test_cron_jobs_and_workflows_go_on_at_the_target(quick_leaders: None) -> None:
    async with Broker(port=0) as one, Broker(port=0) as other, AsyncExitStack() as stack:
        here, there = Place(one.uri()), Place(other.uri())
        await here.open(stack)
        await here.jobs.crons.sync()
        handle = await chain(*(here.step.job(number) for number in range(40))).push(here.jobs)
        await until(lambda: here.ticks.total() >= 1 and here.ran.total() >= 3)
        move = JobsMove(System(one.uri(), Topology()), System(other.uri(), Topology()), [QUEUE])
        moving = asyncio.create_task(move.run(follows=True))
        await until(lambda: move.moved.stage == "jobs")
        await there.open(stack)
        pushed = [(await here.step.push(number)).id for number in range(50)]
        ticks_here = here.ticks.total()
        await until(lambda: len(there.ticks) >= 2 and set(pushed) <= {*here.ran, *there.ran}, 60)
        moved_handle: WorkflowHandle[int] = WorkflowHandle(there.jobs, handle.id)
        assert (await moved_handle.wait(timeout=60)).state == "completed"
        assert [one.name for one in await there.jobs.crons.list()] == ["tick"]
        move.stop()
        await moving
        ran, ticks = here.ran + there.ran, here.ticks + there.ticks
        assert {*ran.values(), *ticks.values()} == {1}
        assert len(ran) == 90
        assert len(there.ran) > 0
        # At most the ticks that were on their way when the source stopped leading.
        assert here.ticks.total() - ticks_here <= 2


async def test_a_hand_over_that_was_killed_waits_for_the_lease_again(
    quick_leaders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(Sessions, "sleep", staticmethod(sleep))
    async with Broker(port=0) as one, Broker(port=0) as other, AsyncExitStack() as stack:
        here = Place(one.uri())
        await here.open(stack)
        for uri in (one.uri(), other.uri()):
            async with connect(uri) as connection:
                await hold(connection, Topology())
        await JobsMove(System(one.uri(), Topology()), System(other.uri(), Topology()), [QUEUE]).run()
    assert slept == [1.2]
