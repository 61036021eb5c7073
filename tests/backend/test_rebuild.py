"""The start of a server, which reads all events so far."""

import asyncio
import logging
import time
from collections.abc import Sequence

import pytest

from waybill.backend.backend import Backend
from waybill.broker import Broker
from waybill.client import BasicProperties, connect
from waybill.ojs import Jobs, Topology
from waybill.ojs.coordinator import markers
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.observe.event_forms import EventForms
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.events import BATCH_TYPE, ReceivedEvent
from waybill.ojs.spec.identifiers import new_id

EVENTS = 40
LARGE = 50_000
"""Large messages are folded in a thread."""
TIME = "2026-01-01T00:00:00.000Z"

pytestmark = pytest.mark.plain_source


@pytest.fixture(autouse=True)
def _quick_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "REPORT_SECONDS", 0.05)
    monkeypatch.setattr(markers, "STUCK_SECONDS", 0.5)


async def test_it_takes_as_long_as_there_are_events_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """400,000 events and a new database took more than 30 s: the server gave up, at each start."""
    apply = MemoryJobStore.apply

    def slowly(
        store: MemoryJobStore, messages: Sequence[tuple[int, Sequence[ReceivedEvent]]], **options: object
    ) -> object:
        time.sleep(0.02 * len(messages))
        return apply(store, messages, **options)  # type: ignore[arg-type]

    caplog.set_level(logging.INFO)
    async with Broker(port=0) as broker, connect(broker.uri()) as connection:
        async with Jobs(broker.uri()) as jobs:
            await (await jobs.broker_connection()).declarer.ensure_shared()
        channel = await connection.channel()
        for number in range(EVENTS):
            event = EventForms("/test").enqueued(f"evt_{number}", TIME, new_id(), "a.b", "q", 0, None)
            properties = BasicProperties(delivery_mode=2, type=BATCH_TYPE)
            await channel.publish(
                f"[{event}]".ljust(LARGE).encode(),
                exchange=Topology().events,
                routing_key=BATCH_TYPE,
                properties=properties,
            )
        monkeypatch.setattr(MemoryJobStore, "apply", slowly)
        async with Backend(Jobs(broker.uri())) as backend:
            assert await backend.view.look(lambda store: store.counts()) == {("q", "available"): EVENTS}
    assert [line for line in caplog.messages if "being built from the event stream: the next event is" in line]
    assert [line for line in caplog.messages if "was built from the event stream in" in line]


async def test_it_ends_if_the_stream_brings_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventWriter, "mark", lambda *_: None)
    async with Broker(port=0) as broker:
        with pytest.raises(TimeoutError, match="has brought nothing for"):
            await asyncio.wait_for(Backend(Jobs(broker.uri())).start(), 30)
