"""`waybill.testing.TestBroker`, as users see it."""

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta

import pika
import pytest

from waybill.client import ConnectionLost, QueueFull, ReconnectPolicy, blocking, connect
from waybill.ojs import Jobs, NewJob, PushFailed, Retry, State, Worker
from waybill.testing import TestBroker, until

QUICK = ReconnectPolicy(first_delay_s=0.02)


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


async def test_jobs_are_seen_where_they_lie(broker: TestBroker) -> None:
    async with Jobs(broker.uri()) as jobs:
        await jobs.push("email.send", ["ada"], queue="email", priority=-5)
        await jobs.push("email.send", ["bob"], queue="email", priority=5)
        await jobs.push("email.send", ["eve"], queue="email", delay=timedelta(hours=1))
        await jobs.push("report.make", queue="reports")
    for _ in range(2):
        assert [(job.args, job.state) for job in broker.jobs("email")] == [
            (["bob"], State.AVAILABLE),
            (["ada"], State.AVAILABLE),
            (["eve"], State.SCHEDULED),
        ]
    assert broker.queues() == ["email", "reports"]
    assert broker.message_count("ojs.queue.email") == 2
    assert [job.args for job in broker.jobs("email", state="scheduled")] == [["eve"]]
    (found,) = broker.assert_enqueued("email.send", args=["bob"])
    assert (found.priority, found.attempt, found.properties.message_id) == (5, 1, found.id)
    broker.assert_enqueued("email.send", count=3)
    broker.assert_not_enqueued("email.send", queue="reports")
    with pytest.raises(AssertionError, match=r"expected a job email.send with \['mallory'\], found 0:\n"):
        broker.assert_enqueued("email.send", args=["mallory"])
    with pytest.raises(AssertionError, match=r"report.make \[\] in reports, available"):
        broker.assert_enqueued("report.make", count=2)
    with pytest.raises(AssertionError):
        broker.assert_not_enqueued("report.make")


async def test_nobody_is_told_that_a_job_was_looked_at(broker: TestBroker) -> None:
    seen: list[bool] = []
    async with Jobs(broker.uri()) as jobs:
        jobs.handler("some.job")(lambda: None)
        await jobs.push("some.job")
        assert len(broker.jobs()) == 1
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["completed"] == 1)
            seen.append(worker.redelivered_count > 0)
    assert seen == [False]


async def test_time_passes_at_once(broker: TestBroker) -> None:
    """Retries and schedules, step by step: each wait of the delay ladder ends in its turn."""
    runs: list[int] = []
    async with Jobs(broker.uri()) as jobs:

        @jobs.handler("fail.always", retry=Retry(max_attempts=2, jitter=False))
        async def fail() -> None:
            runs.append(1)
            raise ValueError("no")

        await fail.options(delay=timedelta(days=40)).push()
        broker.advance(timedelta(days=40).total_seconds() - 5)
        assert broker.jobs(state=State.SCHEDULED)
        broker.advance(6)
        assert [job.state for job in broker.jobs()] == [State.AVAILABLE]
        async with Worker(jobs) as worker:
            await until(lambda: len(broker.jobs(state=State.RETRYABLE)) == 1)
            broker.advance(1)
            await until(lambda: worker.counts["discarded"] == 1)
    (dead,) = broker.jobs(state=State.DISCARDED)
    assert (dead.attempt, len(runs)) == (2, 2)


async def test_dropped_connections_come_back(broker: TestBroker) -> None:
    async with connect(broker.uri(), reconnect=QUICK) as connection:
        await connection.channel()
        assert broker.drop_connections() == 1
        await until(lambda: connection.reconnections == 1)
        with broker.unreachable():
            await until(lambda: not connection.is_open)
            assert broker.drop_connections() == 0
        await until(lambda: connection.reconnections == 2)


