"""Claims that cannot be pushed do not hold up others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.client.breaking import until
from tests.ojs.coordinator.test_claims import job, store_with, told, wish
from waybill.ojs.coordinator import claim_pusher
from waybill.ojs.coordinator.claim_pusher import ClaimPusher
from waybill.ojs.coordinator.claims import PENDING, Claim, key_of
from waybill.ojs.coordinator.feature_fold import Rows
from waybill.ojs.coordinator.marked_rows import MarkedRows
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.errors import PushFailed
from waybill.ojs.spec.identifiers import derived_id


class View:
    """A view of a store, on the loop."""

    def __init__(self, store: MemoryJobStore) -> None:
        self._store = store
        self.on_feature: list[object] = []

    async def marked(self, *asked: Any) -> list[tuple[str, Any]]:
        return self._store.marked(*asked)


def claims(count: int, queue: str, first: int = 0) -> dict[str, Claim]:
    ids = [derived_id(number, queue) for number in range(first, first + count)]
    return {one: Claim(f"wish/{one}", job(queue, one), "me", [f"copy of {one}"]) for one in ids}


def put(store: MemoryJobStore, found: dict[str, Claim]) -> None:
    rows = Rows(store._rows.load)
    for job_id, one in found.items():
        rows.put(key_of(job_id), one, PENDING)
    store._rows.change(*rows.changes())


class Pusher(ClaimPusher):
    """A pusher to a queue that is full, and to others."""

    def __init__(self, view: Any) -> None:
        leader: Any = SimpleNamespace(on_change=[], leads=True)
        broker: Any = SimpleNamespace(events=None, connection=None, topology=None, settings=None)
        super().__init__(broker, view, leader, "me")
        self.pushed: list[str] = []
        self.refused = 0

    async def look(self) -> None:
        await super().look()
        await asyncio.sleep(0)

    async def _push(self, job_id: str, one: Claim) -> None:
        if one.job["queue"] == "silent":
            await asyncio.Event().wait()
        if one.job["queue"] == "full":
            self.refused += 1
            raise PushFailed(job_id, "QUEUE_FULL", "the queue is full")
        self.pushed.append(job_id)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_pusher, "BATCH", 3)
    monkeypatch.setattr(claim_pusher, "Control", lambda _broker: None)


@pytest.mark.usefixtures("small")
async def test_claims_for_a_full_queue_do_not_hold_up_others() -> None:
    store = MemoryJobStore()
    put(store, claims(10, "full"))
    free = claims(2, "free", first=100)
    put(store, free)
    pusher = Pusher(View(store))
    for _ in range(4):
        await pusher.look()
    assert pusher.pushed == list(free)
    assert pusher.refused == 10


@pytest.mark.usefixtures("small")
async def test_a_queue_that_confirms_nothing_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryJobStore()
    silent = claims(7, "silent")
    put(store, silent)
    put(store, claims(2, "free", first=100))
    monkeypatch.setattr(claim_pusher, "PUSH_SECONDS", 0.05)
    pusher = Pusher(View(store))
    for _ in range(4):
        await pusher.look()
    assert pusher.pushed == list(claims(2, "free", first=100))
    await until(lambda: not pusher._pushing)
    assert set(pusher._failures) == set(silent)


@pytest.mark.usefixtures("small")
async def test_pushes_end_with_their_loop() -> None:
    store = MemoryJobStore()
    put(store, claims(1, "silent"))
    pusher = Pusher(View(store))
    running = asyncio.create_task(pusher.run())
    await until(lambda: len(pusher._pushing) == 1)
    running.cancel()
    await until(lambda: not pusher._pushing)


@pytest.mark.usefixtures("small")
async def test_what_waits_for_its_event_is_not_pushed_again_in_the_next_round() -> None:
    store = MemoryJobStore()
    put(store, claims(7, "free"))
    pusher = Pusher(View(store))
    for _ in range(9):
        await pusher.look()
    assert sorted(pusher.pushed) == sorted(claims(7, "free"))


async def test_marked_rows_come_in_rounds() -> None:
    store = MemoryJobStore()
    put(store, claims(5, "q"))
    view: Any = View(store)
    rows = MarkedRows(view, PENDING, Claim, 2)
    seen = [([key for key, _ in await rows.next()], rows.is_round) for _ in range(6)]
    assert [len(keys) for keys, _ in seen] == [2, 2, 1, 2, 2, 1]
    assert [is_round for _, is_round in seen] == [False, False, True] * 2
    assert sorted(key for keys, _ in seen[:3] for key in keys) == [key_of(one) for one in sorted(claims(5, "q"))]


def test_a_copy_that_is_made_after_many_others_may_run() -> None:
    """A push that has failed for hours makes a new copy with each attempt: the last one is in the queue."""
    copies = [told("claim.copied", copy=f"c{number}", by="a") for number in range(2, 200)]
    store = store_with(wish("a", "c1"), *copies, told("claim.admitted", copy="c199", worker_id="w"))
    found = store.row(key_of(derived_id(1, "test")), Claim)
    assert found is not None
    assert (found.copy, len(found.copies)) == ("c199", 100)
