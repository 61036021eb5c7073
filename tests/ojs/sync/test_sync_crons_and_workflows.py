"""Cron jobs and workflows from code without an event loop."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from waybill.broker import Broker
from waybill.client import WrongEventLoop
from waybill.ojs import Coordinator, CronJob, CronNotFound, InvalidJob, Jobs, Worker, WorkflowNotCompleted, chain, group


@pytest.fixture
async def jobs(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.05)
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=["q"]):
        yield jobs
        await asyncio.to_thread(jobs.sync.close)


async def test_cron_jobs_are_operated_without_a_loop(jobs: Jobs) -> None:
    @jobs.cron("0 9 * * *", name="nightly")
    @jobs.handler("a.b", queue="q")
    def run() -> None: ...

    def operate() -> None:
        crons = jobs.sync.crons
        assert crons.sync() == {"nightly": "created"}
        assert crons.register(CronJob(name="other", cron="@daily", type="a.b")) == "created"
        assert [one.name for one in crons.list()] == ["nightly", "other"]
        assert crons.pause("nightly", by="ada").status == "paused"
        assert crons.resume("nightly").status == "active"
        job_id = crons.run("nightly")
        found = crons.get("nightly", next_runs=2)
        assert ([one.job_id for one in found.firings], len(found.next_runs)) == ([job_id], 2)
        assert crons.sync(prune=True) == {"nightly": "unchanged", "other": "removed"}
        crons.remove("nightly")
        with pytest.raises(CronNotFound):
            crons.get("nightly")
        with pytest.raises(InvalidJob, match="cron"):
            crons.register(CronJob(name="x", cron="nonsense", type="a.b"))

    await asyncio.to_thread(operate)
    with pytest.raises(WrongEventLoop, match=r"write `await jobs\.crons\.pause\(\.\.\.\)`"):
        jobs.sync.crons.pause("nightly")


async def test_workflows_are_pushed_and_asked_about_without_a_loop(jobs: Jobs) -> None:
    @jobs.handler("a.double", queue="q")
    async def double(number: int) -> int:
        return number * 2

    def operate() -> None:
        made = chain(double.job(1), double.job(4)).push_sync(jobs, expires=timedelta(minutes=1))
        result: int = made.result(timeout=30)
        assert (result, made.state(), made.wait(timeout=1).state) == (8, "completed", "completed")
        assert jobs.sync.workflow(made.id).info().metadata.completed_count == 2
        many = group(double.job(number) for number in range(150)).push_sync(jobs)
        assert many.result(timeout=30) == [2 * number for number in range(150)]
        later = chain(double.options(delay=timedelta(hours=1)).job(1)).push_sync(jobs)
        assert later.cancel().state == "cancelled"
        with pytest.raises(WorkflowNotCompleted):
            later.result(timeout=10)

    async with Worker(jobs, concurrency=20):
        await asyncio.to_thread(operate)
    with pytest.raises(WrongEventLoop, match=r"write `await workflow\.push\(\.\.\.\)`"):
        chain(double.job(1)).push_sync(jobs)
