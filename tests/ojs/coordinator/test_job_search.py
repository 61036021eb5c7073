"""What pages for operators look for in a store: parts of jobs, failures that are alike, times of queues."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.ojs.coordinator.test_job_store import event, store
from waybill.ojs.coordinator.failure_group import hour_of, series_of
from waybill.ojs.coordinator.job_fold import MAX_TRACE
from waybill.ojs.coordinator.job_store import JobFilter, JobStore
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import new_id

__all__ = ["store"]

ERROR = {"type": "ValueError", "message": "row 7 of 'a.csv' is bad"}
LIKE_IT = {"type": "ValueError", "message": "row 8 of 'b.csv' is bad"}
OTHER = {"type": "KeyError", "message": "'name'"}


@dataclass
class Stream:
    """Folds events one after another."""

    store: JobStore
    offset: int = 0

    def fold(self, *events: ReceivedEvent) -> None:
        self.store.apply([(self.offset, list(events))])
        self.offset += 1


def failed(job_id: str, second: int, error: dict[str, str]) -> list[ReceivedEvent]:
    return [
        event("job.enqueued", job_id, 1, job={"args": [f"for {job_id}"], "tags": ["blue_sky"]}),
        event("job.started", job_id, 2, attempt=1),
        event("job.failed", job_id, second, attempt=1, error=error),
        event("job.discarded", job_id, second, total_attempts=1, last_error=error),
    ]


def test_failures_that_differ_in_details_are_one_group(store: JobStore) -> None:
    stream = Stream(store)
    stream.fold(*failed("a", 3, ERROR), *failed("b", 4, LIKE_IT))
    stream.fold(*failed("c", 5, OTHER))
    last, first = store.failures(10)
    assert (last.error_type, last.count, last.last_job) == ("KeyError", 1, "c")
    assert (first.count, first.last_job, first.message) == (2, "b", LIKE_IT["message"])
    assert first.last_at > first.first_at or first.last_at == "2026-01-01T00:00:04.000Z"
    found, _ = store.search(JobFilter(fingerprint=first.fingerprint), "", 10, 100)
    assert [one.info.id for one in found] == ["b", "a"]
    stream.fold(event("job.enqueued", "c", 9))
    assert [one.fingerprint for one in store.failures(10)] == [first.fingerprint], "it was tried again"
    stream.fold(event("job.enqueued", "a", 9))
    assert [one.count for one in store.failures(10)] == [1]
    store.clear()
    assert store.failures(10) == []


def test_failures_are_counted_by_hour_even_if_they_are_tried_again(store: JobStore) -> None:
    stream = Stream(store)
    stream.fold(*failed("a", 3, ERROR), *failed("b", 4, LIKE_IT))
    stream.fold(*failed("c", 5, OTHER))
    first = next(one.fingerprint for one in store.failures(10) if one.count == 2)
    hour = hour_of(store._find("a") or pytest.fail("it is known"))
    assert store.failure_hours([first, "none"]) == {first: {hour: 2}, "none": {}}
    stream.fold(event("job.enqueued", "a", 9))
    assert store.failure_hours([first])[first] == {hour: 2}
    late = event("job.discarded", "d", 6, last_error=ERROR)
    stream.fold(ReceivedEvent(late.id, late.type, late.source, "2026-01-02T00:30:00Z", "d", late.data))
    assert store.failure_hours([first])[first] == {(hour or 0) + 24: 1}, "a day is kept"
    assert series_of({7: 2}, 7 * 3600 + 1)[-2:] == [0, 2]
    assert [one.count for one in store.failures(10, "other.")] == []
    stream.fold(event("job.enqueued", "b", 9), event("job.enqueued", "d", 9, at="later"))
    stream.fold(ReceivedEvent(new_id(), "job.enqueued", "/test", "2026-01-03T00:00:00Z", "d", late.data))
    assert store.failure_hours([first])[first] == {}, "the group is gone"


def test_the_trace_of_the_last_error_is_kept_and_bounded(store: JobStore) -> None:
    def failure(attempt: int, trace: object) -> ReceivedEvent:
        return event("job.failed", "a", attempt, attempt=attempt, error={**ERROR, "stack_trace": trace})

    Stream(store).fold(
        failure(1, "the first"),
        failure(2, "x" * MAX_TRACE + "the end"),
        event("job.discarded", "a", 9, total_attempts=2, last_error=ERROR),
    )
    found = store.detail("a")
    assert found is not None
    trace = str((found.info.error or {}).get("stack_trace"))
    assert (len(trace), trace[-7:]) == (MAX_TRACE, "the end")
    assert all("stack_trace" not in one for one in found.errors or [])
    Stream(store, 1).fold(event("job.failed", "b", 1, attempt=1, error={**ERROR, "stack_trace": ["no text"]}))
    other = store.get("b")
    assert other is not None
    assert other.error == ERROR


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (JobFilter(text="FOR B"), ["b"]),
        (JobFilter(text="for"), ["c", "b", "a"]),
        (JobFilter(text="keyerror"), ["c"]),
        (JobFilter(text="blue%sky"), []),
        (JobFilter(text="blue_sky", states=frozenset({"discarded"})), ["c", "b", "a"]),
        (JobFilter(text="blue_sky", queue="none"), []),
        (JobFilter(id_prefix="b"), ["b"]),
        (JobFilter(tenant="q"), []),
        (JobFilter(since="2026-01-01T00:00:02Z"), []),
        (JobFilter(until="2026-01-01T00:00:02Z", type="a.b"), ["c", "b", "a"]),
        (JobFilter(states=frozenset({"available"})), []),
        (JobFilter(queue="q", states=frozenset({"discarded"})), ["c", "b", "a"]),
    ],
)
def test_jobs_are_found_by_parts_of_them(store: JobStore, wanted: JobFilter, ids: list[str]) -> None:
    Stream(store).fold(*failed("a", 3, ERROR), *failed("b", 4, LIKE_IT), *failed("c", 5, OTHER))
    found, last = store.search(wanted, "", 10, 100)
    assert ([one.info.id for one in found], last) == (ids, "")
    assert [one.info.id for one in store.page(wanted, "", 10)[0]] == ids


def test_a_search_ends_somewhere_and_goes_on_from_there(store: JobStore) -> None:
    Stream(store).fold(*(one for job_id in "abcdef" for one in failed(job_id, 3, ERROR)))
    wanted = JobFilter(text="for a")
    found, last = store.search(wanted, "", 10, 3)
    assert (found, last) == ([], "d")
    found, last = store.search(wanted, last, 10, 3)
    assert ([one.info.id for one in found], last in {"", "a"}) == (["a"], True)
    found, last = store.search(JobFilter(text="for"), "", 2, 100)
    assert ([one.info.id for one in found], last) == (["f", "e"], "e")


def large(number: int) -> ReceivedEvent:
    job = {"specversion": "1.0", "id": f"{number:02}", "type": "a.b", "queue": "q", "args": ["x" * 1_000_000]}
    return event("job.enqueued", f"{number:02}", number, state="available", job=job)


def test_large_jobs_make_a_page_shorter(store: JobStore) -> None:
    stream = Stream(store)
    for number in range(20):
        stream.fold(large(number))
    for look in (store.page, lambda wanted, before, limit: store.search(wanted, before, limit, 100)):
        for wanted in (JobFilter(), JobFilter(queue="q", states=frozenset({"available"})), JobFilter(text="xxx")):
            found, last = look(wanted, "", 100)
            assert 1 < len(found) < 11
            ids = [one.info.id for one in found]
            while last:
                found, last = look(wanted, last, 100)
                ids += [one.info.id for one in found]
            assert ids == [f"{number:02}" for number in reversed(range(20))]


def test_a_search_in_long_texts_lets_others_pass(store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.sql_search.LOOK_SECONDS", -1)
    monkeypatch.setattr("waybill.ojs.coordinator.job_scan.LOOK_BYTES", 4_000_000)
    stream = Stream(store)
    for number in range(20):
        stream.fold(large(number))
    found, last = store.search(JobFilter(text="none has this"), "", 100, 100)
    assert (found, last > "00") == ([], True)
    assert store.search(JobFilter(text="none has this"), last, 100, 100)[0] == []


def test_times_of_a_queue_are_those_of_its_last_jobs(store: JobStore) -> None:
    assert store.times("q", 10) == (None, None, None)
    stream = Stream(store)
    stream.fold(event("job.enqueued", "w", 3), event("job.enqueued", "x", 9))
    for number, job_id in enumerate("abc"):
        stream.fold(
            event("job.enqueued", job_id, 10),
            event("job.started", job_id, 11 + number, attempt=1),
            event("job.completed", job_id, 20, attempt=1),
        )
    found = store.times("q", 10)
    assert found.oldest_at == "2026-01-01T00:00:03.000Z"
    assert (found.wait_ms, found.run_ms) == ((2000, 3000, 3000), (8000, 9000, 9000))
    assert store.times("q", 0) == (found.oldest_at, None, None)
