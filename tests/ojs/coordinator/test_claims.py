"""Claimed jobs run once, whoever pushes them, and however often."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from tests.client.breaking import until
from tests.ojs.coordinator.test_job_store import event
from waybill.broker import Broker
from waybill.ojs import Coordinator, Jobs, Worker
from waybill.ojs.coordinator.claim_pusher import read_claimed
from waybill.ojs.coordinator.claims import PENDING, Claim, ClaimFold, claim, key_of, let_go
from waybill.ojs.coordinator.event_fold import fold_messages
from waybill.ojs.coordinator.feature_fold import FeatureFold, FeatureFolds, Rows
from waybill.ojs.coordinator.features import Features
from waybill.ojs.coordinator.markers import MarkerFold
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.errors import DiscardJob
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import EVENT_TYPES, ReceivedEvent
from waybill.ojs.spec.headers import COPY, push_properties
from waybill.ojs.spec.identifiers import derived_id, new_id

JOB_ID = derived_id(1, "test")


class Wish(EventData, frozen=True, kw_only=True):
    """A job that a test wants."""

    job: dict[str, object]
    by: str
    copy: str
    waits: bool = False


class Wishes(FeatureFold):
    """A feature that claims what it is told."""

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        return [key_of(event.subject)] if event.type in {"wish", "grant"} else []

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        if event.type == "grant":
            let_go(rows, event.subject)
        elif rows.get(f"wish/{event.subject}", Claim) is None:
            data = msgspec.convert(event.data, Wish)
            new = Claim(f"wish/{event.subject}", data.job, data.by, [data.copy], waits=data.waits)
            rows.put(f"wish/{event.subject}", new)
            claim(rows, event.subject, new)


def job(queue: str = "q", job_id: str = JOB_ID, **fields: object) -> dict[str, object]:
    made = {"specversion": "1.0", "id": job_id, "type": "a.b", "queue": queue, "args": [1]}
    return {**made, "created_at": "2026-01-01T00:00:00.000Z", **fields}


def store_with(*events: ReceivedEvent) -> MemoryJobStore:
    store = MemoryJobStore()
    store.features = FeatureFolds([Wishes(), ClaimFold(lambda user: user == "boss")])
    for offset, one in enumerate(events):
        fold_messages(store, [(offset, msgspec.json.encode(one), one.user)])
    return store


def told(kind: str, user: str | None = "boss", **data: object) -> ReceivedEvent:
    return msgspec.structs.replace(event(kind, JOB_ID, 1, **data), user=user)


def wish(by: str, copy: str, **data: Any) -> ReceivedEvent:
    return told("wish", job=job(), by=by, copy=copy, **data)


def test_the_first_claim_and_the_first_admission_count() -> None:
    store = store_with(
        wish("a", "c1"), wish("b", "c2"), told("claim.copied", copy="c3", by="b"),
        told("claim.admitted", copy="c2", worker_id="w"),
        told("claim.admitted", copy="c1", user="anybody", worker_id="w"),
        told("claim.admitted", copy="c3", worker_id="w"), told("claim.admitted", copy="c1", worker_id="w"),
    )  # fmt: skip
    ((key, one),) = store.marked(PENDING, Claim, 10)
    assert (key, one.by, one.copies, one.copy) == (key_of(JOB_ID), "a", ["c1", "c3"], "c3")
    fold_messages(store, [(9, msgspec.json.encode(told("claim.pushed", copy="c1", by="a")), "boss")])
    assert store.marked(PENDING, Claim, 10) == []
    assert store.row(key_of(JOB_ID), Claim) is not None


def test_the_end_of_a_job_ends_its_claim_for_ever() -> None:
    store = store_with(wish("a", "c1"), told("job.completed", attempt=1), wish("b", "c2"))
    assert store.row(key_of(JOB_ID), Claim) is None
    assert store.marked(PENDING, Claim, 10) == []


def test_a_claim_may_wait_for_its_feature() -> None:
    store = store_with(wish("a", "c1", waits=True))
    assert store.marked(PENDING, Claim, 10) == []
    fold_messages(store, [(5, msgspec.json.encode(told("grant")), "boss")])
    assert len(store.marked(PENDING, Claim, 10)) == 1


class Setting:
    """A coordinator that grants wishes, and a worker that counts its runs."""

    def __init__(self, jobs: Jobs, coordinator: Coordinator) -> None:
        self.jobs = jobs
        self.coordinator = coordinator

    async def push_copy(self, copy: str, **fields: Any) -> None:
        broker = await self.jobs.broker_connection()
        envelope = read_claimed(job(**fields), datetime.now(UTC))
        await broker.declarer.ensure_queue("q")
        properties = push_properties(
            envelope, max_priority=10, traceparent="00-" + "1" * 32 + "-" + "1" * 16 + "-00", more_headers={COPY: copy}
        )
        await broker.publishing.publish(
            envelope.encode(), exchange=broker.declarer.topology.direct, routing_key="q", properties=properties
        )

    async def wish(self, by: str, copy: str, job_id: str = JOB_ID, **fields: Any) -> None:
        broker = await self.jobs.broker_connection()
        broker.events.record(job_id, Wish(job=job(job_id=job_id, **fields), by=by, copy=copy))
        await broker.events.drain()


@pytest.fixture
def wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `Wishes` a feature of all coordinators."""
    monkeypatch.setattr("waybill.ojs.coordinator.leader.BEAT_SECONDS", 0.02)
    monkeypatch.setattr("waybill.ojs.coordinator.leader_loop.POLL_SECONDS", 0.02)
    monkeypatch.setattr("waybill.ojs.spec.events.EVENT_TYPES", EVENT_TYPES | {Wish: "wish"})

    def with_wishes(features: Features, is_trusted: Any) -> None:
        make(features, is_trusted)
        features.folds = FeatureFolds([Wishes(), ClaimFold(is_trusted), MarkerFold()])

    make = Features.__init__
    monkeypatch.setattr(Features, "__init__", with_wishes)


