"""The tables of the job state, as the newest migration leaves them: see `migrations`."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sql

from waybill.ojs.coordinator import sql_search
from waybill.ojs.coordinator.sql_counts import CountTable
from waybill.ojs.coordinator.sql_failures import FailureTable
from waybill.ojs.coordinator.sql_search import TimesOfQueues

STREAM: Final = "events"
SORTED: Final = sql.String(collation="C").with_variant(sql.String(), "sqlite")
"""A text that is compared by code point, as in SQLite and Python, in every locale of the database."""
_IS_UNIQUE: Final = sql.column("unique_key").is_not(None)
_IS_HELD: Final = sql.column("visibility_ms").is_not(None)
_HAS_ENDED: Final = sql.column("ended_at").is_not(None)

METADATA: Final = sql.MetaData()
# Partitioned in PostgreSQL: see `partitions`.
JOBS: Final = sql.Table(
    "waybill_job",
    METADATA,
    sql.Column("id", SORTED, primary_key=True),
    sql.Column("type", SORTED, nullable=False),
    sql.Column("queue", SORTED, nullable=False),
    sql.Column("state", SORTED, nullable=False),
    sql.Column("attempt", sql.Integer, nullable=False),
    sql.Column("rank", sql.BigInteger, nullable=False),
    sql.Column("enqueued_at", SORTED),
    sql.Column("scheduled_at", sql.String),
    sql.Column("started_at", sql.String),
    sql.Column("ended_at", SORTED),
    *(sql.Column(name, sql.String) for name in ("next_retry_at", "visible_until", "worker_id")),
    *(sql.Column(name, sql.String) for name in ("error", "result", "progress_message", "checkpoint")),
    sql.Column("unique_key", SORTED),
    *(sql.Column(name, sql.String) for name in ("created_at", "owner", "message", "result_expires_at")),
    *(sql.Column(name, sql.String) for name in ("envelope", "errors", "progress_data", "progress_at")),
    sql.Column("progress", sql.Float),
    sql.Column("visibility_ms", sql.Integer),
    # Must be last: it is not a field of a job.
    sql.Column("fingerprint", SORTED),
    sql.Index("waybill_job_queue", "queue", "enqueued_at"),
    # For lists: a page of a queue's jobs in a state, or of a type, newest first.
    sql.Index("waybill_job_state", "queue", "state", "id"),
    sql.Index("waybill_job_type", "type", "id"),
    sql.Index("waybill_job_unique", "unique_key", sqlite_where=_IS_UNIQUE, postgresql_where=_IS_UNIQUE),
    sql.Index("waybill_job_ended", "ended_at", sqlite_where=_HAS_ENDED, postgresql_where=_HAS_ENDED),
    *sql_search.indices(),
    sql.Index("waybill_job_held", "visibility_ms", sqlite_where=_IS_HELD, postgresql_where=_IS_HELD),
)
POSITIONS: Final = sql.Table(
    "waybill_position",
    METADATA,
    sql.Column("stream", sql.String, primary_key=True),
    sql.Column("next_offset", sql.BigInteger, nullable=False),
    sql.Column("epoch", sql.BigInteger, nullable=False),
    sql.Column("mark_offset", sql.BigInteger),
    sql.Column("mark_digest", sql.BigInteger),
    sql.Column("count_number", sql.BigInteger, nullable=False),
)
COUNTS: Final = CountTable(METADATA)
FAILURES: Final = FailureTable(METADATA)
TIMES: Final = TimesOfQueues(JOBS)
ROWS: Final = sql.Table(
    "waybill_row",
    METADATA,
    sql.Column("key", SORTED, primary_key=True),
    sql.Column("mark", sql.String),
    sql.Column("value", sql.String, nullable=False),
    sql.Index("waybill_row_mark", "mark", "key"),
)
COORDINATORS: Final = sql.Table(
    "waybill_coordinator",
    METADATA,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("leads", sql.Boolean, nullable=False),
    sql.Column("seen_at", sql.Double, nullable=False),
)
