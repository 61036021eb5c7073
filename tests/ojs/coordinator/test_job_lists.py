"""Counts and lists of a database are found without a look at all of its jobs, and stay right whatever happens."""

from __future__ import annotations

import functools
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sql

from waybill.ojs.coordinator.job_store import JobFilter, JobStore
from waybill.ojs.coordinator.memory_job_store import MemoryJobStore
from waybill.ojs.coordinator.sql_job_store import SqlJobStore
from waybill.ojs.spec.events import ReceivedEvent

KINDS = ("job.enqueued", "job.started", "job.completed", "job.failed", "job.cancelled", "job.retrying")


def event(kind: str, job_id: str, **data: object) -> ReceivedEvent:
    time = "2026-01-01T00:00:01.000Z"
    return ReceivedEvent(f"evt_{kind}_{job_id}", kind, "/test", time, job_id, {"job_type": "a.b", "queue": "q", **data})


def id_of(number: int) -> str:
    return f"019461a8-1a2b-7c3d-8e4f-{number:012x}"


def fill(store: JobStore, seed: int = 1, count: int = 25) -> None:
    chance = random.Random(seed)
    for offset in range(count):
        events = []
        for _ in range(chance.randint(10, 20)):
            number = chance.randrange(60)
            data = {"queue": f"q{number % 3}", "job_type": f"t{number % 2}", "attempt": 1}
            events.append(event(chance.choice(KINDS), id_of(number), **data))
        store.apply([(offset, events)])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.sqlite")


@pytest.fixture
def store(path: str) -> Iterator[SqlJobStore]:
    with SqlJobStore(path) as store:
        yield store


def recount(path: str) -> dict[tuple[str, str], int]:
    with sqlite3.connect(path) as connection:
        return dict(Counter(connection.execute("select queue, state from waybill_job").fetchall()))


def test_counts_are_those_of_the_jobs(store: SqlJobStore, path: str) -> None:
    fill(store)
    assert store.counts() == recount(path)
    store.clear()
    assert store.counts() == {}


def test_counts_are_right_if_a_fold_fails(store: SqlJobStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    before = store.counts()
    monkeypatch.setattr(store._upsert, "_statement", sql.text("no statement"))
    with pytest.raises(sql.exc.SQLAlchemyError):
        store.apply([(1000, [event("job.enqueued", "new")])])
    assert store.counts() == before == recount(path)


FILTERS = [
    JobFilter(queue, None if states is None else frozenset(states), kind)
    for queue in (None, "q1", "none")
    for states in (None, ["active"], ["completed", "available"])
    for kind in (None, "t1")
]


@pytest.mark.parametrize("few", [0, 1000])
def test_pages_are_those_of_the_store_in_memory(store: SqlJobStore, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.sql_job_reads._FEW", few)
    monkeypatch.setattr("waybill.ojs.coordinator.sql_job_reads._SPANS", few)
    memory = MemoryJobStore()
    fill(store)
    fill(memory)
    for wanted in FILTERS:
        before, is_over = "", False
        while not is_over:
            found = memory.page(wanted, before, 7)
            assert store.page(wanted, before, 7) == found
            before = found[1]
            is_over = not before


def plans(store: SqlJobStore, path: str, ask: object) -> str:
    """Return how SQLite does what a call asks for."""
    told: list[str] = []
    with sqlite3.connect(path) as other:
        engine = store._engine

        def note(*found: object) -> None:
            statement, values = found[2], found[3]
            if str(statement).lower().startswith("select"):
                told.extend(row[3] for row in other.execute(f"explain query plan {statement}", values))  # type: ignore[arg-type]

        sql.event.listen(engine, "before_cursor_execute", note)
        try:
            ask()  # type: ignore[operator]
        finally:
            sql.event.remove(engine, "before_cursor_execute", note)
    return "\n".join(told)


def test_no_list_looks_at_all_jobs(store: SqlJobStore, path: str) -> None:
    fill(store)
    for wanted in FILTERS:
        for before in ("", id_of(30)):
            plan = plans(store, path, functools.partial(store.page, wanted, before, 10))
            assert "TEMP B-TREE" not in plan
            assert wanted == JobFilter() or "SCAN waybill_job" not in plan


def test_nothing_else_looks_at_all_jobs(store: SqlJobStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    for ask in (
        store.counts,
        store.held,
        lambda: store.newest("q1", None, 10),
        lambda: store.newest("q1", "active", 10),
        lambda: store.get(id_of(1)),
        lambda: store.apply([(5000, [event("job.reserved", "u", unique_key="k")])]),
        lambda: store._marked("m", 10, ""),
        lambda: store._listed("cron/", 10, ""),
    ):
        assert "SCAN waybill_job" not in plans(store, path, ask)
    assert "waybill_job_state" in plans(store, path, lambda: store.newest("q1", "active", 10))
    monkeypatch.setattr("waybill.ojs.coordinator.sql_job_reads._FEW", 0)
    many = plans(store, path, lambda: store.newest("q1", "active", 10))
    assert "waybill_job_queue" in many, "of many, the newest are met in the order of their times"
