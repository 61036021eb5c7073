"""Lists of the store in memory, which looks at its jobs one after another."""

import random

import pytest

from tests.ojs.coordinator.test_job_store import event
from tests.ojs.coordinator.test_overflow import all_of, random_event
from waybill.ojs.coordinator.job_scan import FIRST_IDS, PAUSE_AFTER
from waybill.ojs.coordinator.job_store import JobFilter
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.overflow import Overflow

JOBS = 3 * PAUSE_AFTER


@pytest.mark.parametrize("room", [0, 10**9])
@pytest.mark.parametrize("seed", range(4))
def test_jobs_may_change_while_lists_are_made(seed: int, room: int) -> None:
    chance = random.Random(seed)
    with MemoryJobStore(JOBS, room) as store, MemoryJobStore(JOBS) as quiet:
        ids = [f"other{number}" for number in range(JOBS)]
        messages = [(0, [event("job.enqueued", job_id, 1) for job_id in ids])]
        pauses = 0

        def change() -> None:
            nonlocal pauses
            pauses += 1
            found = [random_event(chance, pauses % 60) for _ in range(5)]
            messages.append((len(messages), found))
            store.apply(messages[-1:])

        store.apply(messages)
        store.pause = change
        for _ in range(20):
            all_of(store)
        assert pauses > 20
        store.pause = lambda: None
        for message in messages:
            quiet.apply([message])
        assert all_of(store) == all_of(quiet)


def test_all_jobs_are_listed_however_many_there_are() -> None:
    count = 2 * FIRST_IDS[0] + 100
    with MemoryJobStore() as store:
        store.apply([(0, [event("job.enqueued", f"job{number:05}", 1) for number in range(count)])])
        store.apply([(1, [event("job.started", f"job{number:05}", 2, attempt=1) for number in range(0, count, 100)])])
        active = set(range(0, count, 100))
        expected = {"available": set(range(count)) - active, "active": active, "completed": set()}
        for state, wanted in expected.items():
            listed: list[str] = []
            before, is_over = "", False
            while not is_over:
                jobs, before = store.page(JobFilter(states=frozenset({state})), before, 70)
                listed += [job.info.id for job in jobs]
                is_over = not before
            assert listed == [f"job{number:05}" for number in sorted(wanted, reverse=True)]


@pytest.mark.plain_source
def test_jobs_in_the_file_that_do_not_match_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = Overflow._read

    def note(texts: Overflow, key: str) -> bytes:
        read.append(key)
        return original(texts, key)

    with MemoryJobStore(room=0) as store:
        store.apply([(0, [event("job.enqueued", f"job{number:03}", 1) for number in range(500)])])
        store.apply([(1, [event("job.started", "job123", 2, attempt=1)])])
        monkeypatch.setattr(Overflow, "_read", note)
        assert [job.id for job in store.running(10)] == ["job123"]
        assert store.page(JobFilter(type="none"), "", 10) == ([], "")
        assert store.page(JobFilter(queue="none"), "", 10) == ([], "")
        assert len(store.page(JobFilter(states=frozenset({"active"})), "", 10)[0]) == 1
        assert read == ["job123", "job123"]
