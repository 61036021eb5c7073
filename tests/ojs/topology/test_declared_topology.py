"""What stands on the broker after we have declared it, asked of the broker itself."""

from datetime import timedelta

import pika
import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from waybill.ojs import WEB, Coordinator, Jobs, Retry, Topology, TopologyConflict, Worker, chain, current_job
from waybill.ojs.topology.topology import Declaration


@requirement(
    "OJS-010", "OJS-011", "OJS-012", "OJS-013", "OJS-014", "OJS-017", "OJS-019", "OJS-021", "OJS-063", "OJS-064",
    "OJS-072", "OJS-073", "OJS-113",
)  # fmt: skip
async def test_eager_declares_everything_twice_without_harm(broker_uri: str, eye: Eye, queue_name: str) -> None:
    topology = Topology(declaration=Declaration.EAGER)
    for _ in range(2):
        async with Jobs(broker_uri, topology=topology) as jobs:
            jobs.handler("declare.eager", queue=queue_name)(print)
            async with Worker(jobs):
                pass
    for exchange in ("ojs.exchange.direct", "ojs.exchange.dlx", "ojs.exchange.retry"):
        assert not await exchange_refuses(eye, exchange, "direct", durable=True)
        assert await exchange_refuses(eye, exchange, "topic", durable=True)
        assert await exchange_refuses(eye, exchange, "direct", durable=False)
    arguments = {
        "x-dead-letter-exchange": "ojs.exchange.dlx", "x-dead-letter-routing-key": queue_name, "x-max-priority": 10,
    }  # fmt: skip
    name = f"ojs.queue.{queue_name}"
    assert not await eye.refuses(name, arguments=arguments)
    assert await eye.refuses(name, arguments={})
    assert await eye.refuses(name, arguments=arguments, durable=False)
    assert await eye.refuses(name, arguments=arguments, auto_delete=True)
    for other in (f"dlx.{queue_name}", f"control.{queue_name}", f"retry.{queue_name}.300000"):
        assert await eye.exists(f"ojs.queue.{other}")


async def exchange_refuses(eye: Eye, exchange: str, kind: str, *, durable: bool) -> bool:
    def declare() -> int:
        try:
            eye.channel.exchange_declare(exchange, kind, durable=durable)
        except pika.exceptions.ChannelClosedByBroker as error:
            eye.reopen()
            code: int = error.reply_code
            return code
        return 0

    return await eye.call(declare) == 406


@requirement("OJS-072")
async def test_lazy_declares_a_retry_queue_only_when_a_job_fails(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, create_queues=True) as jobs:

        @jobs.handler("declare.lazy", queue=queue_name)
        async def lazy() -> None:
            raise RuntimeError("no")

        assert not await eye.exists(f"ojs.queue.{queue_name}")
        await jobs.push("declare.other", queue=f"{queue_name}.first")
        assert await eye.exists(f"ojs.queue.{queue_name}.first")
        assert not await eye.exists(f"ojs.queue.control.{queue_name}.first")
        async with Worker(jobs) as worker:
            assert not await eye.exists(f"ojs.queue.retry.{queue_name}.1000")
            await lazy.push()
            await until(lambda: worker.counts["retried"] == 1)
    delays = [1000, 2000, 4000]
    assert sum([await eye.exists(f"ojs.queue.retry.{queue_name}.{delay}") for delay in delays]) == 1


@requirement("OJS-020", "OJS-022", "OJS-023", "OJS-038")
async def test_keys_lead_to_their_own_queue_and_nowhere_else(broker_uri: str, eye: Eye, queue_name: str) -> None:
    other = f"{queue_name}.other"
    async with Jobs(broker_uri, topology=Topology(declaration=Declaration.EAGER)) as jobs:
        for queue in (queue_name, other):
            await jobs.push("declare.keys", queue=queue)
            await eye.wait_for(f"ojs.queue.{queue}")
    for exchange, queue in (("ojs.exchange.direct", "ojs.queue."), ("ojs.exchange.dlx", "ojs.queue.dlx.")):
        await eye.publish(exchange, queue_name, b"x")
        assert (await eye.count(queue + queue_name), await eye.count(queue + other)) == (1, 0)
    for key in (f"ojs.queue.control.{queue_name}", f"control.{queue_name}"):
        await eye.publish("ojs.exchange.direct", key, b"x")
    assert await eye.count(f"ojs.queue.control.{queue_name}") == 2


@requirement("OJSW-002", "OJSW-004", "OJSW-005", "OJSW-007")
async def test_the_web_profile_stands_beside_the_other_on_the_same_job_queue(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri, topology=Topology(names=WEB)) as jobs:
        await jobs.push("declare.web", queue=queue_name)
        message = await eye.wait_for(f"ojs.queue.{queue_name}")
        assert (message.exchange, message.routing_key) == ("ojs.direct", queue_name)
        assert await eye.exists(f"ojs.dead.{queue_name}")
        for exchange in ("ojs.direct", "ojs.dlx", "ojs.retry"):
            assert not await exchange_refuses(eye, exchange, "direct", durable=True)


