"""Counts that are followed: what is told is what has changed, in every store, and comes to the same as counting."""

import asyncio
import random
from collections.abc import Callable

import pytest

from tests.ojs.coordinator.test_job_store import event, store  # noqa: F401 - a fixture
from waybill.ojs.coordinator import job_counts
from waybill.ojs.coordinator.job_counts import OTHER, Countable, CountChanges, CountMark, FollowedCounts, JobCounts
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.spec.states import State


def pushed(store: JobStore, offset: int, *job_ids: str, queue: str = "q") -> None:  # noqa: F811
    store.apply([(offset, [event("job.enqueued", one, 1, queue=queue) for one in job_ids])])


def test_only_what_has_changed_is_told(store: JobStore) -> None:  # noqa: F811
    pushed(store, 0, "a", "b")
    pushed(store, 1, "c", queue="other")
    first = store.count_changes(None)
    assert first.is_whole
    assert first.counts == store.counts() == {("q", "available"): 2, ("other", "available"): 1}
    assert store.count_changes(first.mark) == CountChanges(first.mark, {})
    store.apply([(2, [event("job.started", "c", 2, queue="other", attempt=1)])])
    second = store.count_changes(first.mark)
    assert not second.is_whole
    assert second.counts == {("other", "available"): 0, ("other", "active"): 1}
    # As many come as go: the count is the same, and still told.
    store.apply(
        [(3, [event("job.started", "a", 3, attempt=1), event("job.enqueued", "d", 3)])],
    )
    assert store.count_changes(second.mark).counts == {("q", "available"): 2, ("q", "active"): 1}
    store.clear()
    assert store.count_changes(second.mark)[1:] == ({}, True, None)


def test_a_follower_comes_to_the_same_as_counting(store: JobStore) -> None:  # noqa: F811
    chance, counts = random.Random(7), JobCounts()
    for offset in range(60):
        if offset == 40:
            store.clear()
        kind = chance.choice(["job.enqueued", "job.started", "job.completed", "job.cancelled"])
        job_id, queue = str(chance.randrange(12)), chance.choice("xyz")
        store.apply([(offset, [event(kind, job_id, 1 + offset % 50, queue=f"{queue}{job_id}", attempt=1)])])
        if chance.random() < 0.5:
            counts.take(store.count_changes(counts.mark))
            assert counts.by_pair == store.counts()
            flat = {(queue, state): n for queue, own in counts.by_queue.items() for state, n in own.items()}
            assert flat == counts.by_pair
            sums = {state.value: 0 for state in State}
            for (_, state), n in counts.by_pair.items():
                sums[state] += n
            assert counts.total == sums


def test_a_follower_sees_what_another_process_folds(database: str) -> None:
    with SqlJobStore(database) as one, SqlJobStore(database) as other:
        counts = JobCounts(one.counts())
        counts.mark = None
        counts.take(one.count_changes(None))
        pushed(other, 0, "a")
        counts.take(one.count_changes(counts.mark))
        assert counts.by_pair == {("q", "available"): 1}
        other.clear()
        counts.take(one.count_changes(counts.mark))
        assert counts.by_pair == {}


def test_it_says_what_has_changed_since_when() -> None:
    counts = JobCounts({("a", "available"): 1, ("b", "available"): 3, ("t.c", "completed"): 1})
    begin = counts.version
    assert counts.fullest(2) == ["b", "a"]
    counts.take(CountChanges(CountMark(0, 1), {("a", "available"): 5}))
    assert list(counts.changed_since(begin)) == ["a"]
    assert (counts.version_of("a"), counts.version_of("b")) == (begin + 1, begin)
    assert (counts.version_of_state("available"), counts.version_of_state("completed")) == (begin + 1, begin)
    assert counts.fullest(1) == ["a"]
    assert counts.within("t.").by_pair == {("t.c", "completed"): 1}
    assert counts.within("t.d").by_pair == {}
    assert counts.of_group("t") == {"t.c": {"completed": 1}}
    # What was read before that, and comes later, changes nothing; the view made anew changes all.
    counts.take(CountChanges(CountMark(0, 0), {("a", "available"): 1}))
    assert counts.total["available"] == 8
    counts.take(CountChanges(CountMark(1, 0), {("b", "active"): 1}, is_whole=True))
    assert (counts.by_pair, counts.total["available"]) == ({("b", "active"): 1}, 0)
    assert set(counts.changed_since(begin + 1)) == {"a", "b", "t.c"}


async def test_a_look_reads_from_where_the_last_one_ended() -> None:
    asked: list[CountMark | None] = []

    class Store:
        def count_changes(self, since: CountMark | None) -> CountChanges:
            asked.append(since)
            return CountChanges(CountMark(1, len(asked)), {("q", "available"): len(asked)}, since is None)

    async def read(call: object) -> CountChanges:
        found: CountChanges = call(Store())  # type: ignore[operator]
        return found

    followed = FollowedCounts(read)
    assert (await followed.now()).by_pair == {("q", "available"): 1}
    assert (await followed.now()).by_pair == {("q", "available"): 2}
    assert asked == [None, CountMark(1, 1)]


