"""PostgreSQL ends a fold that is in a deadlock with another transaction: it is folded again."""

from concurrent.futures import ThreadPoolExecutor

import sqlalchemy as sql

from tests.ojs.coordinator.test_event_partitions import ids_in, life
from tests.ojs.databases import make_database
from waybill.ojs.coordinator.database.position import stream_of
from waybill.ojs.coordinator.database.tables import POSITIONS
from waybill.ojs.coordinator.sql_job_store import SqlJobStore

WAITING = sql.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


def _lock(connection: sql.Connection, partition: int) -> None:
    connection.execute(sql.select(POSITIONS).where(POSITIONS.c.stream == stream_of(partition)).with_for_update())


def test_a_fold_in_a_deadlock_is_tried_again(postgresql: str) -> None:
    database = make_database(postgresql)
    # PostgreSQL looks for a deadlock once, so long after a transaction began to wait, and ends that transaction.
    patient = sql.make_url(database).update_query_dict({"options": "-c deadlock_timeout=4s"})
    engine = sql.create_engine(sql.make_url(database).update_query_dict({"options": "-c deadlock_timeout=60s"}))
    job_id = ids_in(1, 1)[0]
    with (
        SqlJobStore(patient.render_as_string(hide_password=False), event_partitions=2) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        with engine.begin() as other:
            _lock(other, 1)
            # Locks the position of its own partition, then waits for that of the partition of the job.
            fold = pool.submit(store.apply, [(0, life(job_id))])
            with engine.connect() as observer:
                while not observer.execute(WAITING).scalar_one():
                    observer.rollback()
            _lock(other, 0)
        fold.result(60)
        info = store.get(job_id)
        assert info is not None
        assert info.state == "completed"
        with engine.connect() as connection:
            database_name = sql.func.current_database()
            statistics = sql.table("pg_stat_database", sql.column("deadlocks"), sql.column("datname"))
            found = connection.execute(sql.select(statistics.c.deadlocks).where(statistics.c.datname == database_name))
            assert found.scalar_one() >= 1
    engine.dispose()
