"""Lifecycle events as a reader of the stream sees them, on both brokers."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from tests.ojs.event_rules import DATA, OURS, complaints
from tests.ojs.eye import Eye, until
from waybill.client import connect
from waybill.ojs import DeadLetterJob, Jobs, Retry, Unique, Worker, current_job
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.observe.event_batch import MAX_EVENTS_PER_MESSAGE
from waybill.ojs.observe.event_writer import FEW_EVENTS, MANY_EVENTS, EventWriter
from waybill.ojs.observe.own_events import EventFollower, OwnEvent
from waybill.ojs.spec.events import JobCompleted, ReceivedEvent, decode_events
from waybill.ojs.topology.topology import Topology

TWICE = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1))


class StreamReader:
    """Follows the stream from its present end with a consumer of our client."""

    def __init__(self) -> None:
        self.events: list[ReceivedEvent] = []
        self.messages: list[Any] = []

    def take(self, delivery: Any) -> None:
        self.messages.append(delivery)
        self.events += decode_events(delivery.body)
        delivery.ack()

    def of(self, subject: str) -> list[ReceivedEvent]:
        """The events of one subject by their times: those of a client and a worker may pass each other."""
        found = [event for event in self.events if event.subject == subject]
        return sorted(found, key=lambda event: (event.time, event.type != "job.enqueued"))

    def types(self, subject: str) -> list[str]:
        return [event.type for event in self.of(subject)]


@pytest.fixture
async def stream(broker_uri: str) -> Any:
    async with Jobs(broker_uri) as jobs:
        await jobs.push("stream.declared", queue="stream")
    reader = StreamReader()
    async with connect(broker_uri) as connection:
        channel = await connection.channel(prefetch_count=100)
        await channel.consume("ojs.events", reader.take, arguments={"x-stream-offset": "next"})
        yield reader
        for delivery in reader.messages:
            decoded = json.loads(delivery.body)
            for event in decoded if isinstance(decoded, list) else [decoded]:
                assert event["type"] in OURS or complaints(event) == [], event


async def test_the_events_of_a_job_that_succeeds(broker_uri: str, stream: StreamReader, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("event.ok", queue=queue_name, priority=3)
        async def ok(number: int) -> dict[str, int]:
            current_job().progress(5, 10, "half")
            await asyncio.sleep(0.02)
            return {"number": number}

        async with Worker(jobs) as worker:
            pushed = await ok.push(7)
            await until(lambda: {"job.enqueued", "job.completed"} <= set(stream.types(pushed.id)))
        await until(lambda: "worker.stopped" in stream.types(worker.id))
    enqueued, started, progress, completed = stream.of(pushed.id)
    assert (enqueued.type, enqueued.data) == (
        "job.enqueued", {"job_type": "event.ok", "queue": queue_name, "priority": 3},
    )  # fmt: skip
    assert enqueued.source == jobs.source
    assert started.type == "job.started"
    assert started.data == {"job_type": "event.ok", "queue": queue_name, "worker_id": worker.id, "attempt": 1}
    assert (progress.type, progress.data["progress_percent"]) == ("job.progress", 50)
    assert completed.type == "job.completed"
    assert completed.source == f"ojs://waybill/workers/{worker.id}"
    duration = completed.data.pop("duration_ms")
    assert isinstance(duration, int)
    assert 20 <= duration < 5000
    assert completed.data == {
        "job_type": "event.ok", "queue": queue_name, "attempt": 1, "result": {"number": 7},
    }  # fmt: skip
    assert stream.types(worker.id) == ["worker.started", "worker.quiet", "worker.stopped"]
    assert len({event.id for event in stream.events}) == len(stream.events)


async def test_the_events_of_a_job_that_fails_twice(broker_uri: str, stream: StreamReader, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("event.bad", queue=queue_name, retry=Retry(max_attempts=2, jitter=False))
        async def bad() -> None:
            raise ValueError("broken")

        async with Worker(jobs):
            pushed = await bad.push()
            await until(lambda: {"job.enqueued", "job.discarded"} <= set(stream.types(pushed.id)))
    assert stream.types(pushed.id) == [
        "job.enqueued", "job.started", "job.failed", "job.retrying", "job.started", "job.failed", "job.discarded",
    ]  # fmt: skip
    events = stream.of(pushed.id)
    failed, retrying, discarded = events[2].data, events[3].data, events[6].data
    assert (failed["attempt"], failed["error"]["code"], failed["error"]["retryable"]) == (1, "HANDLER_ERROR", True)  # type: ignore[index]
    assert (retrying["attempt"], retrying["max_attempts"]) == (1, 2)
    assert str(retrying["next_retry_at"]) > events[3].time
    assert events[5].data["error"]["retryable"] is False  # type: ignore[index]
    assert discarded["total_attempts"] == 2
    assert discarded["last_error"]["message"] == "broken"  # type: ignore[index]
    assert discarded["last_error"]["type"] == "ValueError"  # type: ignore[index]


async def test_every_event_keeps_the_rules(broker_uri: str, stream: StreamReader, queue_name: str) -> None:
    """All kinds of events that jobs, workers, clients and coordinators write; the fixture checks each."""
    release = asyncio.Event()
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("rules.any", queue=queue_name, retry=TWICE)
        async def handle(what: str) -> object:
            current_job().progress(1, 3, "a third")
            if what == "bad":
                raise KeyError
            if what == "wait":
                await release.wait()
            return {"what": what}

        with patch("waybill.ojs.worker.attempt_heartbeats.HEARTBEAT_SECONDS", 0.05):
            async with Worker(jobs, coordinator=True) as worker:
                bad = await handle.push("bad")
                waiting = await handle.push("wait")
                await handle.options(unique=Unique()).push("unique")
                await handle.options(delay=timedelta(seconds=0.05)).push("later")
                expired = await handle.options(expires_at="2020-01-01T00:00:00Z").push("expired")
                await until(lambda: "job.heartbeat" in stream.types(waiting.id))
                await jobs.cancel(waiting.id, queue_name)
                await until(lambda: "job.cancelled" in stream.types(waiting.id))
                await until(lambda: "job.discarded" in stream.types(bad.id))
                await until(lambda: "job.expired" in stream.types(expired.id))
                await jobs.pause(queue_name)
                await jobs.resume(queue_name)
                await until(lambda: "worker.heartbeat" in stream.types(worker.id))
        await until(lambda: "worker.stopped" in stream.types(worker.id))
        await until(lambda: "queue.resumed" in stream.types(queue_name))
    told = {event.type for event in stream.events}
    assert told >= {kind for kind in DATA if not kind.startswith(("cron.", "workflow."))}
    assert {event.source.split("/")[3] for event in stream.events} == {"clients", "workers", "coordinators"}


async def test_the_reason_of_a_dead_letter_is_in_its_event(
    broker_uri: str, eye: Eye, stream: StreamReader, queue_name: str
) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("event.dead", queue=queue_name)
        async def dead() -> None:
            raise DeadLetterJob("look at this", type="review.needed")

        async with Worker(jobs):
            pushed = await dead.push()
            unknown = await jobs.push("event.unknown", queue=queue_name)
            expired = await jobs.push("event.dead", queue=queue_name, expires_at="2020-01-01T00:00:00Z")
            await eye.publish("ojs.exchange.direct", queue_name, b"{", message_id=f"bad-{queue_name}", type="x.y")
            await until(lambda: "job.discarded" in stream.types(f"bad-{queue_name}"))
            await until(lambda: {"job.enqueued", "job.discarded"} <= set(stream.types(expired.id)))

    def last_error(subject: str) -> Any:
        return stream.of(subject)[-1].data["last_error"]

    assert last_error(pushed.id)["type"] == "review.needed"
    assert last_error(unknown.id)["code"] == "INVALID_JOB_TYPE"
    assert last_error(f"bad-{queue_name}")["code"] == "INVALID_PAYLOAD"
    assert stream.types(expired.id) == ["job.enqueued", "job.expired", "job.discarded"]
    assert stream.of(expired.id)[1].data["ttl_ms"]


async def test_many_events_share_few_messages(broker_uri: str, stream: StreamReader, queue_name: str) -> None:
    async with Jobs(broker_uri) as jobs:

        @jobs.handler("event.many", queue=queue_name)
        async def many() -> None: ...

        pushed = await jobs.push_many(many.job() for _ in range(500))
        async with Worker(jobs, concurrency=100) as worker:
            await until(lambda: worker.counts["completed"] == 500)
            ids = {envelope.id for envelope in pushed}
            await until(lambda: sum(e.type == "job.completed" and e.subject in ids for e in stream.events) == 500)
    assert len(stream.messages) < 300
    batch = next(message for message in stream.messages if message.body[:1] == b"[")
    assert batch.properties.type == "ojs.events"
    assert batch.properties.content_type == "application/openjobspec+json"


async def test_an_action_runs_only_after_the_events_before_it_are_confirmed(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        done: list[int] = []
        for number in range(MAX_EVENTS_PER_MESSAGE * 2 + 10):
            events.record(str(number), JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            if number % 1000 == 0:
                events.after(partial(done.append, number))
        assert done == []
        assert await events.drain(20)
        assert done == [0, 1000, 2000, 3000, 4000]
        events.after(lambda: done.append(-1))
        assert await events.drain(5)
        assert done[-1] == -1
    finally:
        await broker.close()


async def test_large_messages_overlap_and_small_ones_wait(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events

        def record(count: int) -> object:
            for number in range(count):
                events.record(str(number), JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            gathered = events.gathering
            # The message is made at the end of this turn of the loop; no confirm can have come by then.
            events._flush()
            return gathered

        first = record(FEW_EVENTS + 1)
        assert events.gathering is not first
        small = record(1)
        assert events.gathering is small, "it waits, since there is a message in flight"
        record(MANY_EVENTS)
        assert events.gathering is not small, "with so many it does not wait"
        assert await events.drain(20)
    finally:
        await broker.close()


async def test_who_gathers_has_one_message_on_its_way(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        done: list[int] = []

        def record(number: int) -> object:
            events.record(str(number), JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            events.after(partial(done.append, number))
            gathered = events.gathering
            events._flush()
            return gathered

        assert record(0) is not events.gathering
        assert record(1) is not events.gathering, "a few go out beside others"
        assert await events.drain(20)
        events.gather()
        assert record(2) is not events.gathering
        waiting = record(3)
        assert events.gathering is waiting
        assert record(4) is waiting, "all that comes meanwhile becomes one message"
        assert await events.drain(20)
        assert done == [0, 1, 2, 3, 4]
    finally:
        await broker.close()


async def test_who_gathers_waits_for_a_turn_without_more_events(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        events.gather()
        first = events.gathering
        for number in range(5):
            events.record(str(number), JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            events.push_out()
            assert events.gathering is first
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert events.gathering is not first
        assert await events.drain(20)
        first = events.gathering
        for number in range(MANY_EVENTS):
            events.record(str(number), JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
        await asyncio.sleep(0)
        assert events.gathering is not first, "with so many it does not wait"
        assert await events.drain(20)
    finally:
        await broker.close()


class Follower(EventFollower):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.announced: dict[str, list[str]] = {}
        self.confirmed_ids: list[str] = []

    def announce(self, message_id: str, events: Sequence[OwnEvent], user: str | None) -> None:
        self.announced[message_id] = [one.event.subject for one in events]

    def confirmed(self, message_id: str) -> None:
        self.confirmed_ids.append(message_id)


async def test_who_follows_in_the_same_process_is_told_of_many_events_too(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        events.follower = follower = Follower()
        subjects = [f"{queue_name}-{number}" for number in range(MAX_EVENTS_PER_MESSAGE + 1)]
        for subject in subjects:
            events.record_described(subject, "2026-01-01T00:00:00Z", "a.b", queue_name, 0, b"{}")
        assert await events.drain(20)
        assert [one for told in follower.announced.values() for one in told] == subjects
        assert [len(told) > 1 for told in follower.announced.values()] == [True, True]
        assert sorted(follower.confirmed_ids) == sorted(follower.announced)
    finally:
        await broker.close()


async def test_a_deleted_stream_is_declared_again_and_no_event_is_lost(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    topology = Topology(prefix=f"{queue_name}.")
    async with Jobs(broker_uri, topology=topology) as jobs:
        await jobs.push("event.first", queue=queue_name)
        await eye.call(lambda: eye.channel.queue_delete(f"{queue_name}.ojs.events"))
        pushed = await jobs.push("event.second", queue=queue_name)
    reader = StreamReader()
    async with connect(broker_uri) as connection:
        channel = await connection.channel(prefetch_count=10)
        await channel.consume(f"{queue_name}.ojs.events", reader.take, arguments={"x-stream-offset": "first"})
        await until(lambda: reader.types(pushed.id) == ["job.enqueued"])


async def test_large_results_do_not_make_a_message_that_no_broker_takes(
    broker_uri: str, eye: Eye, queue_name: str
) -> None:
    """Each may be 1 MiB, and a thousand jobs may end in one turn of the loop."""
    async with Jobs(broker_uri) as jobs:
        release = asyncio.Event()

        @jobs.handler("event.large", queue=queue_name)
        async def large() -> str:
            await release.wait()
            return "x" * 1_000_000

        await jobs.push_many([large.job() for _ in range(12)])
        async with Worker(jobs, concurrency=12) as worker:
            await until(lambda: worker.running_count == 12)
            events = await eye.tap("ojs.exchange.events", "#")
            release.set()
            await until(lambda: worker.counters.acked[queue_name] == 12)
    found = 0
    while found < 12:
        body = (await eye.wait_for(events)).body
        assert len(body) < 9_000_000
        found += sum(event.type == "job.completed" for event in decode_events(body))
