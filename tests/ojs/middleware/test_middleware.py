"""The middleware that comes with Waybill, around jobs that really run, on both brokers."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

from tests.client.breaking import until
from tests.conformance.requirement import requirement
from tests.ojs.eye import Eye
from tests.program_environment import program_environment
from waybill.client import connect
from waybill.ojs import Jobs, Retry, Worker, current_job
from waybill.ojs.middleware import (
    Encryption,
    JobLogging,
    JobMetrics,
    JsonLogFormatter,
    RetryInPlace,
    TimeLimit,
    Tracing,
)

QUICK = Retry(max_attempts=3, initial_interval=msgspec.convert("PT0.001S", type(Retry().initial_interval)))
OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


@requirement("OJS-111", "OJS-112", "OJSW-017")
async def test_one_trace_from_the_push_through_every_attempt(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    jobs.use(Tracing(provider))
    tap = await tapped(eye, jobs, queue_name)

    @jobs.handler("traced.run", queue=queue_name, retry=QUICK)
    def run() -> None:
        with provider.get_tracer("handler").start_as_current_span("inside the handler"):
            if current_job().attempt == 1:
                raise ConnectionError("try again")

    with provider.get_tracer("web").start_as_current_span("POST /orders") as request:
        job = await run.push()
    message = await eye.wait_for(tap)
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] == 1)
    spans = {
        f"{span.name} {(span.attributes or {}).get('ojs.job.attempt', '')}".strip(): span
        for span in exporter.get_finished_spans()
    }
    push, first, second = (spans[f"{queue_name} {name}"] for name in ("enqueue", "process 1", "process 2"))
    inside = [span for span in exporter.get_finished_spans() if span.name == "inside the handler"]
    assert {span.context.trace_id for span in spans.values()} == {request.get_span_context().trace_id}
    assert (push.kind, first.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [one.parent and one.parent.span_id for one in (push, first, second)] == [
        request.get_span_context().span_id,
        push.context.span_id,
        push.context.span_id,
    ]
    assert [one.parent and one.parent.span_id for one in inside] == [first.context.span_id, second.context.span_id]
    assert [link.context.span_id for link in first.links] == [push.context.span_id]
    assert [link.context.span_id for link in second.links] == [push.context.span_id, first.context.span_id]
    assert [span.status.status_code for span in (push, first, second)] == [
        StatusCode.OK,
        StatusCode.ERROR,
        StatusCode.OK,
    ]
    assert first.events[0].name == "exception"
    assert (first.attributes or {})["ojs.job.id"] == job.id
    traceparent = f"00-{push.context.trace_id:032x}-{push.context.span_id:016x}-{push.context.trace_flags:02x}"
    assert message.headers["x-ojs-trace-id"] == message.headers["x-ojs-traceparent"] == traceparent
    assert message.json()["meta"]["traceparent"] == traceparent


async def test_the_trace_of_a_job_that_names_it_in_its_metadata_only(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    seen: list[Any] = []
    await jobs.push("traced.meta", queue=queue_name)
    pushed = await eye.wait_for(f"ojs.queue.{queue_name}")

    @jobs.handler("traced.meta", queue=queue_name)
    async def run() -> None:
        seen.append(current_job().trace())

    traceparent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    body = pushed.json() | {"meta": {"traceparent": traceparent, "tracestate": "k=v"}}
    await eye.publish("ojs.exchange.direct", queue_name, json.dumps(body).encode())
    async with Worker(jobs):
        await until(lambda: bool(seen))
    assert seen == [(traceparent, "k=v")]


async def test_encrypted_arguments_are_readable_nowhere_on_the_way(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    jobs.use(JobLogging(), Encryption({"old": OLD_KEY, "new": NEW_KEY}, "old"))
    tap = await tapped(eye, jobs, queue_name)
    seen: list[tuple[str, int]] = []

    @jobs.handler("sealed.run", queue=queue_name, retry=QUICK)
    async def run(card: str, amount: int) -> None:
        seen.append((card, amount))
        if amount == 0 or len(seen) == 1:
            raise ValueError("declined")

    pushed = await run.push("4111-1111", 7)
    doomed = await run.push("4111-1111", 0)
    assert pushed.envelope.args == ["4111-1111", 7]
    async with Worker(jobs) as worker:
        await until(lambda: worker.counts["completed"] + worker.counts["discarded"] == 2)
    assert set(seen) == {("4111-1111", 7), ("4111-1111", 0)}
    dead = await eye.wait_for(f"ojs.queue.dlx.{queue_name}")
    assert dead.json()["id"] == doomed.id
    copies = [await eye.wait_for(tap) for _ in range(await eye.count(tap))]
    assert len(copies) >= 4
    stream = await whole_stream(broker_uri)
    for body in [dead.body, *(copy.body for copy in copies), *stream]:
        assert b"4111-1111" not in body
    assert any(pushed.id.encode() in body for body in stream)
    assert "4111-1111" not in caplog.text
    assert {copy.json()["meta"]["ojs.codec.key_id"] for copy in copies} == {"old"}
    assert copies[0].json()["args"][0]["ojs_encoded"] is True


async def test_keys_rotate_and_a_job_cannot_take_the_arguments_of_another(
    broker_uri: str, jobs: Jobs, eye: Eye, queue_name: str
) -> None:
    seen: list[object] = []

    @jobs.handler("sealed.keys", queue=queue_name, retry=Retry(max_attempts=1))
    async def run(value: object) -> None:
        seen.append(value)

    async with Jobs(broker_uri, middleware=[Encryption({"old": OLD_KEY}, "old")]) as old:
        await old.push("sealed.keys", ["by the old key"], queue=queue_name)
        stolen = await old.push("sealed.keys", ["of another job"], queue=queue_name)
    jobs.use(Encryption({"old": OLD_KEY, "new": NEW_KEY}, "new"))
    async with Worker(jobs) as worker:
        await run.push("by the new key")
        await until(lambda: len(seen) == 3)
        tap = await tapped(eye, jobs, queue_name)
        await run.push("once more")
        body = (await eye.wait_for(tap)).json()
        body["id"] = stolen.id[:-4] + "ffff"
        await eye.publish("ojs.exchange.direct", queue_name, json.dumps(body).encode())
        await until(lambda: worker.counts["discarded"] == 1)
    assert sorted(map(str, seen)) == ["by the new key", "by the old key", "of another job", "once more"]


async def test_a_limit_of_the_worker_ends_coroutines_and_threads(jobs: Jobs, queue_name: str) -> None:
    ended = threading.Event()
    cancelled: list[bool] = []

    @jobs.handler("limit.sleep", queue=queue_name, retry=Retry(max_attempts=1))
    async def sleep() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            cancelled.append(True)

    @jobs.handler("limit.spin", queue=queue_name, retry=Retry(max_attempts=1))
    def spin() -> None:
        job = current_job()
        try:
            while True:
                job.raise_if_cancelled()
        finally:
            ended.set()

    @jobs.handler("limit.quick", queue=queue_name)
    async def quick() -> str:
        await asyncio.sleep(0)
        return "done"

    jobs.use(TimeLimit(0.05, by_type={"limit.quick": 100}))
    async with Worker(jobs) as worker:
        for handler in (sleep, spin, quick):
            await handler.push()
        await until(lambda: worker.counts["discarded"] == 2 and worker.counts["completed"] == 1)
    await asyncio.to_thread(ended.wait, 10)
    assert (cancelled, ended.is_set()) == ([True], True)


async def test_hiccups_are_over_within_one_attempt(jobs: Jobs, queue_name: str) -> None:
    tries: list[int] = []

    @jobs.handler("hiccup.run", queue=queue_name)
    async def run() -> None:
        tries.append(current_job().attempt)
        if len(tries) < 3:
            raise ConnectionError

    jobs.use(RetryInPlace(pause_seconds=0.001))
    async with Worker(jobs) as worker:
        await run.push()
        await until(lambda: worker.counts["completed"] == 1)
        assert worker.counts["failed"] == 0
    assert tries == [1, 1, 1]


async def test_metrics_by_queue_and_type(jobs: Jobs, queue_name: str) -> None:
    registry = CollectorRegistry()
    jobs.use(JobMetrics(registry))

    @jobs.handler("measured.run", queue=queue_name, retry=QUICK)
    async def run() -> None:
        if current_job().attempt == 1:
            raise ConnectionError

    async with Worker(jobs) as worker:
        await run.push()
        await until(lambda: worker.counts["completed"] == 1)
    labels = {"queue": queue_name, "type": "measured.run"}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, labels | more)

    assert value("ojs_job_enqueued_total") == 1
    assert value("ojs_job_queue_time_seconds_count") == 1
    assert value("ojs_job_attempts_total", state="failed") == value("ojs_job_attempts_total", state="completed") == 1
    assert value("ojs_job_attempt_duration_seconds_count", state="completed") == 1
    assert registry.get_sample_value("ojs_job_enqueue_duration_seconds_count", {"queue": queue_name}) == 1


async def test_records_are_json_with_the_job_and_its_trace(jobs: Jobs, queue_name: str) -> None:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(self.format(record)))

    handler = Lines()
    handler.setFormatter(JsonLogFormatter())
    library = logging.getLogger("some.library")
    for logger in (library, logging.getLogger("waybill.ojs.job")):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    jobs.use(JobLogging())

    @jobs.handler("logged.run", queue=queue_name, retry=Retry(max_attempts=1))
    def run(secret: str) -> None:
        library.warning("from inside", extra={"rows": 3})
        raise KeyError("gone")

    try:
        job = await run.push("hush")
        async with Worker(jobs) as worker:
            await until(lambda: worker.counts["discarded"] == 1)
    finally:
        for logger in (library, logging.getLogger("waybill.ojs.job")):
            logger.removeHandler(handler)
    enqueued, started, inside, failed = lines
    assert (enqueued["component"], enqueued["ojs"]["job_id"], enqueued["ojs"]["queue"]) == (
        "client",
        job.id,
        queue_name,
    )
    assert started["category"] == "lifecycle"
    assert inside["attributes"] == {"rows": 3}
    assert (inside["severity"], inside["severity_number"], inside["logger"]) == ("WARN", 13, "some.library")
    assert inside["ojs"] == {
        "job_id": job.id,
        "job_type": "logged.run",
        "queue": queue_name,
        "attempt": 1,
        "worker_id": worker.id,
    }
    assert len(inside["trace"]["trace_id"]) == 32
    assert failed["error"]["type"] == "KeyError"
    assert failed["attributes"]["duration_ms"] >= 0
    assert "hush" not in json.dumps(lines)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("Encryption", "cryptography", "encryption"),
        ("Tracing", "opentelemetry", "tracing"),
        ("JobMetrics", "prometheus_client", "metrics"),
    ],
)
def test_what_is_not_installed_names_its_extra(repository: Path, name: str, package: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
import waybill.ojs.middleware as middleware
try:
    middleware.{name}
except ImportError as error:
    print(error)
"""
    environment = program_environment()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    assert f"pip install 'waybill-amqp[{extra}]'" in done.stdout


async def tapped(eye: Eye, jobs: Jobs, queue: str) -> str:
    """Declare the topology, and copy what comes to a queue from now on to another one."""
    await jobs._open()
    assert jobs._broker is not None
    await jobs._broker.declarer.ensure_queue(queue)
    return await eye.tap("ojs.exchange.direct", queue)


async def whole_stream(broker_uri: str) -> list[bytes]:
    """Everything that the event stream holds up to now."""
    bodies: list[bytes] = []
    end = b"the end of what is looked at"
    async with connect(broker_uri) as connection:
        channel = await connection.channel(prefetch_count=500, confirms=True)
        await channel.publish(end, exchange="ojs.exchange.events", routing_key="end")

        def take(delivery: Any) -> None:
            bodies.append(bytes(delivery.body))
            delivery.ack()

        await channel.consume("ojs.events", take, arguments={"x-stream-offset": "first"})
        await until(lambda: bool(bodies) and bodies[-1] == end)
    return bodies
