"""The tables as they were before migrations: schema version 15."""

import sqlalchemy as sql
from alembic import op

revision = "0001"
down_revision = None

_NOT_NULL_TEXTS = ("type", "queue", "state")
_TEXTS = (
    *("enqueued_at", "scheduled_at", "started_at", "ended_at", "next_retry_at", "visible_until", "worker_id"),
    *("error", "result", "progress_message", "checkpoint", "unique_key", "created_at"),
    *("owner", "message", "result_expires_at", "envelope", "errors", "progress_data", "progress_at"),
)
_FAILURE_TEXTS = ("type", "queue", "error_type", "message", "first_at", "last_at", "last_job")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "waybill_job",
        sql.Column("id", sql.String, primary_key=True),
        *(sql.Column(name, sql.String, nullable=False) for name in _NOT_NULL_TEXTS),
        sql.Column("attempt", sql.Integer, nullable=False),
        sql.Column("rank", sql.BigInteger, nullable=False),
        *(sql.Column(name, sql.String) for name in _TEXTS),
        sql.Column("progress", sql.Float),
        sql.Column("visibility_ms", sql.Integer),
        sql.Column("fingerprint", sql.String),
    )
    op.create_index("waybill_job_queue", "waybill_job", ["queue", "enqueued_at"])
    op.create_index("waybill_job_state", "waybill_job", ["queue", "state", "id"])
    op.create_index("waybill_job_type", "waybill_job", ["type", "id"])
    op.create_index("waybill_job_unique_key", "waybill_job", ["unique_key"])
    _partial("waybill_job_open", ["state", "id"], "state != 'completed'")
    _partial("waybill_job_failure", ["fingerprint", "id"], "fingerprint IS NOT NULL")
    _partial("waybill_job_held", ["visibility_ms"], "visibility_ms IS NOT NULL")
    op.create_table(
        "waybill_position",
        sql.Column("stream", sql.String, primary_key=True),
        sql.Column("next_offset", sql.BigInteger, nullable=False),
        sql.Column("version", sql.Integer, nullable=False),
        sql.Column("epoch", sql.Integer, nullable=False),
        sql.Column("mark_offset", sql.BigInteger),
        sql.Column("mark_digest", sql.BigInteger),
        sql.Column("count_number", sql.BigInteger, nullable=False),
    )
    op.create_table(
        "waybill_count",
        sql.Column("queue", sql.String, primary_key=True),
        sql.Column("state", sql.String, primary_key=True),
        sql.Column("jobs", sql.BigInteger, nullable=False),
        sql.Column("changed", sql.BigInteger, nullable=False),
    )
    op.create_index("waybill_count_changed", "waybill_count", ["changed"])
    _make_others()


def _make_others() -> None:
    op.create_table(
        "waybill_failure",
        sql.Column("fingerprint", sql.String, primary_key=True),
        sql.Column("count", sql.BigInteger, nullable=False),
        *(sql.Column(name, sql.String, nullable=False) for name in _FAILURE_TEXTS),
    )
    op.create_index("waybill_failure_last", "waybill_failure", ["last_at"])
    op.create_table(
        "waybill_failure_hour",
        sql.Column("fingerprint", sql.String, primary_key=True),
        sql.Column("hour", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("count", sql.BigInteger, nullable=False),
    )
    key = sql.String(collation="C").with_variant(sql.String(), "sqlite")
    op.create_table(
        "waybill_row",
        sql.Column("key", key, primary_key=True),
        sql.Column("mark", sql.String),
        sql.Column("value", sql.String, nullable=False),
    )
    op.create_index("waybill_row_mark", "waybill_row", ["mark", "key"])


def _partial(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "waybill_job", columns, sqlite_where=sql.text(where), postgresql_where=sql.text(where))
