"""How long and up to which size results are kept."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from waybill.broker import Broker
from waybill.ojs import Coordinator, InvalidJob, JobInfo, Jobs, ResultExpired, ResultTooLarge, Worker
from waybill.ojs.coordinator.job_fold import info_of
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.spec.envelope import read_envelope


async def ended(jobs: Jobs, job_id: str) -> JobInfo:
    while (job := await jobs.info(job_id)) is None or job.ended_at is None:
        await asyncio.sleep(0.01)
    return job


async def test_a_handler_says_for_how_long_and_how_large() -> None:
    async with Broker(port=0) as broker, Jobs(broker.uri(), result_ttl=60, result_size_limit=10) as jobs:

        @jobs.handler("keep.default", queue="q")
        async def default() -> str:
            return "seven"

        @jobs.handler("keep.large", queue="q", result_size_limit=1000)
        async def large(size: int) -> str:
            return "x" * size

        @jobs.handler("keep.nothing", queue="q", result_ttl=0)
        async def nothing() -> str:
            return "gone"

        @jobs.handler("keep.always", queue="q", result_ttl=-1)
        async def always() -> str:
            return "for ever"

        async with Worker(jobs), Coordinator(jobs, queues=["any"]), Jobs(broker.uri()) as others:
            job = await default.push()
            assert job.envelope.result_ttl == 60
            assert await job.result(30) == "seven"
            kept = await ended(others, job.id)
            assert kept.result == "seven"
            assert kept.ended_at is not None
            assert kept.result_expires_at is not None
            lasts = datetime.fromisoformat(kept.result_expires_at) - datetime.fromisoformat(kept.ended_at)
            assert abs(lasts - timedelta(seconds=60)) < timedelta(seconds=5)

            assert await (await large.push(500)).result(30) == "x" * 500
            with pytest.raises(ResultTooLarge, match="1002 bytes, 1000 are allowed"):
                await (await large.push(1000)).result(30)
            # Whoever waits gets it, and nobody else.
            brief = await nothing.push()
            assert await brief.result(30) == "gone"
            assert (await ended(others, brief.id)).result is None
            lasting = await always.push()
            assert await lasting.result(30) == "for ever"
            assert (await ended(others, lasting.id)).result_expires_at is None
            # The options hold whoever pushes.
            foreign = await others.push("keep.large", [1000], queue="q")
            with pytest.raises(ResultTooLarge):
                await foreign.result(30)


async def test_a_result_is_gone_when_its_time_is_over() -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat().replace("+00:00", "Z")
    record = JobRecord("id", state="completed", result=7, result_expires_at=past)
    info = info_of(record)
    assert info.result is None
    assert info.error == {"code": "RESULT_PRUNED", "message": f"the result was kept until {past}"}
    async with Broker(port=0) as broker, Jobs(broker.uri()) as jobs:

        @jobs.handler("keep.short", queue="q", result_ttl=1)
        async def short() -> int:
            return 7

        async with Worker(jobs), Coordinator(jobs, queues=["any"]), Jobs(broker.uri()) as others:
            job = await short.push()
            assert await job.result(30) == 7
            while (await ended(others, job.id)).result is not None:
                await asyncio.sleep(0.05)
            with pytest.raises(ResultExpired, match="the result was kept until"):
                await others.job(job.id).result(30)


def test_the_options_have_limits() -> None:
    jobs = Jobs("amqp://127.0.0.1:1")
    with pytest.raises(InvalidJob, match="result_ttl"):
        jobs.check({"specversion": "1.0", "id": jobs_id(), "type": "a.b", "args": [], "result_ttl": -2})
    with pytest.raises(InvalidJob, match="result_size_limit"):
        jobs.check({"specversion": "1.0", "id": jobs_id(), "type": "a.b", "args": [], "result_size_limit": 1 << 40})
    body = b'{"id": "1", "type": "a.b", "args": [], "specversion": "1.0", "result_ttl": 3}'
    assert read_envelope(body).result_ttl == 3


def jobs_id() -> str:
    return "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
