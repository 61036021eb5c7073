"""Scheduled jobs without a plugin (binding section 9), on both brokers."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.ojs import Jobs, Worker


@requirement("OJS-083", "OJS-084", "OJS-085", "OJS-120")
async def test_jobs_come_when_they_are_due_and_the_later_does_not_hold_up_the_sooner(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    times: dict[str, float] = {}
    async with Jobs(broker_uri, create_queues=True) as jobs:

        @jobs.handler("schedule.note", queue=queue_name)
        async def note(name: str) -> None:
            times[name] = time.time()

        async with Worker(jobs) as worker:
            pushed = time.time()
            await note.options(delay=timedelta(seconds=60)).push("far")
            later = await note.options(delay=timedelta(seconds=3)).push("later")
            at = datetime.now(UTC) + timedelta(seconds=1)
            await note.options(scheduled_at=at).push("soon")
            assert later.envelope.state == "scheduled"
            await until(lambda: worker.counts["completed"] == 2)
    assert list(times) == ["soon", "later"]
    assert times["soon"] >= at.timestamp()
    assert 3 <= times["later"] - pushed < 6


@requirement("OJSW-016")
async def test_a_job_that_was_scheduled_arrives_like_one_that_was_pushed(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri, create_queues=True) as jobs:
        await jobs.push("schedule.dotted", queue=f"a.{queue_name}")
        await eye.wait_for(f"ojs.queue.a.{queue_name}")
        await jobs.push("schedule.dotted", queue=queue_name, delay=timedelta(milliseconds=10))
        pushed = await jobs.push("schedule.dotted", queue=f"a.{queue_name}", scheduled_at="+PT0.1S")
        message = await eye.wait_for(f"ojs.queue.a.{queue_name}")
        assert (message.exchange, message.routing_key) == ("ojs.exchange.direct", f"a.{queue_name}")
        assert message.headers["x-ojs-scheduled-at"] == pushed.envelope.scheduled_at
        assert message.headers["x-ojs-queue"] == f"a.{queue_name}"
        assert message.headers["x-ojs-attempt"] == 1
        await asyncio.sleep(0.3)
        assert await eye.count(f"ojs.queue.a.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.{queue_name}") == 1


@requirement("OJS-086")
async def test_a_job_forty_days_and_one_eight_years_ahead_wait_on_their_level(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri, create_queues=True) as jobs:
        await jobs.push("schedule.far", queue=queue_name, delay=timedelta(days=40))
        await jobs.push("schedule.far", queue=queue_name, delay=timedelta(days=8 * 365))
    # 40 days are 3,456,000 s, between 2**21 and 2**22; 8 years are between 2**27 and 2**28.
    for level, ttl in ((21, 2**21 * 1000), (27, 2**27 * 1000)):
        name = f"ojs.delay.{level}"
        assert await eye.count(name) >= 1
        below = {"x-dead-letter-exchange": f"ojs.delay.{level - 1}"}
        assert not await eye.refuses(name, arguments=below | {"x-message-ttl": ttl})
        assert await eye.refuses(name, arguments=below | {"x-message-ttl": ttl + 1})
