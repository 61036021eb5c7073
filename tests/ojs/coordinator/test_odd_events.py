"""Whatever comes over the events exchange and the control queues: it is stepped over, and what follows it counts."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.ojs.control.test_control import state_of
from tests.ojs.eye import Eye, until
from waybill.client import connect
from waybill.ojs import Coordinator, Jobs, Topology, Worker
from waybill.ojs.coordinator.event_fold import fold_messages
from waybill.ojs.coordinator.feature_fold import FeatureFold, FeatureFolds, Rows, StoredRow
from waybill.ojs.coordinator.features import Features
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import ReceivedEvent, read_events

JOB_ID = "018f0000-0000-7000-8000-00000000000"


@pytest.fixture
async def jobs(broker_uri: str) -> AsyncIterator[Jobs]:
    async with Jobs(broker_uri) as jobs:
        yield jobs


def event(kind: str = "job.started", **changes: Any) -> dict[str, Any]:
    data = {"job_type": "odd", "queue": "q", "worker_id": "w", "attempt": 1}
    whole = {
        "id": "evt_1",
        "type": kind,
        "source": "x",
        "time": "2026-01-01T00:00:00Z",
        "subject": JOB_ID,
        "data": data,
    }
    return whole | changes


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


BODIES: dict[str, bytes] = {
    "nested 1500 deep": nested(1500),
    "an event with a field nested 1500 deep": json.dumps(event()).encode()[:-1] + b', "x": ' + nested(1500) + b"}",
    "data nested 300 deep": json.dumps(event()).encode()[:-1] + b', "data": {"a": ' + nested(300) + b"}}",
    "nothing": b"",
    "no UTF-8": b'{"id": "\xff"}',
    "a number": b"1",
    "an array of numbers": b"[1, 2]",
    "a unique key that is an object": json.dumps(event("job.reserved", data={"unique_key": {}, "states": []})).encode(),
    "a time that is none": json.dumps(
        event("job.reserved", time="x", data={"unique_key": "u", "period": "P1D"})
    ).encode(),
    "a subject with a null": json.dumps(event(subject="a\0b")).encode(),
    "a long subject": json.dumps(event(subject="s" * 5000)).encode(),
    "no subject": json.dumps(event(subject="")).encode(),
}
HUGE = 10**300
VALUES: list[Any] = [None, True, -HUGE, HUGE, 2**63, -1, 0.5, 1e308, "a\0b", "x" * 5000, [], {}, [[]], {"a": {"b": []}}]
FIELDS = [
    "job_type", "queue", "attempt", "worker_id", "scheduled_at", "unique_key", "states", "period", "reserved_until",
    "reserved_by", "visible_until", "visibility_ms", "message", "progress_percent", "progress_message", "checkpoint",
    "error", "last_error", "result", "total_attempts", "next_retry_at", "duration_ms", "priority",
]  # fmt: skip
KINDS = [
    "job.enqueued", "job.scheduled", "job.reserved", "job.released", "job.started", "job.heartbeat", "job.progress",
    "job.failed", "job.retrying", "job.completed", "job.discarded", "job.cancelled", "job.expired", "job.",
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_an_event_that_is_none_stops_no_coordinator_and_none_that_starts_later(
    jobs: Jobs, eye: Eye, queue_name: str, body: bytes
) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None: ...

    async with Worker(jobs):
        async with Coordinator(jobs, queues=[queue_name]) as coordinator:
            await eye.publish("ojs.exchange.events", "job.started", body)
            job = await known.push()
            await state_of(jobs, job.id, queue_name, "completed")
            assert coordinator.skipped_events > 0
        async with Coordinator(jobs, queues=[queue_name]) as coordinator:
            job = await known.push()
            await state_of(jobs, job.id, queue_name, "completed")
            assert coordinator.skipped_events > 0


def test_one_event_that_is_none_hides_no_others() -> None:
    body = b"[" + b", ".join([json.dumps(event()).encode(), b'{"id": ' + nested(400) + b"}", b"7", nested(400)]) + b"]"
    found, skipped = read_events(body)
    assert ([one.id for one in found], skipped) == (["evt_1"], 3)


def test_every_field_of_every_kind_may_be_anything(database: str) -> None:
    """Nothing is stepped over here: what a store cannot keep as it is, is moved into its range."""
    offset = 0
    with open_job_store(database) as store:
        for number, kind in enumerate(KINDS):
            made = []
            for field in FIELDS:
                for index, value in enumerate(VALUES):
                    start = event("job.started", id=f"s{field}{index}", subject=f"{JOB_ID}{number}-{field}{index}")
                    odd = event(kind, id=f"e{field}{index}", subject=start["subject"])
                    odd["data"] = odd["data"] | {"unique_key": f"u{number}", "states": ["active"], field: value}
                    made += [start, odd]
            events, skipped = read_events(json.dumps(made).encode())
            assert not skipped
            store.apply([(offset, events)])
            offset += 1
        assert store.next_offset == offset
        assert store.get(f"{JOB_ID}0-queue0") is not None
        assert store.newest("q", None, 1000)
        store.held()
        store.counts()


@pytest.mark.parametrize("field", ["queue", "job_type", "worker_id", "unique_key"])
def test_the_longest_texts_fit_the_indexes_of_every_database(database: str, field: str) -> None:
    """In UTF-8 they take four bytes a character, and PostgreSQL cannot compress them."""
    chance = random.Random(field)

    def text(length: int) -> str:
        return "".join(chr(chance.randrange(0x20000, 0x2FFF0)) for _ in range(length))

    with open_job_store(database) as store:
        for offset, kind in enumerate(("job.enqueued", "job.reserved", "job.started", "job.discarded")):
            data = {"attempt": 1, "states": ["active"], "unique_key": "u", field: text(5000)}
            # What a database refuses is skipped, but as slowly as an outage.
            events, _ = read_events(json.dumps(event(kind, subject=text(255), data=data)).encode())
            store.apply([(offset, events)])


def test_events_over_which_a_fold_fails_are_skipped_at_once(database: str) -> None:
    """They are not tried again, as what a database refuses is: each would be a silence for everybody."""
    bodies = []
    for number in range(100):
        poison = event("cron.registered", id=f"c{number}", subject="x", data={"job": {"name": 5}})
        bodies.append(json.dumps([event(id=f"a{number}", subject=f"{JOB_ID}{number}"), poison]).encode())
    with open_job_store(database) as store:
        store.features = Features(lambda _: True).folds
        began = time.monotonic()
        _, skipped = fold_messages(store, [(offset, body, "guest") for offset, body in enumerate(bodies)])
        assert skipped == 100
        # Each took 0.2 s and more.
        assert time.monotonic() - began < 10
        assert store.next_offset == 100
        assert all(store.get(f"{JOB_ID}{number}") is not None for number in range(100))


def test_a_large_message_is_folded_in_pieces(database: str) -> None:
    small = [json.dumps(event(subject=f"{JOB_ID}small{number}")).encode() for number in range(2)]
    parts: list[object] = [event(subject=f"{JOB_ID}{number}", padding="x" * 300_000) for number in range(10)]
    poison = event("cron.registered", subject="x", data={"job": {"name": 5}})
    large = json.dumps([*parts[:5], 7, poison, *parts[5:]]).encode()
    messages = [(0, small[0], "guest"), (1, large, "guest"), (2, small[1], "guest")]
    with open_job_store(database) as store:
        store.features = Features(lambda _: True).folds
        _, skipped = fold_messages(store, messages)
        assert skipped == 2
        assert store.next_offset == 3
        names = (*(f"small{number}" for number in range(2)), *map(str, range(10)))
        assert all(store.get(f"{JOB_ID}{name}") is not None for name in names)


def test_a_store_that_fails_while_a_fold_asks_it_is_not_the_fault_of_the_event() -> None:
    def away(_: object) -> dict[str, StoredRow]:
        raise OSError("away")

    class Asks(FeatureFold):
        def keys(self, event: ReceivedEvent) -> list[str]:
            return ["a"]

        def fold(self, rows: Rows, event: ReceivedEvent) -> None:
            rows.get("b", JobInfo)

    rows = Rows(lambda keys: {} if list(keys) == ["a"] else away(keys))
    with pytest.raises(OSError, match="away"):
        FeatureFolds([Asks()]).fold_all(rows, read_events(json.dumps(event()).encode())[0])


@pytest.mark.parametrize("value", [None, 5, 10**300, [1], {"href": "javascript:alert(1)"}, True])
def test_an_error_has_texts_whatever_its_event_has(value: object) -> None:
    """Who shows it, a dashboard for example, takes them for texts."""
    error = {"code": value, "type": value, "message": value}
    with open_job_store(":memory:") as store:
        failed = event("job.failed", data={"attempt": 1, "error": error})
        ended = event("job.discarded", id="evt_2", data={"attempt": 1, "last_error": error})
        fold_messages(store, [(0, json.dumps([event(), failed, ended]).encode(), None)])
        found = store.get(JOB_ID)
        assert found is not None
        assert found.error is not None
        assert all(isinstance(found.error[name], str) for name in error)


class Picky(JobStore):
    """A store that cannot keep one event, for a reason that nobody has thought of; and that is away for a while."""

    def __init__(self, inner: JobStore) -> None:
        self.inner = inner
        self.is_away = False

    def __getattribute__(self, name: str) -> Any:
        if name in {"inner", "is_away", "apply", "is_at_fault", "probe", "__class__"}:
            return object.__getattribute__(self, name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in {"inner", "is_away"}:
            object.__setattr__(self, name, value)
        else:
            setattr(self.inner, name, value)

    def probe(self) -> None:
        if self.is_away:
            raise OSError("away")

    def apply(self, messages: Any, *, partition: int = 0, keeps_position: bool = False) -> Any:
        self.probe()
        if any(one.data.get("poison") for _, events in messages for one in events):
            raise ArithmeticError("no")
        return self.inner.apply(messages, partition=partition, keeps_position=keeps_position)


@pytest.mark.plain_source
async def test_an_event_that_a_store_refuses_is_skipped_alone(
    waybill_uri: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.stream_fold.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("waybill.ojs.coordinator.event_fold.PAUSE_SECONDS", 0.0)
    picky = Picky(open_job_store(":memory:"))
    monkeypatch.setattr("waybill.ojs.coordinator.job_view.open_job_store", lambda *_: picky)
    eye = Eye(waybill_uri)
    # Streams of their own: nobody else's events are counted.
    topology = Topology(prefix=f"{queue_name}.")
    async with Jobs(waybill_uri, topology=topology) as jobs, Coordinator(jobs, queues=[queue_name]) as coordinator:
        events = [event(subject=f"{queue_name}{number}", id=f"{number}") for number in range(5)]
        events[2]["data"] = events[2]["data"] | {"poison": True}
        picky.is_away = True
        await eye.publish(topology.events, "ojs.events", json.dumps(events).encode())
        await asyncio.sleep(0.1)
        assert coordinator.skipped_events == 0
        picky.is_away = False
        await state_of(jobs, f"{queue_name}4", queue_name, "active")
        assert coordinator.skipped_events == 1
        assert await jobs.info(f"{queue_name}1", queue_name) is not None
        assert await jobs.info(f"{queue_name}2", queue_name) is None
    eye.close()


UNREASONABLE = {
    "job_type": "t", "unique_key": "\0", "states": [], "on_conflict": "x", "lease_seconds": 1e300, "period": "x",
}  # fmt: skip
REQUESTS: list[tuple[str | None, bytes]] = [
    ("ojs.control.cancel", nested(1500)),
    ("ojs.control.cancel", b"\xff"),
    ("ojs.control.cancel", b'{"job_id": "' + b"j" * 300 + b'"}'),
    ("ojs.control.cancel", b'{"job_id": 5}'),
    ("ojs.control.list", b'{"limit": -5}'),
    ("ojs.control.list", b'{"limit": 999999999999999999999999, "state": "x"}'),
    ("ojs.control.reserve", b'{"job_id": "a"}'),
    (
        "ojs.control.reserve",
        json.dumps({"job_id": "a", "reservation": UNREASONABLE}).encode(),
    ),
    ("ojs.control.look", b"{}"),
    ("ojs.control.heartbeat", b'{"job_id": "a\\u0000"}'),
    ("ojs.control.nonsense\n", b"{}"),
    (None, b""),
]


async def test_a_request_that_is_none_stops_no_coordinator(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None: ...

    async with Worker(jobs), Coordinator(jobs, queues=[queue_name]) as coordinator:
        before = len(coordinator._tasks)
        for kind, body in REQUESTS:
            await eye.publish(
                "ojs.exchange.direct", f"control.{queue_name}", body, type=kind, reply_to="amq.gen-nobody"
            )
        job = await known.push()
        await state_of(jobs, job.id, queue_name, "completed")
        assert coordinator.skipped_requests["invalid"] == 7
        await until(lambda: len(coordinator._tasks) <= before)
    assert await eye.count(f"ojs.queue.control.{queue_name}") == 0


async def test_an_answer_and_a_relayed_message_that_are_none_end_nothing(jobs: Jobs, eye: Eye, queue_name: str) -> None:
    @jobs.handler("odd.known", queue=queue_name)
    async def known() -> None: ...

    async with Worker(jobs) as worker:
        for body in (nested(1500), b"\xff", b"", b'{"job_id": 5}'):
            await eye.publish("ojs.exchange.control", "", body, type="ojs.control.cancel")
        await until(lambda: worker.counters.skipped["relay"] == 4)
        await known.push()
        await until(lambda: worker.counts["completed"] == 1)
    # The stream keeps them: each worker that starts from now on would report them.
    async with connect(jobs.uri) as connection:
        channel = await connection.channel()
        await channel.delete_queue(jobs.topology.relay_stream)
