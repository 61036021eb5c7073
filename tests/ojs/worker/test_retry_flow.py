"""FAIL (retryable) on the wire: a copy waits, then the original is acknowledged (binding sections 5.4 and 8)."""

import asyncio
import json
import time
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.proxy import Proxy
from waybill.client import ReconnectPolicy, connect
from waybill.ojs import JobError, Jobs, PostponeJob, PushFailed, Retry, Topology, Worker, current_job
from waybill.ojs.topology.topology import Declaration

FAST = ReconnectPolicy(first_delay_s=0.05, max_delay_s=0.1)


@requirement("OJS-034", "OJS-061", "OJS-075", "OJS-080", "OJS-117", "OJS-118")
async def test_a_failed_job_waits_in_its_retry_queue_and_comes_back_with_everything(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    attempts: list[int] = []
    started: list[float] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("retry.once", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def once(value: str) -> None:
            attempts.append(current_job().attempt)
            started.append(time.monotonic())
            if len(attempts) == 1:
                raise JobError("it broke", type="external.smtp", details={"port": 25})

        async with Worker(jobs) as worker:
            await eye.call(lambda: None)
            copies = await eye.tap("ojs.exchange.retry", f"{queue_name}.1000")
            pushed = await once.options(tags=["t"], meta={"m": 1}, correlation_id="c", priority=5).push("x")
            copy = await eye.wait_for(copies)
            await until(lambda: worker.counts["completed"] == 1)
    assert attempts == [1, 2]
    assert started[1] - started[0] >= 1
    assert (copy.exchange, copy.routing_key) == ("ojs.exchange.retry", f"{queue_name}.1000")
    assert copy.headers["x-ojs-attempt"] == 2
    assert copy.headers["x-ojs-error-message"] == "it broke"
    assert copy.headers["x-ojs-error-code"] == "HANDLER_ERROR"
    assert copy.headers["x-ojs-tags"] == "t"
    assert copy.headers["x-ojs-max-attempts"] == 2
    assert copy.properties.message_id == pushed.id
    assert copy.properties.correlation_id == "c"
    assert copy.properties.priority == 5
    assert copy.properties.delivery_mode == 2
    assert copy.properties.expiration is None
    body = copy.json()
    assert (body["state"], body["attempt"], body["meta"], body["args"]) == ("retryable", 1, {"m": 1}, ["x"])
    error = body["errors"][0]
    assert (error["type"], error["message"], error["attempt"], error["retryable"], error["details"]) == (
        "external.smtp", "it broke", 1, True, {"port": 25},
    )  # fmt: skip
    assert "test_retry_flow" in error["backtrace"][-1]


@requirement("OJS-015", "OJS-078", "OJS-079")
async def test_each_delay_has_a_queue_with_the_arguments_of_the_binding(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("retry.slowly", queue=queue_name)
        async def slowly() -> None:
            raise RuntimeError("no")

        async with Worker(jobs) as worker:
            for seconds in (3, 1):
                policy = Retry(initial_interval=timedelta(seconds=seconds), jitter=False)
                await slowly.options(retry=policy).push()
            await until(lambda: worker.counts["retried"] == 2)
            await until(lambda: worker.counts["retried"] == 3)
            assert await eye.count(f"ojs.queue.retry.{queue_name}.4000") == 1, "the shorter one is back first"
    arguments = {"x-dead-letter-exchange": "ojs.exchange.direct", "x-dead-letter-routing-key": queue_name}
    name = f"ojs.queue.retry.{queue_name}.4000"
    assert not await eye.refuses(name, arguments=arguments | {"x-message-ttl": 4000})
    assert await eye.refuses(name, arguments=arguments | {"x-message-ttl": 4001})
    assert await eye.refuses(name, arguments=arguments | {"x-message-ttl": 4000}, durable=False)


@requirement("OJS-081")
async def test_many_retries_through_one_queue_are_no_dead_letter_cycle(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    """RabbitMQ drops a message that dies twice of expiry in one queue, if its x-death says so."""
    attempts: list[int] = []
    async with Jobs(broker_uri) as jobs:
        policy = Retry(max_attempts=4, backoff_strategy="none", jitter=False)

        @jobs.handler("retry.thrice", queue=queue_name, retry=policy)
        async def thrice() -> None:
            attempts.append(current_job().attempt)
            raise RuntimeError("no")

        async with Worker(jobs):
            await thrice.push()
            dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert attempts == [1, 2, 3, 4]
    assert [error["attempt"] for error in dead.json()["errors"]] == [1, 2, 3]


@requirement("OJSW-021")
async def test_a_cycle_of_rejects_and_expiry_goes_on(eye: Eye, queue_name: str) -> None:
    """The broker drops what dies in a cycle without anybody's doing; a consumer that rejects is somebody."""
    work, wait = f"{queue_name}.work", f"{queue_name}.wait"

    def declare() -> None:
        for name, other, more in ((work, wait, {}), (wait, work, {"x-message-ttl": 1})):
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": other, **more}
            eye.channel.queue_declare(name, durable=True, arguments=arguments)

    def take() -> tuple[Any, Any, Any]:
        got: tuple[Any, Any, Any] = eye.channel.basic_get(work)
        return got

    await eye.call(declare)
    await eye.publish("", work, b"again", message_id="1")
    for round_number in range(6):
        while (got := await eye.call(take))[0] is None:
            await asyncio.sleep(0.005)
        method, properties, body = got
        assert (body, properties.message_id) == (b"again", "1")
        deaths = {(one["queue"], one["reason"]): one["count"] for one in (properties.headers or {}).get("x-death", [])}
        assert deaths == ({(work, "rejected"): round_number, (wait, "expired"): round_number} if round_number else {})
        await eye.call(partial(eye.channel.basic_reject, method.delivery_tag, requeue=False))


@requirement("OJS-080")
async def test_unknown_fields_and_headers_of_others_survive_a_retry(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("retry.foreign", queue=queue_name)
        async def foreign() -> None:
            raise RuntimeError("no")

        body = {
            "specversion": "1.0",
            "id": "1",
            "type": "retry.foreign",
            "args": [],
            "x_new": {"a": [1]},
            "retry": {"jitter": False},
        }
        async with Worker(jobs):
            copies = await eye.tap("ojs.exchange.retry", f"{queue_name}.1000")
            await eye.publish(
                "ojs.exchange.direct", queue_name, json.dumps(body).encode(), headers={"mine": "kept"}, reply_to="r"
            )
            copy = await eye.wait_for(copies)
    assert copy.json()["x_new"] == {"a": [1]}
    assert copy.headers["mine"] == "kept"
    assert copy.headers["x-ojs-attempt"] == 2
    assert copy.properties.reply_to == "r"


async def test_a_delay_beyond_the_retry_queues_takes_the_ladder(broker_uri: str, eye: Eye, queue_name: str) -> None:
    policy = Retry(initial_interval=timedelta(hours=1), max_interval=timedelta(hours=2), jitter=False)
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("retry.later", queue=queue_name, retry=policy)
        async def later() -> None:
            raise RuntimeError("no")

        async with Worker(jobs) as worker:
            await jobs.push("retry.later", delay=timedelta(seconds=1))
            tap = await eye.tap("ojs.delay.11", "#")
            await until(lambda: worker.counts["retried"] == 1)
            copy = await eye.wait_for(tap)
    assert int(copy.routing_key.split("." + queue_name)[0].replace(".", ""), 2) == 3600
    assert copy.headers["x-ojs-attempt"] == 2


@requirement("OJS-018")
async def test_a_prefix_keeps_tenants_apart(broker_uri: str, eye: Eye, queue_name: str) -> None:
    topology = Topology(prefix="tenant1.")
    async with Jobs(broker_uri, topology=topology) as jobs:

        @jobs.handler("retry.tenant", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def tenant() -> None:
            raise RuntimeError("no")

        async with Worker(jobs):
            await tenant.push()
            await eye.wait_for(f"tenant1.ojs.queue.dlx.{queue_name}")
    assert await eye.exists(f"tenant1.ojs.queue.retry.{queue_name}.1000")
    assert not await eye.exists(f"ojs.queue.{queue_name}")


@pytest.mark.parametrize(("limit", "expected_attempts"), [(3, [2]), (1, [])])
async def test_a_job_whose_worker_vanished_has_used_an_attempt(
    broker_uri: str, eye: Eye, queue_name: str, limit: int, expected_attempts: list[int]
) -> None:
    attempts: list[int] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("retry.crash", queue=queue_name, retry=Retry(max_attempts=limit, jitter=False))
        async def crash() -> None:
            attempts.append(current_job().attempt)

        await crash.push()
        vanished = Eye(broker_uri)
        await vanished.call(lambda: vanished.channel.basic_get(f"ojs.queue.{queue_name}"))
        vanished.close()
        async with Worker(jobs) as worker:
            await until(lambda: sum(worker.counts[end] for end in ("completed", "discarded")) == 1)
        dead_letters = await eye.count(f"ojs.queue.dlx.{queue_name}")
    assert attempts == expected_attempts
    assert dead_letters == (0 if expected_attempts else 1)


async def test_a_job_that_runs_while_the_connection_is_lost_is_done_once(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    calls = 0
    entered, release = asyncio.Event(), asyncio.Event()
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:

        @jobs.handler("retry.cut", queue=queue_name)
        async def cut() -> None:
            nonlocal calls
            calls += 1
            entered.set()
            await release.wait()

        async with Worker(jobs) as worker:
            await cut.push()
            await entered.wait()
            proxy.cut()
            await until(lambda: not worker.is_consuming)
            await until(lambda: worker.is_consuming)
            release.set()
            await until(lambda: worker.counts["completed"] == 1)
            await cut.push()
            await until(lambda: worker.counts["completed"] == 2)
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
    assert calls == 2


async def test_a_job_whose_acknowledgement_was_lost_is_not_done_again_here(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    calls = 0
    async with Proxy(broker_uri) as proxy, Jobs(broker_uri) as client:
        jobs = Jobs(proxy.uri, reconnect=FAST)

        @jobs.handler("retry.lost_ack", queue=queue_name)
        async def lost_ack() -> None:
            nonlocal calls
            calls += 1
            # The confirm of the completion event never comes, so the job is not acknowledged either.
            proxy.swallowing_answers = True

        async with Worker(jobs) as worker:
            await client.push("retry.lost_ack", queue=queue_name)
            await until(lambda: worker.counts["completed"] == 1)
            proxy.cut()
            proxy.swallowing_answers = False
            await until(lambda: not worker.is_consuming)
            await until(lambda: worker.is_consuming)
        assert await eye.count(f"ojs.queue.{queue_name}") == 0
        assert await eye.count(f"ojs.queue.dlx.{queue_name}") == 0
        assert worker.counts["failed"] == 0
    assert calls == 1


async def test_a_push_goes_on_after_a_lost_connection(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:
        await jobs.push("push.first", queue=queue_name)
        proxy.swallowing_answers = True
        pushing = asyncio.get_running_loop().create_task(jobs.push("push.second", queue=queue_name))
        tap = f"ojs.queue.{queue_name}"
        while await eye.count(tap) < 2:
            await asyncio.sleep(0.01)
        proxy.swallowing_answers = False
        proxy.cut()
        second = await pushing
        seen = [await eye.wait_for(tap) for _ in range(3)]
        assert [one.properties.message_id for one in seen[1:]] == [second.id, second.id], "nobody knew of the first one"
        assert ["x-ojs-repeated" in one.headers for one in seen] == [False, False, True]


async def test_a_worker_runs_one_of_two_copies(broker_uri: str, eye: Eye, queue_name: str) -> None:
    ran: list[str] = []
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST) as jobs:

        @jobs.handler("copies.count", queue=queue_name)
        async def count() -> None:
            ran.append(current_job().id)

        await count.push()
        proxy.swallowing_answers = True
        pushing = asyncio.get_running_loop().create_task(count.push())
        while await eye.count(f"ojs.queue.{queue_name}") < 2:
            await asyncio.sleep(0.01)
        proxy.swallowing_answers = False
        proxy.cut()
        second = await pushing
        last = await count.push()
        assert await eye.count(f"ojs.queue.{queue_name}") == 4
        async with Worker(jobs) as worker:
            await until(lambda: last.id in ran and worker.counts["completed"] == 3)
        assert ran.count(second.id) == 1
        assert await eye.count(f"ojs.queue.{queue_name}") == 0


async def test_a_marked_dead_letter_that_somebody_moves_back_runs(broker_uri: str, eye: Eye, queue_name: str) -> None:
    runs: list[str] = []
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("copies.dead", queue=queue_name, retry=Retry(max_attempts=1))
        async def dead() -> None:
            runs.append(current_job().id)
            raise RuntimeError("no")

        async with Worker(jobs) as worker:
            await jobs.push_job(dead.job(), may_be_there=True)
            await until(lambda: worker.counts["discarded"] == 1)
            async with connect(broker_uri) as connection:
                channel = await connection.channel()
                while (letter := await channel.get(f"ojs.queue.dlx.{queue_name}")) is None:
                    await asyncio.sleep(0.01)
                await channel.publish(
                    letter.body, exchange="", routing_key=f"ojs.queue.{queue_name}", properties=letter.properties
                )
                letter.ack()
            await until(lambda: worker.counts["discarded"] == 2)
    assert len(runs) == 2


async def test_nothing_is_published_for_a_delivery_that_is_lost(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(broker_uri) as client:
        jobs = Jobs(proxy.uri, reconnect=FAST)
        runs: list[int] = []
        is_back = asyncio.Event()

        @jobs.handler("lost.postponed", queue=queue_name)
        async def postponed() -> None:
            runs.append(current_job().attempt)
            if len(runs) == 1:
                proxy.cut()
                await is_back.wait()
                raise PostponeJob(0)

        async with Worker(jobs) as worker:
            await client.push("lost.postponed", queue=queue_name)
            await until(lambda: not worker.is_consuming)
            await until(lambda: worker.is_consuming)
            is_back.set()
            await until(lambda: worker.counts["completed"] == 1)
            assert await eye.count(f"ojs.queue.{queue_name}") == 0
        assert len(runs) == 2


async def test_nothing_is_declared_when_the_application_may_not(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("declare.other", queue=queue_name)
    async with Jobs(broker_uri, topology=Topology(declaration=Declaration.NEVER)) as jobs:
        done = asyncio.Event()

        @jobs.handler("declare.other", queue=queue_name)
        async def other() -> None:
            done.set()

        async with Worker(jobs):
            await done.wait()


@requirement("OJS-025", "OJS-115")
async def test_a_push_whose_confirm_never_comes_fails(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri, reconnect=FAST, push_timeout=3.0) as jobs:
        await jobs.push("push.first", queue=queue_name)
        proxy.swallowing_answers = True
        pushing = asyncio.get_running_loop().create_task(jobs.push("push.second", queue=queue_name))
        while await eye.count(f"ojs.queue.{queue_name}") < 2:
            await asyncio.sleep(0.01)
        assert not pushing.done()
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(PushFailed) as caught:
            await pushing
        assert caught.value.code == "BACKEND_UNAVAILABLE"
        proxy.refusing = proxy.swallowing_answers = False
