"""A partition of the jobs is created while another coordinator folds jobs that move there."""

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import sqlalchemy as sql
from sqlalchemy.engine import Connection

from tests.ojs.coordinator.test_event_partitions import ids_in
from tests.ojs.coordinator.test_job_store import event
from tests.ojs.databases import make_database
from waybill.ojs.coordinator.database import partitions
from waybill.ojs.coordinator.sql_job_store import SqlJobStore

WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
SECONDS = 30.0


def test_who_folds_meanwhile_finds_the_jobs_that_move(postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = make_database(postgresql)
    observer = sql.create_engine(database, poolclass=sql.pool.NullPool, isolation_level="AUTOCOMMIT")
    made = Event()
    make = partitions._make

    def make_slowly(connection: Connection, one: partitions.Partition) -> None:
        make(connection, one)
        made.set()
        deadline = time.monotonic() + SECONDS
        with observer.connect() as looking:
            while looking.scalar(sql.text(WAITING)) == 0 and time.monotonic() < deadline:
                pass

    monkeypatch.setattr(partitions, "_make", make_slowly)
    [in_first], in_second = ids_in(0, 1), ids_in(1, 5)
    with (
        SqlJobStore(database, event_partitions=2) as one,
        SqlJobStore(database, event_partitions=2) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        two.apply([(0, [event("job.enqueued", job_id, 1) for job_id in in_second])], partition=1)
        creating = pool.submit(one.apply, [(0, [event("job.enqueued", in_first, 1)])])
        assert made.wait(SECONDS)
        two.apply([(1, [event("job.started", job_id, 2, attempt=1) for job_id in in_second])], partition=1)
        creating.result(SECONDS)
        assert {job.enqueued_at for job in two.many(in_second)} == {"2026-01-01T00:00:01.000Z"}
        assert {key: count for key, count in two.counts().items() if count} == {
            ("q", "active"): 5,
            ("q", "available"): 1,
        }
