"""A push without a loop waits for its job only: the event follows, and whoever asks later finds it."""

import asyncio
from typing import Any

import pytest

from tests.ojs.eye import Eye, until
from waybill.client import connect
from waybill.ojs import Coordinator, Jobs, Topology
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.observe import event_writer
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.events import JobCompleted, decode_events


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not send what lingers would wait longer than a test may take."""
    monkeypatch.setattr(event_writer, "LINGER_SECONDS", 1000.0)


async def subjects_of(uri: str, prefix: str, count: int) -> list[list[str]]:
    """Return whom the events of a stream are about, message by message, once there are so many events."""
    messages: list[list[str]] = []

    def take(delivery: Any) -> None:
        messages.append([event.subject for event in decode_events(delivery.body)])
        delivery.ack()

    async with connect(uri) as connection:
        channel = await connection.channel(prefetch_count=100)
        await channel.consume(f"{prefix}ojs.events", take, arguments={"x-stream-offset": "first"})
        await until(lambda: sum(map(len, messages)) >= count)
    return messages


@pytest.mark.plain_source
@pytest.mark.usefixtures("for_ever")
def test_events_of_pushes_one_by_one_share_messages_and_the_close_sends_them(broker_uri: str, queue_name: str) -> None:
    jobs = Jobs(broker_uri, topology=Topology(prefix=f"{queue_name}."))
    pushed = [jobs.sync.push("a.b", [number], queue=queue_name).id for number in range(12)]
    jobs.sync.close()
    messages = asyncio.run(subjects_of(broker_uri, f"{queue_name}.", len(pushed)))
    assert [subject for message in messages for subject in message] == pushed
    assert len(messages) < 5


@pytest.mark.usefixtures("for_ever")
async def test_a_question_waits_for_the_events_of_pushes_before_it(broker_uri: str, queue_name: str) -> None:
    jobs = Jobs(broker_uri, topology=Topology(prefix=f"{queue_name}."))

    def operate() -> None:
        pushed = [jobs.sync.push("a.b", queue=queue_name) for _ in range(5)]
        assert {job.state() for job in pushed[3:]} == {"available"}
        assert len(jobs.sync.newest(queue_name)) == 5
        last = jobs.sync.push("a.b", queue=queue_name)
        last.cancel()
        assert last.wait(timeout=30) == "cancelled"

    async with Coordinator(jobs, queues=[queue_name]):
        await asyncio.to_thread(operate)
    await asyncio.to_thread(jobs.sync.close)


@pytest.mark.plain_source
@pytest.mark.usefixtures("for_ever")
def test_a_push_waits_while_the_broker_takes_no_events(broker_uri: str, eye: Eye, queue_name: str) -> None:
    """So that a program cannot gather events without end."""
    jobs = Jobs(broker_uri, topology=Topology(prefix=f"{queue_name}."))
    pushed = [jobs.sync.push("a.b", queue=queue_name).id]
    eye.channel.queue_delete(f"{queue_name}.ojs.events")
    # That of the second or third push comes back; another one waits until the stream is declared again.
    pushed += [jobs.sync.push("a.b", queue=queue_name).id for _ in range(8)]
    jobs.sync.close()
    messages = asyncio.run(subjects_of(broker_uri, f"{queue_name}.", len(pushed) - 1))
    assert [subject for message in messages for subject in message] == pushed[1:]


@pytest.mark.plain_source
@pytest.mark.usefixtures("for_ever")
async def test_who_waits_takes_along_what_lingers(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        data = JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1)
        events.record("1", data)
        events.linger()
        await until(lambda: events.counters.published["events"] == 1)
        for subject in ("2", "3"):
            events.record(subject, data)
            events.linger()
        lingering = events.gathering
        events.push_out()
        assert events.gathering is lingering
        events.record("4", data)
        await until(lambda: events.counters.published["events"] == 2)
        assert events.gathering is not lingering
        events.record("5", data)
        events.linger()
        await events.catch_up(20)
        assert events.counters.published["events"] == 3
        assert await events.drain(0)
    finally:
        await broker.close()


async def test_what_lingers_goes_out_by_itself(broker_uri: str, queue_name: str) -> None:
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        events: EventWriter = broker.events
        for subject in ("1", "2"):
            events.record(subject, JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            events.push_out()
            events.linger()
        await until(lambda: events.counters.published["events"] > 0)
        for subject in ("3", "4"):
            events.record(subject, JobCompleted(job_type="a", queue=queue_name, duration_ms=0, attempt=1))
            events.linger()
        # Without another event, a question or the end: a timer is enough.
        await until(events._idle.is_set)
    finally:
        await broker.close()
