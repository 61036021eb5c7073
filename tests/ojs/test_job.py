"""The handle of a job."""

import pytest

from waybill.ojs import InvalidJob, Jobs

JOB_ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"


def test_a_handle_made_of_an_id_knows_nothing_else() -> None:
    jobs = Jobs("amqp://127.0.0.1:1")
    job = jobs.job(JOB_ID)
    assert (job.id, job.is_duplicate, repr(job)) == (JOB_ID, False, f"<Job {JOB_ID}>")
    for name in ("envelope", "type", "queue"):
        with pytest.raises(LookupError, match=JOB_ID):
            getattr(job, name)
    with pytest.raises(InvalidJob, match="UUIDv7"):
        jobs.job("7")


async def test_a_push_returns_a_handle(broker_uri: str, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("handle.count", queue=queue_name)
        async def count(number: int) -> int:
            return number

        @jobs.handler("handle.plain", queue=queue_name)
        def plain() -> str:
            return "plain"

        job = await count.options(priority=3).push(1)
        assert (job.type, job.queue, job.envelope.args) == ("handle.count", queue_name, [1])
        assert (job.envelope.priority, job.envelope.id) == (3, job.id)
        assert (await plain.push()).type == (await jobs.push("handle.plain", queue=queue_name)).type
        assert (await jobs.push_job(count.job(2))).envelope.args == [2]
        assert (await count(5), plain()) == (5, "plain")
