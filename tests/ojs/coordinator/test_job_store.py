"""The state of jobs in memory and in both databases: the same folds, shared by coordinators, made again on demand."""

import asyncio
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy
from prometheus_client import CollectorRegistry, generate_latest

from tests.client.breaking import until
from tests.conformance.requirement import requirement
from tests.ojs.control.test_control import state_of
from tests.ojs.databases import make_database
from waybill.ojs import Coordinator, Jobs, Worker
from waybill.ojs.coordinator.job_store import HeldAttempt, JobFilter, JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.open_store import IN_MEMORY, open_job_store
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.observe.metrics import CoordinatorMetrics, WorkerMetrics
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import DeliveredMessage, ReceivedEvent
from waybill.ojs.spec.identifiers import new_id


def event(kind: str, job_id: str, second: int, **data: object) -> ReceivedEvent:
    time = f"2026-01-01T00:00:{second:02}.000Z"
    return ReceivedEvent(f"evt_{new_id()}", kind, "/test", time, job_id, {"job_type": "a.b", "queue": "q", **data})


ERROR = {"code": "HANDLER_ERROR", "message": "no \u0000 way"}
LIFE = [
    event("job.started", "x", 2, worker_id="w", attempt=1),
    event("job.enqueued", "x", 1),
    event("job.failed", "x", 3, attempt=1, error=ERROR),
    event("job.retrying", "x", 3, attempt=1, max_attempts=3, next_retry_at="2026-01-01T00:00:09Z"),
    event("job.started", "x", 4, worker_id="w", attempt=2),
    event("job.progress", "x", 5, attempt=2, progress_percent=50, checkpoint={"state": [1], "sequence": 1}),
    event("job.completed", "x", 6, attempt=2, result={"answer": 42}),
    event("job.cancelled", "x", 7),
]