@pytest.mark.usefixtures("wishes")
async def test_a_job_that_was_pushed_thrice_runs_once(broker_uri: str) -> None:
    runs: list[int] = []
    jobs = Jobs(broker_uri, topology=None)

    @jobs.handler("a.b", queue="q")
    async def run(number: int) -> None:
        runs.append(number)

    async with jobs, Coordinator(jobs, queues=["q"]) as coordinator:
        setting = Setting(jobs, coordinator)
        copies = [new_id() for _ in range(2)]
        # Its claimant is gone: the leader pushes under a name of its own.
        job_id = new_id()[:15] + "fff" + new_id()[18:]
        await setting.wish("gone", copies[0], job_id)
        await setting.push_copy(copies[0], job_id=job_id)
        await setting.push_copy(copies[1], job_id=job_id)
        async with Worker(jobs, queues=["q"]) as worker:
            eye = worker.counters
            await until(lambda: eye.consumed["q"] == 3 and worker.held_count == 0)
            await until(lambda: runs == [1])
            # Once the coordinator knows of the end, whatever comes is too late.
            while (found := await jobs.info(job_id, "q")) is None or found.state != "completed":
                await asyncio.sleep(0.005)
            await setting.push_copy(copies[0], job_id=job_id)
            await until(lambda: eye.consumed["q"] == 4 and worker.held_count == 0)
        assert runs == [1]
        assert found.attempt == 1


@pytest.mark.usefixtures("wishes")
async def test_all_attempts_of_the_admitted_copy_run() -> None:
    runs: list[int] = []
    async with Broker(port=0) as broker:
        jobs = Jobs(broker.uri())

        @jobs.handler("a.b", queue="q")
        async def run(number: int) -> None:
            runs.append(number)
            if len(runs) == 1:
                raise ValueError("once more")
            if len(runs) == 2:
                raise DiscardJob("no more")

        async with jobs, Coordinator(jobs, queues=["q"]) as coordinator, Worker(jobs, queues=["q"]) as worker:
            retry = {"max_attempts": 5, "initial_interval": "PT1S", "on_exhaustion": "dead_letter"}
            await Setting(jobs, coordinator).wish("gone", new_id(), retry=retry)
            await until(lambda: worker.counts["discarded"] == 1, 20)
            assert runs == [1, 1]
