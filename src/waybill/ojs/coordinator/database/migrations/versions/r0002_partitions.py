"""Retention finds jobs by their end; in PostgreSQL, jobs are partitioned by id, which begins with the time.

In PostgreSQL, all existing jobs become one partition, up to tomorrow: no row is copied, but the indexes are built
again. The position loses its version, because Alembic tracks it now.
"""

import time

import sqlalchemy as sql
from alembic import context, op

revision = "0002"
down_revision = "0001"

_DAY_MS = 86_400_000
_SORTED = ("id", "type", "queue", "state", "enqueued_at", "ended_at", "unique_key", "fingerprint")
_INDICES = (
    ("waybill_job_queue", "queue, enqueued_at", ""),
    ("waybill_job_state", "queue, state, id", ""),
    ("waybill_job_type", "type, id", ""),
    ("waybill_job_unique", "unique_key", "unique_key IS NOT NULL"),
    ("waybill_job_ended", "ended_at", "ended_at IS NOT NULL"),
    ("waybill_job_open", "state, id", "state != 'completed'"),
    ("waybill_job_failure", "fingerprint, id", "fingerprint IS NOT NULL"),
    ("waybill_job_held", "visibility_ms", "visibility_ms IS NOT NULL"),
)
_OLD_INDICES = ("queue", "state", "type", "unique_key", "open", "failure", "held")


def upgrade() -> None:
    """Change the tables."""
    with op.batch_alter_table("waybill_position") as position:
        position.drop_column("version")
        position.alter_column("epoch", type_=sql.BigInteger, existing_nullable=False)
    if context.get_context().dialect.name == "postgresql":
        _partition()
    else:
        op.drop_index("waybill_job_unique_key", "waybill_job")
        for name, columns, where in _INDICES:
            if name in {"waybill_job_unique", "waybill_job_ended"}:
                op.create_index(name, "waybill_job", [columns], sqlite_where=sql.text(where))


def _partition() -> None:
    """Create a partitioned table; the old table becomes its first partition, unless it is empty."""
    for name in _OLD_INDICES:
        op.execute(f"DROP INDEX waybill_job_{name}")
    collated = ", ".join(f'ALTER COLUMN {name} TYPE varchar COLLATE "C"' for name in _SORTED)
    op.execute(f"ALTER TABLE waybill_job DROP CONSTRAINT waybill_job_pkey, {collated}")
    op.execute("ALTER TABLE waybill_job RENAME TO waybill_job_before")
    op.execute("CREATE TABLE waybill_job (LIKE waybill_job_before, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
    for name, columns, where in _INDICES:
        op.execute(f"CREATE INDEX {name} ON waybill_job ({columns})" + (f" WHERE {where}" if where else ""))
    op.execute("CREATE TABLE waybill_job_other PARTITION OF waybill_job DEFAULT")
    if op.get_bind().execute(sql.text("SELECT FROM waybill_job_before LIMIT 1")).first() is None:
        op.execute("DROP TABLE waybill_job_before")
        return
    tomorrow = (int(time.time() * 1000) // _DAY_MS + 1) * _DAY_MS
    until = f"{tomorrow >> 16:08x}-{tomorrow & 0xFFFF:04x}"
    # Ids that contain no time.
    moved = f"WITH moved AS (DELETE FROM waybill_job_before WHERE id >= '{until}' RETURNING *)"  # noqa: S608 - ours
    op.execute(f"{moved} INSERT INTO waybill_job_other SELECT * FROM moved")  # noqa: S608 - ours
    op.execute(f"ALTER TABLE waybill_job ATTACH PARTITION waybill_job_before FOR VALUES FROM (MINVALUE) TO ('{until}')")