async def test_a_stalled_or_slow_network(broker: TestBroker) -> None:
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q")
        with broker.stalled():
            publishing = channel.publish_nowait(b"1", routing_key="q")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(publishing), 0.05)
            assert broker.message_count("q") == 0
        await publishing
        with broker.delayed(0.05):
            started = time.monotonic()
            await asyncio.gather(*(channel.publish(str(n).encode(), routing_key="q") for n in range(2, 20)))
            assert time.monotonic() - started >= 0.1
        bodies = [(await channel.get("q", no_ack=True)) for _ in range(19)]
        assert [one.body for one in bodies if one] == [str(n).encode() for n in range(1, 20)]


async def test_duplicates_are_delivered_twice(broker: TestBroker) -> None:
    async with Jobs(broker.uri()) as jobs:
        await jobs.push("email.send", ["ada"])
        assert broker.duplicate() == 1
        first, second = broker.jobs()
        assert first.id == second.id
        assert first.properties.headers == second.properties.headers


async def test_a_full_disk_blocks_publishers_until_there_is_room(broker: TestBroker) -> None:
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        broker.fill_disk()
        publishing = asyncio.create_task(channel.publish(b"x", routing_key="q"))
        await until(lambda: "low on disk" in (connection.blocked or ""))
        broker.free_disk()
        await publishing
        await until(lambda: connection.blocked is None)


@pytest.mark.parametrize("lose_power", [False, True])
async def test_what_was_confirmed_outlives_a_crash(broker: TestBroker, lose_power: bool) -> None:
    async with Jobs(broker.uri(), reconnect=QUICK) as jobs:
        pushed = await jobs.push_many([NewJob("before.crash", [number], {}) for number in range(50)])
        async with connect(broker.uri()) as connection:
            channel = await connection.channel(confirms=True)
            broker.crash(lose_power=lose_power)
            with pytest.raises(ConnectionLost):
                await channel.publish_nowait(b"x", routing_key="q")
        assert [job.id for job in broker.jobs()] == [envelope.id for envelope in pushed]
        await jobs.push("after.crash")
    assert len(broker.jobs()) == 51


def test_blocking_programs_and_other_clients_can_use_it(broker: TestBroker) -> None:
    with blocking.connect(broker.uri()) as connection:
        connection.channel().declare_queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel = connection.channel()
        channel.publish(b"1", routing_key="q")
        with pytest.raises(QueueFull):
            channel.publish(b"2", routing_key="q")
    other = pika.BlockingConnection(pika.URLParameters(broker.uri()))
    assert other.channel().basic_get("q", auto_ack=True)[2] == b"1"
    other.close()


async def test_the_jobs_of_a_program_are_pointed_at_it(broker: TestBroker) -> None:
    jobs = Jobs("amqp://production.example")
    with broker.serving(jobs):
        async with jobs:
            await jobs.push("email.send")
    assert jobs.uri == "amqp://production.example"
    broker.assert_enqueued("email.send", count=1)


def test_a_stopped_broker_says_so() -> None:
    broker = TestBroker()
    with pytest.raises(RuntimeError, match="not running"):
        broker.advance(1)
    broker.stop()


async def test_a_condition_that_never_holds_fails_the_test() -> None:
    with pytest.raises(AssertionError, match=r"within 0\.01 s"):
        await until(lambda: False, timeout=0.01)


async def test_a_push_to_a_blocked_broker_fails_after_its_timeout_and_not_before(broker: TestBroker) -> None:
    async with Jobs(broker.uri(), push_timeout=0.3) as jobs:
        await jobs.push("before.it")
        broker.fill_disk()
        for _ in range(2):
            with pytest.raises(PushFailed, match="low on disk") as failed:
                await jobs.push("while.blocked")
            assert failed.value.code == "BACKEND_UNAVAILABLE"
        patient = Jobs(broker.uri(), push_timeout=30)
        async with patient:
            waiting = asyncio.create_task(patient.push("waits.longer"))
            await until(lambda: patient._broker is not None and patient._broker.connection.blocked is not None)
            assert not waiting.done()
            broker.free_disk()
            await waiting
        await jobs.push("after.it")
    assert len(broker.assert_enqueued("while.blocked")) == 1, "the second was never sent"
    broker.assert_enqueued("waits.longer", count=1)
    broker.assert_enqueued("after.it", count=1)