@pytest.mark.parametrize("state", ["available", "active"])
def test_a_queue_without_jobs_is_forgotten(state: str) -> None:
    counts = JobCounts({("q", state): 1})
    counts.take(CountChanges(CountMark(0, 1), {("q", state): 0}))
    assert (counts.by_pair, counts.by_queue) == ({}, {})


def test_what_runs_is_listed(store: JobStore) -> None:  # noqa: F811
    pushed(store, 0, "a", "b", "c")
    pushed(store, 1, "d", queue="t.q")
    started = [event("job.started", one, 2, attempt=1, worker_id=f"w{one}") for one in "ab"]
    store.apply([(2, [*started, event("job.started", "d", 3, queue="t.q", attempt=2)])])
    assert [(one.id, one.worker_id, one.attempt) for one in store.running(9)] == [
        ("d", None, 2),
        ("b", "wb", 1),
        ("a", "wa", 1),
    ]
    assert store.running(9)[1].started_at == "2026-01-01T00:00:02.000Z"
    assert [one.id for one in store.running(1)] == ["d"]
    assert [one.queue for one in store.running(9, "t.")] == ["t.q"]


def test_jobs_of_too_many_queues_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_counts, "MOST_QUEUES", 2)
    made, counts = MemoryJobStore(), JobCounts()
    for number in range(9):
        pushed(made, number, f"job{number}", queue=f"q{number}")
    assert made.counts() == {("q0", "available"): 1, ("q1", "available"): 1, (OTHER, "available"): 7}
    counts.take(made.count_changes(counts.mark))
    for number in range(9):
        one = event("job.completed", f"job{number}", 3, queue=f"q{number}", attempt=1)
        made.apply([(9 + number, [one])])
        counts.take(made.count_changes(counts.mark))
        assert counts.by_pair == made.counts()
        assert sum(made.counts().values()) == 9
    assert made.counts() == {("q0", "completed"): 1, ("q1", "completed"): 1, (OTHER, "completed"): 7}
    assert [one.queue for one in made.newest("q5", None, 9)] == ["q5"]
    made.clear()
    pushed(made, 0, "job5", queue="q5")
    assert made.counts() == {("q5", "available"): 1}


async def test_a_database_names_a_bounded_number_of_queues(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_counts, "MOST_QUEUES", 2)
    with SqlJobStore(database) as made:

        async def read(call: Callable[[Countable], CountChanges]) -> CountChanges:
            return call(made)

        followed = FollowedCounts(read)
        assert (await followed.now()).by_pair == {}
        for number in range(9):
            pushed(made, number, f"job{number}", queue=f"q{number}")
            assert len((await followed.now()).by_queue) <= 3
        known = {("q0", "available"): 1, ("q1", "available"): 1}
        assert made.counts() == known | {(OTHER, "available"): 7}
        # It is counted again after a while, and at once if many have changed.
        monkeypatch.setattr(job_counts, "WHOLE_SECONDS", 0)
        assert (await followed.now()).by_pair == made.counts()
        assert (await followed.now()).total["available"] == 9
        monkeypatch.setattr(job_counts, "WHOLE_SECONDS", 60)
        ended = [event("job.completed", f"job{number}", 3, queue=f"q{number}", attempt=1) for number in range(9)]
        made.apply([(9, ended)])
        assert (await followed.now()).by_pair == made.counts()
        assert made.counts()[OTHER, "completed"] == 7
        assert made.count("q5", "completed") == 1


def test_queues_that_are_empty_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_counts, "MOST_QUEUES", 2)
    counts = JobCounts()
    for number in range(50):
        for count in (1, 0):
            counts.take(CountChanges(CountMark(0, 2 * number + 1 - count), {(f"q{number}", "available"): count}))
    assert len(list(counts.changed_since(0))) == 4


async def test_counts_of_a_database_are_read_a_page_at_a_time(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a million queues, which events can name, one look kept all others from the database for half a second."""
    monkeypatch.setattr(job_counts, "MOST_QUEUES", 5)
    monkeypatch.setattr(job_counts, "PAGE", 3)
    pages: list[int] = []
    with SqlJobStore(database) as made:
        for number in range(20):
            pushed(made, number, f"job{number}", queue=f"q{number:02}")
        made.apply([(20, [event("job.completed", "job1", 3, queue="q01", attempt=1)])])

        def look(call: Callable[[Countable], CountChanges]) -> CountChanges:
            found = call(made)
            pages.append(len(found.counts))
            return found

        async def read(call: Callable[[Countable], CountChanges]) -> CountChanges:
            await asyncio.sleep(0)
            return look(call)

        followed = FollowedCounts(read)
        known = {(f"q{number:02}", "completed" if number == 1 else "available"): 1 for number in range(5)}
        assert (await followed.now()).by_pair == made.counts() == known | {(OTHER, "available"): 15}
        assert max(pages) <= 3
        assert len(pages) == 8
        # Two who ask at a time do not both count everything.
        pages.clear()
        fresh = FollowedCounts(read)
        await asyncio.gather(fresh.now(), fresh.now())
        assert len(pages) == 9
        # What changes between two pages is not lost: the mark is that of the first.
        third = FollowedCounts(read)
        begun = asyncio.ensure_future(third.now())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pushed(made, 21, "new", queue="q00")
        await begun
        assert (await third.now()).by_pair["q00", "available"] == 2
        assert job_counts.all_counts(look) == made.counts()
