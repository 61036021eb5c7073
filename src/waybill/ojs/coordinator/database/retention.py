"""Deletes jobs that ended long ago, in steps.

Jobs that have not ended are never deleted, nor are unique jobs that reserved a place, because they may block another
job. Counts do not change, as in memory; failure groups lose deleted jobs.

In PostgreSQL, a partition whose days are over is dropped. Before that, the few jobs that must stay move to the default
partition; if many must stay, the others are deleted one batch at a time. In SQLite and in the default partition, jobs
are deleted in batches too, so that folds continue in between.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import sqlalchemy as sql
from sqlalchemy.engine import Connection

from waybill.ojs.coordinator.database.partitions import LOCK_SECONDS, OTHER, Partition, partitions, time_ms_of
from waybill.ojs.coordinator.database.tables import FAILURES, JOBS
from waybill.ojs.coordinator.job_store import Forgotten
from waybill.ojs.spec.states import TERMINAL, State
from waybill.ojs.spec.timestamps import format_timestamp

DELETED_AT_ONCE: Final = 1000
MOST_MOVED: Final = 10_000

_ENDS: Final = ", ".join(f"'{state.value}'" for state in State if state in TERMINAL)
# Only a reservation sets the time of creation.
_OVER: Final = f"ended_at < :until AND state IN ({_ENDS}) AND (unique_key IS NULL OR created_at IS NULL)"
# The jobs that must stay, each kind by its index. Completed jobs, which are nearly all, are not read.
_STAYING: Final = (
    f"SELECT id FROM {{0}} WHERE state != 'completed' AND (state NOT IN ({_ENDS}) OR ended_at IS NULL)"  # noqa: S608
    " UNION SELECT id FROM {0} WHERE ended_at >= :until"
    " UNION SELECT id FROM {0} WHERE unique_key IS NOT NULL AND created_at IS NOT NULL"
)
_log = logging.getLogger("waybill.ojs.coordinator")


def forget_old(connection: Connection, keep_days: int, now: datetime) -> Forgotten:
    """Run one step. Call it while the position is locked. Raises the database's errors, also if a lock is not free."""
    until = now.astimezone(UTC) - timedelta(days=keep_days)
    text = format_timestamp(until)
    if connection.dialect.name != "postgresql":
        return _delete(connection, JOBS.name, text)
    until_ms = int(until.timestamp() * 1000)
    for one in partitions(connection):
        if _ends_before(one, until_ms):
            staying = f"SELECT id FROM ({_STAYING.format(one.name)}) AS stay LIMIT {MOST_MOVED + 1}"  # noqa: S608 - ours
            ids = [row[0] for row in connection.execute(sql.text(staying), {"until": text})]
            if len(ids) <= MOST_MOVED:
                return _drop(connection, one, ids)
        elif one.lower:
            continue
        # Many must stay, or this partition holds all jobs from before partitions existed.
        found = _delete(connection, one.name, text)
        if found.jobs:
            return Forgotten(found.jobs, is_more=True)
    return _delete(connection, OTHER, text)


def _ends_before(one: Partition, until_ms: int) -> bool:
    try:
        return time_ms_of(one.upper) <= until_ms
    except ValueError:
        # Another process has created it.
        return False


def _drop(connection: Connection, one: Partition, staying: list[str]) -> Forgotten:
    size = connection.execute(
        sql.text("SELECT pg_stat_get_live_tuples(CAST(:name AS text)::regclass)"), {"name": one.name}
    )
    rows = max(0, int(size.scalar() or 0))
    gone = "fingerprint IS NOT NULL AND NOT id = ANY(:ids)"
    failed = f"SELECT fingerprint, count(*) FROM {one.name} WHERE {gone} GROUP BY fingerprint"  # noqa: S608 - ours
    counts = {row[0]: row[1] for row in connection.execute(sql.text(failed), {"ids": staying})}
    # Wait for current readers, but not for long: new readers queue behind this statement.
    connection.execute(sql.text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
    connection.execute(sql.text(f"ALTER TABLE {JOBS.name} DETACH PARTITION {one.name}"))
    columns = ", ".join(column.name for column in JOBS.columns)
    moved = f"INSERT INTO {JOBS.name} ({columns}) SELECT {columns} FROM {one.name} WHERE id = ANY(:ids)"  # noqa: S608
    if staying:
        connection.execute(sql.text(moved), {"ids": staying})
    connection.execute(sql.text(f"DROP TABLE {one.name}"))
    FAILURES.forget(connection, counts)
    text = "dropped partition %s with about %d jobs; moved %d jobs that have not ended, or are kept, to %s"
    _log.info(text, one.name, rows, len(staying), OTHER)
    return Forgotten(max(0, rows - len(staying)), is_more=True)


def _delete(connection: Connection, table: str, until: str) -> Forgotten:
    select = f"SELECT id, fingerprint FROM {table} WHERE {_OVER} LIMIT {DELETED_AT_ONCE}"  # noqa: S608 - ours
    found = [(row[0], row[1]) for row in connection.execute(sql.text(select), {"until": until})]
    if found:
        ids: sql.BindParameter[list[str]] = sql.bindparam("ids", expanding=True)
        delete = sql.text(f"DELETE FROM {table} WHERE id IN :ids").bindparams(ids)  # noqa: S608 - ours
        connection.execute(delete, {"ids": [job_id for job_id, _ in found]})
        counts: Mapping[str, int] = Counter(fingerprint for _, fingerprint in found if fingerprint is not None)
        FAILURES.forget(connection, counts)
    return Forgotten(len(found), is_more=len(found) == DELETED_AT_ONCE)
