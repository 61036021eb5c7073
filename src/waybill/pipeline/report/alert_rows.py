"""The alerts of a report: open ones, and the latest closed ones."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from waybill.pipeline.alert_state import AlertsError, read_alerts, table_of
from waybill.pipeline.tables import Tables, TableStore

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class AlertRow:
    """An alert of `waybill pipeline alerts`, with times in UTC. It is open if it has no `closed_at`."""

    rule: str
    queue: str
    job_type: str
    opened_at: datetime
    closed_at: datetime | None
    text: str


def recent_alerts(store: TableStore, most: int) -> list[AlertRow]:
    """At most `most` alerts, open ones first, newest first. Tables in a bucket have none."""
    if not isinstance(store, Tables):
        return []
    try:
        found = read_alerts(table_of(store.directory))
    except AlertsError as problem:
        # The rest of the report does not depend on alerts.
        _LOG.warning("cannot read the alerts, the report omits them: %s", problem)
        return []
    rows = [
        AlertRow(
            one.rule, one.queue, one.job_type, _plain(one.opened_at), one.closed_at and _plain(one.closed_at), one.text
        )
        for one in sorted(found, key=lambda one: (one.closed_at is None, one.opened_at), reverse=True)
    ]
    return rows[:most]


def lasted(row: AlertRow) -> str:
    """When the alert was open, to the minute."""
    opened = f"{row.opened_at:%d %b %H:%M}"
    return f"since {opened}" if row.closed_at is None else f"{opened} to {row.closed_at:%d %b %H:%M}"


def _plain(time: datetime) -> datetime:
    return time.astimezone(UTC).replace(tzinfo=None)
