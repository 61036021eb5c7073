"""`Jobs` with the URL of a server: the same handlers, handles and errors as over AMQP."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.http.conftest import URL, Wire
from waybill.client import ReconnectPolicy
from waybill.ojs import BatchFailed, DuplicateJob, InvalidJob, Jobs, PushFailed, ResultTimeout, Retry, Unique
from waybill.ojs.errors import ControlFailed
from waybill.ojs.spec.identifiers import new_id
from waybill.testing import TestBroker, fake


def job(job_type: str, number: int, queue: str = "email") -> dict[str, object]:
    return {"specversion": "1.0", "id": new_id(), "type": job_type, "args": [number], "queue": queue}


async def test_a_handler_pushes_and_its_job_can_be_asked_for(jobs: Jobs, wire: Wire) -> None:
    @jobs.handler("email.send", queue="email", retry=Retry(max_attempts=5), priority=3)
    async def send(to: str, copies: int = 1) -> int:
        return copies

    job = await send.push("ada@example.com", 2)
    assert (job.type, job.queue, job.envelope.state, await job.state()) == (
        "email.send",
        "email",
        "available",
        "available",
    )
    form = await wire.client.job(job.id)
    assert (form["args"], form["priority"], form["retry"]["max_attempts"]) == (["ada@example.com", 2], 3, 5)
    assert form["enqueued_at"] == job.envelope.enqueued_at
    later = await send.options(delay=timedelta(hours=1)).push("ada@example.com")
    info = await later.info()
    assert info is not None
    assert (info.state, info.scheduled_at) == ("scheduled", later.envelope.scheduled_at)
    assert [one.id for one in await jobs.newest("email", state="available")] == [job.id]
    await later.cancel()
    assert await later.wait(5) == "cancelled"
    await later.cancel()
    assert await jobs.info(new_id()) is None
    with pytest.raises(ResultTimeout):
        await job.result(0)


async def test_many_jobs_go_in_batches(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.http.push.BATCH", 4)
    envelopes = await jobs.push_many(job("count", number, queue="many") for number in range(10))
    assert [path for _, path in wire.sent] == ["/ojs/v1/jobs/batch"] * 3
    assert [envelope.args for envelope in envelopes] == [[number] for number in range(10)]
    fetched = await wire.client.fetch("many", count=100)
    assert sorted(job["id"] for job in fetched) == sorted(envelope.id for envelope in envelopes)


async def test_a_push_without_an_answer_is_sent_again_and_arrives_once(
    jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.http.push.AGAIN", ReconnectPolicy(first_delay_s=0))
    faults = iter(["lost", "unheard", "", "unheard", "", "lost", ""])
    wire.fault = lambda _method, _path: next(faults)
    pushed = await jobs.push("email.send", queue="email")
    many = await jobs.push_many([job("email.send", 1), job("email.send", 2)])
    wire.fault = lambda _method, _path: ""
    fetched = await wire.client.fetch("email", count=100)
    assert sorted(one["id"] for one in fetched) == sorted([pushed.id, *(one.id for one in many)])


async def test_what_is_wrong_raises_what_it_raises_over_amqp(jobs: Jobs, wire: Wire) -> None:
    with pytest.raises(InvalidJob) as raised:
        await jobs.push("Bad Type")
    assert (raised.value.field, wire.sent) == ("type", [])
    unique = Unique(keys=("type",))
    first = await jobs.push("report", unique=unique)
    with pytest.raises(DuplicateJob) as duplicate:
        await jobs.push("report", unique=unique)
    assert (duplicate.value.existing_id, duplicate.value.existing_state) == (first.id, "available")
    again = await jobs.push("report", unique=Unique(keys=("type",), on_conflict="ignore"))
    assert (again.id, again.is_duplicate) == (first.id, True)
    taken = new_id()
    await jobs.push("email.send", id=taken)
    with pytest.raises(DuplicateJob):
        await jobs.push("email.send", id=taken)
    with pytest.raises(BatchFailed) as batch:
        await jobs.push_many([job("email.send", 7), job("email.send", 8) | {"id": taken}])
    assert ([one.code for one in batch.value.failures], len(batch.value.pushed)) == (["DUPLICATE"], 1)


async def test_a_server_that_stays_away_fails_the_push(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:
    wire.fault = lambda _method, _path: "lost"
    async with Jobs(URL, push_timeout=0.2) as jobs:
        with pytest.raises(PushFailed, match="BACKEND_UNAVAILABLE") as raised:
            await jobs.push("email.send")
        assert raised.value.code == "BACKEND_UNAVAILABLE"
        assert caplog.text.count("cannot push, trying again") == 1
        with pytest.raises(ControlFailed):
            await jobs.info(new_id())


async def test_queues_are_paused(jobs: Jobs, wire: Wire) -> None:
    await jobs.push("email.send", queue="email")
    assert not await jobs.is_paused("nobody-knows")
    assert [await jobs.pause("email"), await jobs.pause("email"), await jobs.is_paused("email")] == [True, False, True]
    assert await wire.client.fetch() == []
    assert [await jobs.resume("email"), await jobs.resume("email"), await jobs.is_paused("email")] == [
        True,
        False,
        False,
    ]


async def test_threads_push_with_sync(jobs: Jobs, wire: Wire) -> None:
    @jobs.handler("email.send", queue="email")
    def send(to: str) -> str:
        return to

    job = await asyncio.to_thread(lambda: send.push_sync("ada@example.com"))
    assert await asyncio.to_thread(job.state) == "available"
    many = await asyncio.to_thread(lambda: jobs.sync.push_many([send.job("a"), send.job("b")]))
    assert len(await wire.client.fetch(count=10)) == 1 + len(many)
    await asyncio.to_thread(jobs.sync.close)


async def test_what_needs_a_broker_says_so(jobs: Jobs) -> None:
    with pytest.raises(RuntimeError, match="amqp://"):
        await jobs.bulk()


def test_tests_of_programs_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.http.link.open_exchange", lambda _url: None)
    jobs = Jobs(URL)
    with fake(jobs) as recorded:
        jobs.sync.push("email.send", queue="email")
    recorded.assert_enqueued("email.send", count=1)
    with TestBroker() as broker:
        jobs.create_queues = True
        with broker.serving(jobs):
            jobs.sync.push("email.send", queue="email")
        broker.assert_enqueued("email.send", count=1)
    assert jobs.uri == URL
    assert jobs.broker_substitute is not None
