"""Requests that name no queue: one queue for all of them, read by one coordinator at a time. On both brokers."""

from collections.abc import AsyncIterator

import pytest

from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye, until
from waybill.broker import Broker
from waybill.client import connect
from waybill.ojs import ControlFailed, Coordinator, Declaration, Jobs, Topology
from waybill.ojs.coordinator.responder import Request
from waybill.ojs.spec.control_message import ControlReply, ControlRequest, JobInfo


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


async def test_any_coordinator_answers_for_a_job_of_any_queue(jobs: Jobs, queue_name: str) -> None:
    job = await jobs.push("requests.wait", queue=queue_name)
    async with Coordinator(jobs, queues=["elsewhere"]), Coordinator(jobs, queues=["elsewhere"]):
        found = await jobs.info(job.id)
        assert found is not None
        assert (found.queue, found.state) == (queue_name, "available")
        await jobs.cancel(job.id)
        while (found := await jobs.info(job.id)) is None or found.state != "cancelled":
            pass
    async with Coordinator(jobs, queues=[queue_name]):
        await state_of(jobs, job.id, queue_name, "cancelled")


async def test_the_next_coordinator_takes_over(jobs: Jobs, queue_name: str) -> None:
    job = await jobs.push("requests.wait", queue=queue_name)
    first, second = Coordinator(jobs, queues=["first"]), Coordinator(jobs, queues=["second"])
    async with second:
        async with first:
            assert await jobs.info(job.id) is not None
        assert await jobs.info(job.id) is not None


async def test_nobody_answers_where_no_coordinator_runs(jobs: Jobs, eye: Eye) -> None:
    with pytest.raises(ControlFailed, match="no coordinator answers: does `waybill coordinator` run"):
        await jobs.info("018f0000-0000-7000-8000-000000000000", timeout=0.05)
    while await eye.count("ojs.requests"):
        pass


async def test_a_part_of_a_coordinator_adds_kinds_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.coordinator.RETRY_PAUSES_SECONDS", (0.001,))
    tries: list[str] = []

    async def answer(request: Request) -> None:
        tries.append(request.queue)
        if len(tries) == 1:
            raise OSError("the database is gone")
        coordinator = holder[0]
        assert coordinator._responder is not None
        await coordinator._responder.reply(request, ControlReply([JobInfo(request.body.job_id, state="seen")]))
        request.delivery.ack()

    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=["q"]) as coordinator:
        holder = [coordinator]
        coordinator._answers["test.see"] = answer
        control = await jobs.control()
        body = await control.ask(None, "test.see", ControlRequest("one", queue="named"), 10)
        assert body == b'{"jobs":[{"id":"one","state":"seen"}]}'
        assert tries == ["named"] * 2
        with pytest.raises(ControlFailed, match="no coordinator answers"):
            await control.ask(None, "test.other", ControlRequest("one"), 0.05)
        await until(lambda: coordinator.skipped_requests["invalid"] == 1)


async def test_where_others_declare_the_queue_may_be_missing(caplog: pytest.LogCaptureFixture) -> None:
    async with Broker(port=0) as broker:
        async with Jobs(broker.uri()) as jobs, Coordinator(jobs, queues=["q"]):
            job = await jobs.push("requests.wait", queue="q")
        async with connect(broker.uri()) as connection:
            await (await connection.channel()).delete_queue("ojs.requests")
        topology = Topology(declaration=Declaration.NEVER)
        async with Jobs(broker.uri(), topology=topology) as jobs, Coordinator(jobs, queues=["q"]):
            assert await jobs.info(job.id, "q") is not None
            with pytest.raises(ControlFailed, match=r"ojs\.requests"):
                await jobs.info(job.id)
    assert "there is no queue ojs.requests" in caplog.text
