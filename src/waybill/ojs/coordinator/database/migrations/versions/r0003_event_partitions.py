"""Counts are kept by the partition of the event stream whose events changed them, so that folds do not wait for others.

Coordinators that share the database are listed in a table of their own.
"""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Change the tables."""
    op.drop_index("waybill_count_changed", "waybill_count")
    op.rename_table("waybill_count", "waybill_count_before")
    op.create_table(
        "waybill_count",
        sql.Column("queue", sql.String, primary_key=True),
        sql.Column("state", sql.String, primary_key=True),
        sql.Column("part", sql.Integer, primary_key=True),
        sql.Column("jobs", sql.BigInteger, nullable=False),
        sql.Column("changed", sql.BigInteger, nullable=False),
    )
    op.create_index("waybill_count_changed", "waybill_count", ["part", "changed"])
    op.execute(
        "INSERT INTO waybill_count (queue, state, part, jobs, changed)"
        " SELECT queue, state, 0, jobs, changed FROM waybill_count_before"
    )
    op.drop_table("waybill_count_before")
    op.create_table(
        "waybill_coordinator",
        sql.Column("id", sql.String, primary_key=True),
        sql.Column("leads", sql.Boolean, nullable=False),
        sql.Column("seen_at", sql.Double, nullable=False),
    )
