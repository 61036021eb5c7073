"""What a coordinator holds in memory: counted as objects and octets, on both brokers where a stream is behind it."""

import gc
import threading
import tracemalloc

import pytest

from tests.client.breaking import until
from waybill.client import BasicProperties, Delivery, connect
from waybill.ojs import Coordinator, Jobs
from waybill.ojs.bounded_dict import Generations
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.event_reader import PREFETCH, EventReader
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.stream_fold import MOST_BYTES, SMALL_RUN
from waybill.ojs.observe.event_batch import MAX_CHARACTERS_PER_MESSAGE
from waybill.ojs.observe.event_forms import EventForms
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import BATCH_TYPE, JobProgress, ReceivedEvent, decode_events
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.topology.topology import Topology

TIME = "2026-01-01T00:00:00.000Z"
EVENTS_PER_MESSAGE = 300
MESSAGES = 200


def lives(count: int) -> bytes:
    """The events of jobs from enqueuing to end, as one message of the stream."""
    forms = EventForms("ojs://waybill/workers/w")
    events = []
    for job_id in (new_id() for _ in range(count)):
        events.append(forms.enqueued("evt_" + new_id(), TIME, job_id, "a.b", "q", 0, None))
        ends = ("evt_" + new_id(), TIME), ("evt_" + new_id(), TIME)
        events.append(forms.attempt(("a.b", "q", 1, "w"), job_id, *ends, 0))
    return f"[{','.join(events)}]".encode()


