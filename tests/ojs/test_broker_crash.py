"""A worker outlives its connection, or its broker: what it had in hand costs no attempt and runs once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.ojs.broker_process import BrokerProcess
from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from tests.rabbitmq import INSTALL_HINT, RabbitMQ, installed
from waybill.client import ReconnectPolicy
from waybill.ojs import Jobs, Retry, Topology, Worker, current_job

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.2)
ONCE = Retry(max_attempts=1)
SLOW = Retry(max_attempts=2, initial_interval=timedelta(seconds=300), jitter=False)


@pytest.fixture(params=["rabbitmq", "waybill"])
def mortal(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Iterator[RabbitMQ | BrokerProcess]:
    """A broker of the test's own."""
    broker: RabbitMQ | BrokerProcess
    if request.param == "waybill":
        broker = BrokerProcess(repository, tmp_path)
    else:
        if not installed():
            pytest.skip(INSTALL_HINT)
        broker = RabbitMQ("rabbitmq_consistent_hash_exchange")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


class Work:
    """Jobs that count their starts and wait to be released."""

    def __init__(self, jobs: Jobs, queue: str) -> None:
        self.starts: Counter[int] = Counter()
        self.attempts: Counter[int] = Counter()
        self.release = asyncio.Event()
        self.number: Any = jobs.handler("crash.wait", queue=queue, retry=ONCE)(self._wait)

    async def _wait(self, number: int) -> None:
        self.starts[number] += 1
        self.attempts[current_job().attempt] += 1
        await self.release.wait()


async def test_a_broker_that_went_down_costs_a_living_worker_no_attempt(mortal: RabbitMQ | BrokerProcess) -> None:
    # The stream of RabbitMQ 3.10 does not come back after SIGKILL ("home node is down"), so it ends by SIGTERM.
    end = mortal.kill if isinstance(mortal, BrokerProcess) else mortal.stop
    async with Jobs(mortal.uri("/ojs"), reconnect=FAST) as jobs:
        work = Work(jobs, "crash")
        async with Worker(jobs, concurrency=2, prefetch=6) as worker:
            await jobs.push_many([work.number.job(number) for number in range(6)])
            await until(lambda: worker.held_count == 6)
            await asyncio.to_thread(end)
            await until(lambda: not worker.is_consuming)
            await asyncio.to_thread(mortal.start)
            await until(lambda: worker.is_consuming)
            work.release.set()
            await until(lambda: worker.counts["completed"] == 6, seconds=40)
            assert worker.counts["failed"] == 0
    assert work.starts == dict.fromkeys(range(6), 1)
    assert work.attempts == {1: 6}


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_broker_that_went_down_costs_jobs_that_come_to_another_worker_no_attempt(
    mortal: RabbitMQ | BrokerProcess, partitions: int
) -> None:
    """Half of what a broker gives out again was in somebody else's hand, and some of it in nobody's.

    With partitions, one of them may give out what is new while another gives out again.
    """
    end = mortal.kill if isinstance(mortal, BrokerProcess) else mortal.stop
    uri, topology = mortal.uri("/ojs"), Topology(partitions={"shared": partitions})
    async with (
        Jobs(uri, reconnect=FAST, topology=topology) as jobs,
        Jobs(uri, reconnect=FAST, topology=topology) as others,
    ):
        gate = asyncio.Event()
        done: set[int] = set()

        async def work(number: int) -> None:
            await (gate.wait() if len(done) >= 20 else asyncio.sleep(0.001))
            done.add(number)

        shared, _ = (some.handler("crash.shared", queue="shared", retry=ONCE)(work) for some in (jobs, others))
        async with Worker(jobs, concurrency=1, prefetch=8) as one, Worker(others, concurrency=1, prefetch=8) as other:
            await jobs.push_many([shared.job(number) for number in range(300)])
            await until(lambda: len(done) >= 20)
            await until(lambda: one.held_count == other.held_count == 8)
            await asyncio.to_thread(end)
            await until(lambda: not one.is_consuming and not other.is_consuming)
            await asyncio.to_thread(mortal.start)
            gate.set()
            await until(lambda: len(done) == 300, seconds=60)
            await until(lambda: one.held_count == other.held_count == 0)
            assert one.counts["discarded"] + other.counts["discarded"] == 0
            assert one.counts["failed"] + other.counts["failed"] == 0


async def test_a_lost_connection_costs_what_the_worker_had_in_hand_no_attempt(broker_uri: str, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:
        work = Work(jobs, queue_name)
        await jobs.push_many([work.number.job(number) for number in range(6)])
        async with Worker(jobs, concurrency=2, prefetch=6) as worker:
            await until(lambda: worker.held_count == 6)
            for losses in (1, 2):
                await until(lambda losses=losses: worker.redelivered_count >= 6 * (losses - 1))  # type: ignore[misc]
                proxy.cut()
                await until(lambda: not worker.is_consuming)
                await until(lambda: worker.is_consuming)
            await until(lambda: worker.redelivered_count >= 12)
            work.release.set()
            await until(lambda: worker.counts["completed"] == 6)
            assert worker.counts["failed"] == 0
    assert work.starts == dict.fromkeys(range(6), 1)


async def test_what_ended_while_the_connection_was_away_settles_the_new_delivery(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    starts = 0
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:
        release = asyncio.Event()

        @jobs.handler(
            "crash.fail",
            queue=queue_name,
            retry=Retry(max_attempts=2, initial_interval=timedelta(seconds=300), jitter=False),
        )
        async def fail() -> None:
            nonlocal starts
            starts += 1
            await release.wait()
            raise ValueError("the reason")

        await fail.push()
        async with Worker(jobs) as worker:
            await until(lambda: starts == 1)
            proxy.refusing = True
            proxy.cut()
            await until(lambda: not worker.is_consuming)
            release.set()
            await until(lambda: worker.counts["failed"] == 1)
            proxy.refusing = False
            await until(lambda: worker.counts["retried"] == 1)
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
        waiting = await eye.wait_for(f"ojs.queue.retry.{queue_name}.300000")
    assert (starts, worker.counts["failed"]) == (1, 1)
    assert waiting.json()["error"]["message"] == "the reason"
    assert waiting.headers["x-ojs-attempt"] == 2


async def test_another_workers_crash_still_counts(broker_uri: str, eye: Eye, queue_name: str) -> None:
    starts = 0
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs, Jobs(broker_uri) as others:
        release = asyncio.Event()

        async def wait() -> None:
            nonlocal starts
            starts += 1
            await release.wait()

        for some in (jobs, others):
            some.handler("crash.other", queue=queue_name, retry=ONCE)(wait)
        await others.push("crash.other")
        async with Worker(jobs) as first:
            await until(lambda: starts == 1)
            async with Worker(others) as second:
                proxy.refusing = True
                proxy.cut()
                await until(lambda: second.counts["discarded"] == 1)
                release.set()
            proxy.refusing = False
            await until(lambda: first.is_consuming)
    dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.headers["x-death"][0]["reason"] == "rejected"
    assert starts == 1