@requirement("OJS-074")
async def test_a_queue_of_other_properties_is_reported_and_left_alone(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    await eye.call(lambda: eye.channel.queue_declare(f"ojs.queue.{queue_name}", durable=True))
    good = f"{queue_name}.good"
    async with Jobs(broker_uri) as jobs:
        with pytest.raises(TopologyConflict, match=queue_name):
            await jobs.push("declare.conflict", queue=queue_name)
        await jobs.push("declare.conflict", queue=good)

        @jobs.handler("declare.conflict", queue=good)
        async def conflict() -> None: ...

        async with Worker(jobs, queues=[queue_name, good]) as worker:
            assert worker.usable_queues == [good]
            await until(lambda: worker.counts["completed"] == 1)
        with pytest.raises(TopologyConflict):
            await Worker(jobs, queues=[queue_name]).run()
    assert not await eye.refuses(f"ojs.queue.{queue_name}")


@requirement("OJS-071", "OJS-124")
async def test_quorum_queues_are_used_where_the_broker_has_them(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(queue_type="quorum", prefix="quorum."), create_queues=True) as jobs:

        @jobs.handler("declare.quorum", queue=queue_name)
        async def quorum() -> None: ...

        async with Worker(jobs, queues=[queue_name, f"{queue_name}.b"], concurrency=4) as worker:
            await quorum.push()
            await until(lambda: worker.counts["completed"] == 1)
    arguments = {
        "x-dead-letter-exchange": "quorum.ojs.exchange.dlx",
        "x-dead-letter-routing-key": queue_name,
        # What a classic queue of RabbitMQ has dead-lettered is lost if the node is killed in that moment.
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    is_quorum = not await eye.refuses(
        f"quorum.ojs.queue.{queue_name}", arguments=arguments | {"x-queue-type": "quorum"}
    )
    assert is_quorum or eye.product != "RabbitMQ"


async def test_retries_and_schedules_pass_through_quorum_queues(broker_uri: str, queue_name: str) -> None:
    attempts: list[int] = []
    async with Jobs(broker_uri, topology=Topology(queue_type="quorum", prefix="quorum.")) as jobs:

        @jobs.handler("declare.waits", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def waits() -> None:
            attempts.append(current_job().attempt)
            if current_job().attempt == 1:
                raise RuntimeError("once more")

        async with Worker(jobs) as worker:
            await waits.options(delay=timedelta(seconds=1)).push()
            await until(lambda: worker.counts["completed"] == 1)
    assert attempts == [1, 2]


async def test_two_hundred_levels_order_exactly(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(max_priority=200, prefix="exact.")) as jobs:
        for priority in (50, 51, 49, -99, -100, 100):
            await jobs.push("declare.exact", [priority], queue=queue_name, priority=priority)
        taken = [(await eye.wait_for(f"exact.ojs.queue.{queue_name}")).json()["args"][0] for _ in range(6)]
    assert taken == [100, 51, 50, 49, -99, -100]


async def test_a_coordinator_pushes_to_queues_as_it_finds_them(broker_uri: str, queue_name: str) -> None:
    """`waybill coordinator` does not know of which type an application has declared its queues."""
    async with Jobs(broker_uri, topology=Topology(queue_type="quorum")) as jobs, Jobs(broker_uri) as others:

        @jobs.handler("step.first", queue=queue_name)
        async def first() -> int:
            return 1

        @jobs.handler("step.second", queue=queue_name)
        async def second() -> int:
            return 2

        async with Worker(jobs), Coordinator(others, queues=[queue_name]):
            later = second.options(delay=timedelta(milliseconds=10))
            workflow = await chain(first.job(), later.job()).push(jobs)
            assert await workflow.result(timeout=30) == 2


async def test_replicas_of_a_cluster_are_taken_by_a_single_node(broker_uri: str, queue_name: str) -> None:
    """Beats, requests and pauses work over quorum queues: what a cluster has, with one node in it."""
    topology = Topology(prefix="replicated.", queue_type="quorum", replicas=3, leader_locator="balanced")
    async with Jobs(broker_uri, topology=topology, create_queues=True) as jobs:

        @jobs.handler("add.numbers", queue=queue_name)
        async def add(left: int, right: int) -> int:
            return left + right

        async with Coordinator(jobs, queues=[queue_name]), Worker(jobs, queues=[queue_name]):
            assert await (await add.push(1, 2)).result(timeout=30) == 3
            job = await add.push(3, 4)
            assert await jobs.info(job.id, timeout=30) is not None
            assert await jobs.pause(queue_name)
            assert not await jobs.pause(queue_name)
            assert await jobs.resume(queue_name)