class SlowStore:
    """Holds up the first fold, and counts at every tenth what is in memory by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, subject: str, body: bytes) -> None:
        self.may_go_on = threading.Event()
        self.folded = 0
        self._folds = 0
        self.most_events = 0
        self.most_deliveries = 0
        self._subject = subject
        self._body = body
        original = MemoryJobStore.apply

        def apply(
            store: MemoryJobStore,
            messages: list[tuple[int, list[ReceivedEvent]]],
            *,
            partition: int,
            keeps_position: bool = False,
        ) -> dict[str, JobInfo | None]:
            self._count(messages)
            return original(store, messages, partition=partition, keeps_position=keeps_position)

        monkeypatch.setattr(MemoryJobStore, "apply", apply)

    def _count(self, messages: list[tuple[int, list[ReceivedEvent]]]) -> None:
        # What the coordinator itself tells is folded by its event loop, which must not wait here.
        found = sum(event.subject == self._subject for _, events in messages for event in events)
        if not found:
            return
        self.may_go_on.wait(60)
        self.folded += found
        self._folds += 1
        # A heap of many objects is searched for long.
        if self._folds % 10 != 1:
            return
        objects = gc.get_objects()
        deliveries = [one for one in objects if isinstance(one, Delivery) and one.body == self._body]
        self.most_deliveries = max(self.most_deliveries, len(deliveries))
        events = [one for one in objects if isinstance(one, ReceivedEvent) and one.subject == self._subject]
        self.most_events = max(self.most_events, len(events))


async def test_a_coordinator_that_is_behind_holds_few_messages_and_fewer_events(
    broker_uri: str, waybill_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new_id()
    event = EventForms("/test").started("evt_x", TIME, job_id, "a.b", queue_name, 1, "w")
    body = f"[{','.join([event] * EVENTS_PER_MESSAGE)}]".encode()
    store = SlowStore(monkeypatch, job_id, body)
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]), connect(broker_uri) as connection:
        channel = await connection.channel()
        properties = BasicProperties(delivery_mode=2, type=BATCH_TYPE)
        for _ in range(MESSAGES):
            await channel.publish(body, exchange=Topology().events, routing_key=BATCH_TYPE, properties=properties)
        store.may_go_on.set()
        await until(lambda: store.folded == MESSAGES * EVENTS_PER_MESSAGE, 60)
    if broker_uri == waybill_uri:
        # RabbitMQ sends all messages of a chunk of the stream when there is room for the first.
        assert store.most_deliveries <= PREFETCH
    # The last piece is let go of when the next one is there.
    assert 0 < store.most_events * len(event) <= 2 * (JobStore().fold_bytes + len(body))


@pytest.mark.plain_source
async def test_large_messages_wait_one_at_a_time(
    broker_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_id, small_id, large_size = new_id(), new_id(), 8 << 20
    forms = EventForms("/test")
    large = f"[{forms.started('evt_x', TIME, large_id, 'a.b', queue_name, 1, 'w' * large_size)}]".encode()
    small = f"[{forms.started('evt_y', TIME, small_id, 'a.b', queue_name, 1, 'w')}]".encode()
    store = SlowStore(monkeypatch, large_id, large)
    prefetched: list[int] = []
    pauses: list[None] = []
    pause, resume = EventReader.pause, EventReader.resume

    def paused(reader: EventReader) -> None:
        pauses.append(None)
        pause(reader)

    async def noted(reader: EventReader, prefetch: int) -> None:
        prefetched.append(prefetch)
        await resume(reader, prefetch)

    monkeypatch.setattr(EventReader, "pause", paused)
    monkeypatch.setattr(EventReader, "resume", noted)
    async with (
        Jobs(broker_uri) as jobs,
        Coordinator(jobs, queues=[queue_name]) as coordinator,
        connect(broker_uri) as connection,
    ):
        channel = await connection.channel()
        properties = BasicProperties(delivery_mode=2, type=BATCH_TYPE)
        for body in (*[large] * 12, *[small] * (SMALL_RUN + 10)):
            await channel.publish(body, exchange=Topology().events, routing_key=BATCH_TYPE, properties=properties)
        await until(lambda: bool(pauses), 60)
        store.may_go_on.set()
        await until(lambda: store.folded == 12 and prefetched[-1:] == [PREFETCH], 60)
        while await coordinator.view.get(small_id) is None:
            pass
    assert store.folded == 12
    assert prefetched[0] == 1
    assert store.most_deliveries <= MOST_BYTES // large_size + 1


async def test_messages_of_events_are_small(broker_uri: str, queue_name: str) -> None:
    sizes: list[int] = []
    seen: list[ReceivedEvent] = []
    broker = await BrokerConnection.open(broker_uri, Topology(), "/test", None)
    try:
        await broker.declarer.ensure_shared()
        reader = await broker.connection.channel(prefetch_count=10)

        def take(delivery: Delivery) -> None:
            sizes.append(len(delivery.body))
            seen.extend(decode_events(delivery.body))
            delivery.ack()

        await reader.consume(Topology().event_stream, take, arguments={"x-stream-offset": "next"})
        events: EventWriter = broker.events
        for text in (*["x" * 10_000] * 100, "y" * 2 * MAX_CHARACTERS_PER_MESSAGE):
            events.record(
                queue_name,
                JobProgress(
                    job_type="a", queue="q", worker_id="w", attempt=1, progress_percent=1, progress_message=text
                ),
            )
        await until(lambda: sum(event.subject == queue_name for event in seen) == 101)
    finally:
        await broker.close()
    assert sorted(sizes)[-2] <= MAX_CHARACTERS_PER_MESSAGE + 1000
    assert max(sizes) < 2 * MAX_CHARACTERS_PER_MESSAGE + 1000, "what is larger goes alone"


def test_a_job_that_has_ended_takes_little_and_many_take_no_more() -> None:
    kept = 5000
    tracemalloc.start()
    try:
        store = MemoryJobStore(kept)
        empty = tracemalloc.get_traced_memory()[0]
        sizes = []
        for offset in range(60):
            store.apply([(offset, decode_events(lives(500)))])
            sizes.append(tracemalloc.get_traced_memory()[0] - empty)
    finally:
        tracemalloc.stop()
    assert store.counts() == {("q", "completed"): 30_000}
    assert max(sizes) <= 450 * (kept + kept // 10 + 500)
    assert max(sizes[20:]) <= 1.05 * max(sizes[:20])


def test_generations_remember_the_last_ones() -> None:
    memory: Generations[int, str] = Generations(100, 10_000)
    for number in range(1000):
        memory.add(number, str(number), 1)
        forgotten = memory.forget()
        assert len(memory) <= 110
        assert all(key < number - 99 for key in forgotten)
    assert [memory.get(number) for number in (899, 900, 999, 1000)][1:] == ["900", "999", None]
    assert [value for _, value in memory.items()][-100:] == [str(number) for number in range(900, 1000)]
    assert (memory.pop(950), memory.pop(950), memory.pop(-1)) == ("950", None, None)
    memory.add(950, "again", 1)
    assert list(memory.items())[-1] == (950, "again") == next(memory.newest())


def test_generations_remember_fewer_keys_of_more_weight() -> None:
    memory: Generations[int, str] = Generations(100, 1000)
    for number in range(200):
        memory.add(number, str(number), 50)
        assert all(key < number - 19 for key in memory.forget())
        assert len(memory) <= 22
    assert list(memory.keys())[-20:] == list(range(180, 200))
