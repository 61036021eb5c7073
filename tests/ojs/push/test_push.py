"""PUSH on the wire, seen by pika (binding sections 5.1 and 6)."""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye, until
from tests.ojs.job_rules import complaints
from tests.ojs.proxy import Proxy
from waybill.ojs import BatchFailed, InvalidJob, Jobs, NewJob, PushFailed, Retry, Topology, current_job
from waybill.ojs.topology.topology import Declaration
from waybill.ojs.worker.worker import Worker

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@requirement(
    "OJS-005", "OJS-006", "OJS-024", "OJS-026", "OJS-043", "OJS-044", "OJS-045", "OJS-046", "OJS-047", "OJS-051",
    "OJS-003", "OJS-053", "OJS-054", "OJS-059", "OJS-062", "OJS-114", "OJSW-013", "OJSW-015",
)  # fmt: skip
async def test_a_push_has_the_properties_and_headers_of_the_binding(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        job = await jobs.push(
            "email.send",
            ["ü", 1, {"a": None}],
            queue=queue_name,
            retry=Retry(max_attempts=5),
            meta={"k": [1]},
            priority=100,
        )
        message = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert (message.exchange, message.routing_key) == ("ojs.exchange.direct", queue_name)
    properties = message.properties
    assert properties.message_id == job.id
    assert job.id[14] == "7"
    assert properties.type == "email.send"
    assert properties.content_type == "application/openjobspec+json"
    assert properties.content_encoding == "utf-8"
    assert properties.delivery_mode == 2
    assert properties.app_id == "ojs"
    assert properties.priority == 9
    body = message.json()
    assert complaints(body) == []
    assert body["args"] == ["ü", 1, {"a": None}]
    assert "ü" in message.body.decode("utf-8")
    assert (body["specversion"], body["id"], body["type"], body["queue"]) == (
        "1.0", job.id, "email.send", queue_name,
    )  # fmt: skip
    assert (body["state"], body["attempt"], body["meta"]) == ("available", 0, {"k": [1]})
    assert TIMESTAMP.fullmatch(body["created_at"])
    assert properties.timestamp == int(datetime.fromisoformat(body["created_at"]).timestamp())
    assert message.headers["x-ojs-queue"] == queue_name
    assert message.headers["x-ojs-attempt"] == 1
    assert message.headers["x-ojs-max-attempts"] == 5
    assert message.headers["x-ojs-created-at"] == message.headers["x-ojs-enqueued-at"] == body["created_at"]
    assert TRACEPARENT.fullmatch(message.headers["x-ojs-trace-id"])


@requirement("OJS-055", "OJS-056", "OJS-057")
async def test_the_types_of_headers_on_the_wire(broker_uri: str, queue_name: str) -> None:
    """Numbers are signed 32-bit integers (`I`), times are ISO 8601 in long strings (`S`)."""
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri) as jobs:

        @jobs.handler("email.send", queue=queue_name, retry=Retry(max_attempts=7))
        async def send() -> None: ...

        proxy.requests = bytearray()
        await send.push()
        await send.options(delay=timedelta(seconds=60)).push()
        sent = bytes(proxy.requests)
    assert sent.count(b"\x0dx-ojs-attemptI\x00\x00\x00\x01") == 2
    assert sent.count(b"\x12x-ojs-max-attemptsI\x00\x00\x00\x07") == 2
    found: list[tuple[bytes, bytes]] = re.findall(
        rb"x-ojs-(created|enqueued|scheduled)-atS\0\0\0\x18(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)", sent
    )
    assert sorted(name for name, _ in found) == [b"created", b"created", b"enqueued", b"enqueued", b"scheduled"]
    times = dict(found)
    assert times[b"scheduled"] > times[b"created"]


@requirement("OJS-049", "OJS-058", "OJS-112", "OJSW-017")
async def test_options_become_headers(broker_uri: str, eye: Eye, queue_name: str) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with Jobs(broker_uri) as jobs:
        await jobs.push(
            "email.send",
            queue=queue_name,
            tags=["a", "b"],
            unique_key="key-1",
            traceparent=traceparent,
            tracestate="vendor=1",
            correlation_id="c-1",
            expires_at="+PT1H",
        )
        message = await eye.wait_for(f"ojs.queue.{queue_name}")
    assert message.headers["x-ojs-tags"] == "a,b"
    assert message.headers["x-ojs-idempotency-key"] == "key-1"
    assert message.headers["x-ojs-trace-id"] == message.headers["x-ojs-traceparent"] == traceparent
    assert message.headers["x-ojs-trace-state"] == "vendor=1"
    assert TIMESTAMP.fullmatch(message.headers["x-ojs-expires-at"])
    assert message.properties.correlation_id == "c-1"
    assert message.properties.expiration is None