@pytest.fixture(params=["memory", "memory without room", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    """An empty store of each kind."""
    if request.param == "memory without room":
        with MemoryJobStore(room=0) as store:
            yield store
        return
    database = IN_MEMORY
    if request.param == "sqlite":
        database = str(tmp_path / "jobs.sqlite")
    elif request.param == "postgresql":
        database = make_database(request.getfixturevalue("postgresql"))
    with open_job_store(database) as store:
        yield store


def test_unknown_jobs_are_found_with_few_statements(store: JobStore) -> None:
    ids = [f"job-{number}" for number in range(1100)]
    store.apply([(0, [event("job.enqueued", one, 1) for one in ids[::2]])])
    statements: list[object] = []
    if isinstance(store, SqlJobStore):
        sqlalchemy.event.listen(store._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    assert store.missing(ids) == ids[1::2]
    assert store.missing([]) == []
    assert len([one for one in statements if "waybill_job" in str(one)]) <= 3


def test_events_move_a_job_forward_only(store: JobStore) -> None:
    seen: list[JobInfo] = []
    for offset, one in enumerate(LIFE):
        store.apply([(offset, [one])])
        seen += [job] if (job := store.get("x")) else []
    states, job = [one.state for one in seen], seen[-1]
    assert states == ["active", "active", "active", "retryable", "active", "active", "completed", "completed"]
    assert (job.attempt, job.result, job.progress, job.checkpoint, job.error) == (2, {"answer": 42}, 1, None, ERROR)
    assert (job.started_at, job.ended_at) == ("2026-01-01T00:00:04.000Z", "2026-01-01T00:00:06.000Z")
    assert store.next_offset == len(LIFE)
    assert store.counts() == {("q", "completed"): 1}
    store.apply([(3, [event("job.enqueued", "x", 8)])])
    assert store.get("x") == job, "what was folded is not folded again"
    store.apply([(8, [event("job.enqueued", "x", 8)])])
    again = store.get("x")
    assert again == JobInfo("x", "a.b", "q", "available", enqueued_at="2026-01-01T00:00:08.000Z")
    assert store.newest("q", None, 10) == [again]
    store.clear()
    assert (store.get("x"), store.next_offset, store.counts(), store.newest("q", None, 10)) == (None, 0, {}, [])


def test_a_deleted_job_is_unknown(store: JobStore) -> None:
    """Only a job that has ended: another program may have retried it."""
    dead = [event("job.enqueued", "dead", 1), event("job.discarded", "dead", 2, last_error=ERROR)]
    unique = event("job.reserved", "unique", 3, unique_key="k", states=["completed"])
    store.apply([(0, [*LIFE, *dead, unique, event("job.enqueued", "unique", 4, unique_key="k")])])
    store.apply([(1, [event("job.deleted", one, 8) for one in ("dead", "unique", "nobody")])])
    assert (store.get("dead"), store.failures(10), store.get("nobody")) == (None, [], None)
    assert store.counts() == {("q", "completed"): 1, ("q", "available"): 1}
    store.apply([(2, [event("job.completed", "unique", 9, attempt=1)])])
    mark = store.count_changes(None).mark
    other = event("job.reserved", "other", 11, unique_key="k", states=["completed"])
    deleted = [event("job.deleted", one, 10) for one in ("unique", "x")]
    assert store.apply([(3, [*deleted, other, event("job.enqueued", "x", 12)])]) == {other.id: None}
    again = store.get("x")
    assert again is not None
    assert (again.state, again.result, store.get("unique")) == ("available", None, None)
    assert store.counts() == {("q", "available"): 1, ("q", "pending"): 1}
    assert store.count_changes(mark).counts[("q", "completed")] == 0
    assert [one.id for one in store.newest("q", None, 10)] == ["x", "other"]


def test_a_dead_letter_that_is_retried_keeps_its_failures(store: JobStore) -> None:
    """ojs-dead-letter section 6.1. What is pushed again after a success begins without any."""
    failed = [event("job.enqueued", "x", 1), event("job.failed", "x", 2, attempt=1, error=ERROR)]
    again = [event("job.enqueued", "x", 4), event("job.failed", "x", 5, attempt=1, error={"message": "still"})]
    dead = event("job.discarded", "x", 3, total_attempts=1, last_error=ERROR)
    store.apply([(0, [*failed, *failed, dead])])
    store.apply([(1, [*again, *again])])
    found = store.detail("x")
    assert found is not None
    assert [(one["attempt"], one["message"]) for one in found.errors or []] == [(1, ERROR["message"]), (1, "still")]
    store.apply([(2, [event("job.completed", "x", 6, attempt=2), event("job.enqueued", "x", 7)])])
    found = store.detail("x")
    assert found is not None
    assert found.errors is None


def test_a_dead_letter_keeps_its_failures_whichever_event_of_its_retry_arrives_first(store: JobStore) -> None:
    def run(second: int, error: dict[str, str]) -> list[ReceivedEvent]:
        return [
            event("job.started", "x", second, attempt=1),
            event("job.failed", "x", second + 1, attempt=1, error=error),
            event("job.discarded", "x", second + 2, total_attempts=1, last_error=error),
        ]

    store.apply([(0, [event("job.enqueued", "x", 1), *run(2, ERROR)])])
    store.apply([(1, [*run(6, {"message": "still"}), event("job.enqueued", "x", 5)])])
    found = store.detail("x")
    assert found is not None
    assert [(one["attempt"], one["message"]) for one in found.errors or []] == [(1, ERROR["message"]), (1, "still")]


def test_a_retried_dead_letter_is_ordered_by_its_run_and_not_by_clocks(store: JobStore) -> None:
    """The clock of the server that retries is behind that of the worker, or they show the same millisecond."""

    def dead(job_id: str, second: int, **run: int) -> list[ReceivedEvent]:
        return [
            event("job.started", job_id, second, attempt=1, **run),
            event("job.failed", job_id, second, attempt=1, error=ERROR),
            event("job.discarded", job_id, second, total_attempts=1, last_error=ERROR, **run),
        ]

    def states() -> list[str]:
        return [found.state for job_id in ("x", "y", "z") if (found := store.get(job_id)) is not None]

    ids = ("x", "y", "z")
    store.apply([(0, [one for job_id in ids for one in (event("job.enqueued", job_id, 30), *dead(job_id, 30))])])
    again = {job_id: event("job.enqueued", job_id, 10, run=1) for job_id in ids}
    begun = event("job.started", "x", 11, attempt=1, run=1)
    store.apply([(1, [begun, event("job.completed", "x", 12, attempt=1), again["x"]])])
    store.apply([(2, [again["y"], again["z"], *dead("z", 30, run=1), again["z"]])])
    assert states() == ["completed", "available", "discarded"]
    late = [event("job.started", job_id, 50, attempt=1, run=0) for job_id in ids]
    store.apply([(3, [*late, *again.values(), event("job.enqueued", "z", 10, run=2)])])
    assert states() == ["completed", "available", "available"]
    found = store.detail("z")
    assert found is not None
    assert [(one["attempt"], one.get("run")) for one in found.errors or []] == [(1, None), (1, 1)]


def test_a_postponed_attempt_that_has_begun_again_is_active_whatever_clocks_show(store: JobStore) -> None:
    """Its message is back in the queue before the event: another worker may be faster."""
    begun, again = (event("job.started", "x", second, attempt=1) for second in (30, 10))
    late = event("job.scheduled", "x", 31, scheduled_at="2026-01-01T00:00:31Z", undoes=begun.time)
    store.apply([(0, [event("job.enqueued", "x", 1), begun, again, late])])
    found = store.get("x")
    assert found is not None
    assert (found.state, found.started_at) == ("active", again.time)
    undone = event("job.scheduled", "x", 2, scheduled_at="2026-01-01T00:00:09Z", undoes=again.time)
    unbegun = event("job.scheduled", "y", 2, scheduled_at="2026-01-01T00:00:09Z", undoes="")
    store.apply([(1, [undone, event("job.enqueued", "y", 5), unbegun])])
    assert [found.state for job_id in "xy" if (found := store.get(job_id)) is not None] == ["scheduled"] * 2


def test_a_first_push_whose_event_is_late_begins_nothing(store: JobStore) -> None:
    """Its worker's clock is behind."""
    worked = [event("job.started", "x", 1, attempt=1), event("job.completed", "x", 2, attempt=1)]
    store.apply([(0, [*worked, event("job.enqueued", "x", 9)])])
    found = store.get("x")
    assert found is not None
    assert (found.state, found.enqueued_at) == ("completed", "2026-01-01T00:00:09.000Z")


def test_a_late_result_counts_only_if_no_attempt_can_follow(store: JobStore) -> None:
    replaced = [
        event("job.started", "x", 1, attempt=1),
        event("job.retrying", "x", 3, attempt=1, max_attempts=3, next_retry_at="2026-01-01T00:00:09Z"),
    ]
    store.apply([(0, replaced), (1, [event("job.completed", "x", 2, attempt=1, result=1)])])
    waiting = store.get("x")
    assert waiting is not None
    assert (waiting.state, waiting.result) == ("retryable", None)
    # The worker frees the place of a unique job when the broker has this event: then the next attempt is dropped.
    store.apply([(2, [event("job.completed", "x", 2, attempt=1, result=1, no_more_attempts=True)])])
    ended = store.get("x")
    assert ended is not None
    assert (ended.state, ended.result, ended.next_retry_at) == ("completed", 1, None)


def test_a_database_remembers(database: str) -> None:
    with open_job_store(database) as store:
        store.apply([(offset, [one]) for offset, one in enumerate(LIFE)])
        job = store.get("x")
    with open_job_store(database) as store:
        assert job is not None
        assert (store.get("x"), store.next_offset) == (job, len(LIFE))


def test_a_batch_and_one_by_one_come_to_the_same(store: JobStore) -> None:
    life = [
        event(kind, f"job{number}", 1 + phase, attempt=1, worker_id="w")
        for phase, kind in enumerate(("job.enqueued", "job.started", "job.completed"))
        for number in range(700)
    ]
    store.apply([(0, life)])
    assert store.counts() == {("q", "completed"): 700}
    assert len(store.newest("q", "completed", 1000)) == 700
    assert store.newest("q", "active", 10) == []
    together = store.newest("q", None, 1000)
    store.clear()
    for offset, one in enumerate(life):
        store.apply([(offset, [one])])
    assert store.newest("q", None, 1000) == together


def test_the_newest_jobs_of_all_queues(store: JobStore) -> None:
    events = [event("job.enqueued", f"job{number}", 9 - number, queue=f"q{number % 2}") for number in range(4)]
    store.apply([(0, [*events, event("job.completed", "job1", 10, queue="q1", attempt=1)])])
    assert [job.id for job in store.newest(None, None, 3)] == ["job3", "job2", "job1"]
    assert [job.id for job in store.newest(None, "available", 9)] == ["job3", "job2", "job0"]
    assert store.newest(None, None, 9, {"nobody"}) == []


def test_what_has_ended_long_ago_is_forgotten_in_memory_but_counted() -> None:
    store = MemoryJobStore(ended_jobs=100)
    reserved = event("job.reserved", "unique", 0, unique_key="k", states=["completed"])
    store.apply([(0, [reserved, event("job.completed", "unique", 1, attempt=1), event("job.enqueued", "waits", 1)])])
    for number in range(1000):
        life = [
            event("job.enqueued", f"job{number}", 1, unique_key=f"own{number}"),
            # Every other one is known by its end only.
            event("job.completed", f"job{number}", 2, attempt=1),
        ][number % 2 :]
        store.apply([(number + 1, life)])
    known = store.newest("q", None, 2000)
    assert 102 <= len(known) <= 112
    assert {job.id for job in known} >= {"unique", "waits", *(f"job{number}" for number in range(900, 1000))}
    assert store.get("job0") is None
    assert store.counts() == {("q", "completed"): 1001, ("q", "available"): 1}
    again = event("job.reserved", "again", 3, unique_key="k", states=["completed"])
    verdicts = store.apply([(1001, [again, event("job.enqueued", "job0", 4, unique_key="own0")])])
    assert verdicts[again.id] == store.get("unique")
    found = store.get("job0")
    assert found is not None
    assert found.state == "available"


def test_the_newest_are_those_that_were_enqueued_last(store: JobStore) -> None:
    seconds = {"b": 3, "a": 5, "d": 1, "c": 3}
    # Of two jobs no more than a start is known yet.
    started = [event("job.started", name, 9, worker_id="w", attempt=1) for name in ("c", "e", "f")]
    store.apply([(0, [*started, event("job.enqueued", "elsewhere", 7, queue="other")])])
    store.apply([(1, [event("job.enqueued", name, second) for name, second in seconds.items()])])
    assert [job.id for job in store.newest("q", None, 10)] == ["a", "c", "b", "d", "f", "e"]
    assert [job.id for job in store.newest("q", None, 2)] == ["a", "c"]
    assert [job.id for job in store.newest("q", "active", 2)] == ["c", "f"]
    assert store.counts() == {("q", "active"): 3, ("q", "available"): 3, ("other", "available"): 1}
    store.apply([(2, [event("job.completed", "c", 10, attempt=1), event("job.enqueued", "c", 11)])])
    assert [job.id for job in store.newest("q", "available", 10)] == ["c", "a", "b", "d"]


def test_an_attempt_is_held_from_its_first_heartbeat_to_its_end(store: JobStore) -> None:
    until = "2026-01-01T00:00:30.000Z"
    message = {"properties": b64encode(b"properties").decode(), "body": b64encode(b"body").decode()}
    store.apply([(0, [event("job.started", name, 1, worker_id="w", attempt=1) for name in ("x", "y")])])
    assert store.held() == []
    beat = event("job.heartbeat", "x", 2, attempt=1, visible_until=until, visibility_ms=9000, message=message)
    store.apply([(1, [beat])])
    assert store.held() == [HeldAttempt("x", "q", 1, until, 9000)]
    assert store.kept_message("x", 1) == DeliveredMessage(properties=b"properties", body=b"body")
    assert store.kept_message("x", 2) is None
    assert store.kept_message("y", 1) is None
    store.apply([(2, [event("job.completed", "x", 3, attempt=1)])])
    assert (store.held(), store.kept_message("x", 1)) == ([], None)


def test_a_place_is_taken_until_its_job_has_left_it(store: JobStore) -> None:
    wish: dict[str, object] = {"unique_key": "k", "states": ["pending", "available"]}
    wish["reserved_until"] = "2026-01-01T00:01:00.000Z"
    verdicts = store.apply([(0, [event("job.reserved", name, 1, **wish) for name in ("first", "second")])])
    assert [found and found.id for found in verdicts.values()] == [None, "first"]
    store.apply([(1, [event("job.enqueued", "first", 2, unique_key="k")])])
    third = event("job.reserved", "third", 3, **wish)
    found = store.apply([(2, [third])])[third.id]
    assert found is not None
    assert (found.id, found.state) == ("first", "available")
    store.apply([(3, [event("job.completed", "first", 4, attempt=1)])])
    fourth = event("job.reserved", "fourth", 5, **wish)
    assert store.apply([(4, [fourth])]) == {fourth.id: None}
    store.apply([(5, [event("job.released", "fourth", 6)])])
    fifth = event("job.reserved", "fifth", 7, **wish)
    assert store.apply([(6, [fifth])]) == {fifth.id: None}


def test_two_that_share_a_database_do_not_undo_each_other(database: str) -> None:
    messages = [(0, [event("job.enqueued", "x", 1)]), (1, [event("job.started", "x", 2, attempt=1)])]
    with open_job_store(database) as ahead, open_job_store(database) as behind:
        ahead.apply(messages)
        behind.apply(messages[:1])
        job = behind.get("x")
        assert job is not None
        assert (job.state, behind.next_offset) == ("active", 2)
        behind.apply([messages[1], (2, [event("job.completed", "x", 3, attempt=1)])])
        assert ahead.next_offset == 3


def test_two_that_share_a_database_decide_alike_on_reservations(database: str) -> None:
    wish: dict[str, object] = {"unique_key": "k", "states": ["pending"], "reserved_until": "2026-01-01T00:01:00.000Z"}
    messages = [(0, [event("job.reserved", "first", 1, **wish)]), (1, [event("job.reserved", "second", 2, **wish)])]
    with open_job_store(database) as ahead, open_job_store(database) as behind:
        verdicts = ahead.apply(messages)
        assert [found and found.id for found in verdicts.values()] == [None, "first"]
        assert behind.apply(messages) == verdicts
        # The first was never enqueued, and its time is over.
        late = event("job.reserved", "third", 30, **wish, period="PT10S")
        assert ahead.apply([(2, [late])]) == {late.id: None}


async def test_a_coordinator_answers_from_it_and_makes_it_again(
    broker_uri: str, queue_name: str, database: str
) -> None:
    async with Jobs(broker_uri) as jobs:
        job = await jobs.push("state.wait", queue=queue_name)
        async with Coordinator(jobs, queues=[queue_name], database=database):
            found = await state_of(jobs, job.id, queue_name, "available")
        with open_job_store(database) as store:
            assert store.get(job.id) == found
            offset = store.next_offset
            # Something has gone wrong with the view; the stream is the truth.
            store.apply([(offset, [event("job.discarded", job.id, 1)])])
        await jobs.push("state.other", queue=queue_name)
        async with Coordinator(jobs, queues=[queue_name], database=database):
            assert (await state_of(jobs, job.id, queue_name, "discarded")) != found
        async with Coordinator(jobs, queues=[queue_name], database=database, rebuild=True):
            assert (await state_of(jobs, job.id, queue_name, "available")) == found


@requirement("OJSW-027")
async def test_rates_and_depth_are_metrics(broker_uri: str, queue_name: str) -> None:
    registry = CollectorRegistry()
    async with Jobs(broker_uri) as jobs, Coordinator(jobs, queues=[queue_name]) as coordinator:
        registry.register(CoordinatorMetrics(coordinator))
        await jobs.push("state.depth", queue=queue_name, delay=timedelta(hours=1))
        job = await jobs.push("state.depth", queue=queue_name)
        await state_of(jobs, job.id, queue_name, "available")
        jobs.handler("state.done", queue=queue_name)(asyncio.Event().set)
        done = await jobs.push("state.done", queue=queue_name)
        worker = Worker(jobs, queues=[queue_name])
        registry.register(WorkerMetrics(worker))
        async with worker:
            # There is no handler: the job goes to the dead letter queue.
            await state_of(jobs, job.id, queue_name, "discarded")
            await state_of(jobs, done.id, queue_name, "completed")
            await until(lambda: worker.counters.nacked[queue_name] == worker.counters.acked[queue_name] == 1)
            text = (await asyncio.to_thread(generate_latest, registry)).decode()
    for state in ("scheduled", "discarded"):
        assert f'ojs_queue_depth{{queue="{queue_name}",state="{state}"}} 1.0' in text
    for name, count in (("consumed", 2), ("nacked", 1), ("acked", 1)):
        assert f'ojs_amqp_messages_{name}_total{{queue="{queue_name}"}} {count}.0' in text
    published = re.search(r'ojs_amqp_messages_published_total{queue="events"} (\d+)', text)
    assert published is not None
    assert int(published[1]) >= 2


async def test_the_state_waits_for_a_database_that_is_away(
    broker_uri: str, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.stream_fold.RETRY_SECONDS", 0.01)
    failures = breaking(monkeypatch, 3)
    async with Jobs(broker_uri) as jobs:
        job = await jobs.push("state.away", queue=queue_name)
        async with Coordinator(jobs, queues=[queue_name], database=str(tmp_path / "jobs.sqlite")):
            await until(lambda: failures() == 3)
            await state_of(jobs, job.id, queue_name, "available")


def breaking(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """Let the store's first writes fail; returns how many did."""
    failed = 0
    apply = SqlJobStore.apply

    def fail_first(store: SqlJobStore, messages: object, **how: object) -> dict[str, JobInfo | None]:
        nonlocal failed
        if failed < times:
            failed += 1
            raise ConnectionError("the database is away")
        return apply(store, messages, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(SqlJobStore, "apply", fail_first)
    return lambda: failed


def test_every_store_can_be_asked_for_any_text(store: JobStore) -> None:
    """PostgreSQL refuses statements with this one."""
    store.apply([(0, LIFE)])
    odd = "a\0b"
    assert (store.get(odd), store.many([odd, "x"]), store.missing([odd])) == (None, [store.get("x")], [odd])
    assert store.newest(odd, odd, 5, [odd]) == []
    one, states = JobFilter(), frozenset([odd])
    names = [one._replace(queue=odd), one._replace(type=odd), one._replace(prefix=odd), one._replace(states=states)]
    others = [one._replace(id_prefix=odd), one._replace(fingerprint=odd), one._replace(text=odd)]
    for wanted in [*names, *others, JobFilter(odd, states, odd)]:
        assert store.page(wanted, "", 5)[0] == []
        assert store.search(wanted, "", 5, 5)[0] == []
    store.page(JobFilter(since=odd, until=odd), odd, 5)
    assert (store.running(5, odd), store.failures(5, odd), store.row(odd, JobInfo)) == ([], [], None)
    store.times(odd, 5)
    store.failure_hours([odd])
    assert (store.marked(odd, JobInfo, 5), store.listed(odd, JobInfo, 5, odd)) == ([], [])


def test_pages_are_in_the_order_of_ids(store: JobStore) -> None:
    ids = [f"019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0{number}" for number in range(6)]
    events = [
        event("job.enqueued", job_id, index, job_type="a" if index % 2 else "b", queue="q1" if index < 4 else "q2")
        for index, job_id in enumerate(ids)
    ]
    store.apply([(0, [*events, event("job.started", ids[1], 9, job_type="a", queue="q1", attempt=1)])])

    def found(wanted: JobFilter, before: str = "", limit: int = 10) -> list[int]:
        return [ids.index(detail.info.id) for detail in store.page(wanted, before, limit)[0]]

    assert found(JobFilter()) == [5, 4, 3, 2, 1, 0]
    assert found(JobFilter(), ids[4], 2) == [3, 2]
    assert found(JobFilter(queue="q1")) == [3, 2, 1, 0]
    assert found(JobFilter(type="a")) == [5, 3, 1]
    assert found(JobFilter(states=frozenset({"active"}))) == [1]
    assert found(JobFilter("q1", frozenset({"available"}), "a")) == [3]
    assert found(JobFilter("nobody")) == []