@requirement("OJS-069", "OJS-123")
async def test_jobs_of_higher_priority_come_first(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        for priority in (0, -100, 10, -10, 100, 0):
            await jobs.push("email.send", [priority], queue=queue_name, priority=priority)
        taken = [(await eye.wait_for(f"ojs.queue.{queue_name}")).json()["args"][0] for _ in range(6)]
    assert taken == [100, 10, 0, 0, -10, -100]


async def test_a_batch_arrives_whole_and_in_order(broker_uri: str, eye: Eye, queue_name: str) -> None:
    jobs = Jobs(broker_uri)

    @jobs.handler("batch.item", queue=queue_name)
    async def item(number: int) -> None: ...

    async with jobs:
        pushed = await jobs.push_many(item.job(number) for number in range(1500))
        assert len({envelope.id for envelope in pushed}) == 1500
        assert await eye.count(f"ojs.queue.{queue_name}") == 1500
        taken = [(await eye.wait_for(f"ojs.queue.{queue_name}")).json()["args"][0] for _ in range(20)]
    assert taken == list(range(20))


@requirement("OJS-028")
async def test_a_batch_does_not_wait_for_the_confirm_of_each_job(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy, Jobs(proxy.uri) as jobs:
        await jobs.push("batch.first", queue=queue_name)
        proxy.swallowing_answers = True
        batch = [NewJob("batch.item", [number], {"queue": queue_name}) for number in range(200)]
        pushing = asyncio.get_running_loop().create_task(jobs.push_many(batch))
        while await eye.count(f"ojs.queue.{queue_name}") < 201:
            assert not pushing.done()
            await asyncio.sleep(0.01)
        pushing.cancel()
        proxy.swallowing_answers = False
        proxy.cut()


async def test_a_batch_fails_if_the_broker_does_not_come_back_in_time(broker_uri: str, queue_name: str) -> None:
    async with Proxy(broker_uri) as proxy:
        jobs = Jobs(proxy.uri, push_timeout=4.0)
        await jobs.push("batch.first", queue=queue_name)
        connection = (await jobs.broker_connection()).connection
        proxy.refusing = True
        proxy.cut()
        await until(lambda: not connection.is_open)
        with pytest.raises(BatchFailed) as caught:
            await jobs.push_many(NewJob("batch.item", [number], {"queue": queue_name}) for number in range(300))
        assert caught.value.code == "BACKEND_UNAVAILABLE"
        assert len(caught.value.failures) == 300
        await jobs.close()


async def test_nothing_is_sent_if_one_job_of_a_batch_is_invalid(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("email.send", queue=queue_name)
        with pytest.raises(InvalidJob, match=r"args\[0\]"):
            await jobs.push_many([
                {"specversion": "1.0", "id": "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6", "type": "a", "args": [1],
                 "queue": queue_name},
                {"specversion": "1.0", "id": "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d7", "type": "a", "args": [object()],
                 "queue": queue_name},
            ])  # fmt: skip
        assert await eye.count(f"ojs.queue.{queue_name}") == 1


@requirement("OJS-027", "OJS-097", "OJS-116")
async def test_a_job_that_no_queue_takes_is_reported(broker_uri: str, eye: Eye, queue_name: str) -> None:
    topology = Topology(declaration=Declaration.NEVER)
    async with Jobs(broker_uri) as jobs:
        await jobs.push("email.send", queue=f"{queue_name}.known")
    async with Jobs(broker_uri, topology=topology) as jobs:
        with pytest.raises(PushFailed) as caught:
            await jobs.push("email.send", queue=queue_name)
        assert caught.value.code == "NOT_FOUND"
        await jobs.push("email.send", queue=f"{queue_name}.known")


@requirement("OJS-092")
async def test_a_deleted_queue_is_declared_again(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("email.send", queue=queue_name)
        await eye.call(lambda: eye.channel.queue_delete(f"ojs.queue.{queue_name}"))
        await jobs.push("email.send", queue=queue_name)
        assert await eye.count(f"ojs.queue.{queue_name}") == 1


@requirement("OJS-066", "OJS-068", "OJS-122")
async def test_a_full_queue_refuses_and_keeps_what_it_has(broker_uri: str, eye: Eye, queue_name: str) -> None:
    async with Jobs(broker_uri, topology=Topology(max_length=2)) as jobs:
        first = await jobs.push("email.send", [1], queue=queue_name)
        await jobs.push("email.send", [2], queue=queue_name)
        with pytest.raises(PushFailed) as caught:
            await jobs.push("email.send", [3], queue=queue_name)
        assert caught.value.code == "QUEUE_FULL"
        with pytest.raises(BatchFailed):
            await jobs.push_many([{"specversion": "1.0", "id": first.id, "type": "a", "args": [], "queue": queue_name}])
        assert (await eye.wait_for(f"ojs.queue.{queue_name}")).json()["id"] == first.id


async def test_a_job_pushed_by_a_job_continues_its_trace(
    broker_uri: str, eye: Eye, queue_name: str, queue_names: Callable[[], str]
) -> None:
    child_queue = queue_names()
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    seen: list[str | None] = []
    async with Jobs(broker_uri, create_queues=True) as jobs:

        @jobs.handler("trace.parent", queue=queue_name)
        async def parent() -> None:
            seen.append(current_job().traceparent)
            await jobs.push("trace.child", queue=child_queue)

        async with Worker(jobs, queues=[queue_name]) as worker:
            await parent.options(traceparent=traceparent).push()
            await until(lambda: worker.counts["completed"] == 1)
            child = await eye.wait_for(f"ojs.queue.{child_queue}")
    assert seen == [traceparent]
    trace_id = child.headers["x-ojs-trace-id"]
    assert trace_id.split("-")[1] == traceparent.split("-")[1]
    assert trace_id.split("-")[2] != traceparent.split("-")[2]


@pytest.mark.parametrize("ahead", [timedelta(seconds=-5), timedelta(0)])
async def test_a_job_scheduled_for_the_past_is_available_at_once(
    broker_uri: str, eye: Eye, queue_name: str, ahead: timedelta
) -> None:
    async with Jobs(broker_uri) as jobs:
        job = await jobs.push("email.send", queue=queue_name, scheduled_at=datetime.now(UTC) + ahead)
        assert job.envelope.state == "available"
        assert await eye.count(f"ojs.queue.{queue_name}") == 1
