"""The table of alerts, `DIR/alerts/alerts.parquet`: open and closed alerts, and unsent notices.

A change is stored with its notices before they are sent, and again after each was sent. So a crash loses no notice; the
last one may be sent again with the same id.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.ojs.spec.identifiers import new_id
from waybill.pipeline.alert_conditions import Firing
from waybill.pipeline.file_lock import locked

Key: TypeAlias = tuple[str, str, str]
"""A rule, a queue and a job type."""

CLOSED_MAX: Final = 10_000
"""The maximum number of closed alerts, the latest ones."""
_TIME: Final = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    {
        "alert_id": pa.string(),
        "rule": pa.string(),
        "queue": pa.string(),
        "job_type": pa.string(),
        "opened_at": _TIME,
        "closed_at": _TIME,
        "value": pa.float64(),
        "text": pa.string(),
        "opened_notice": pa.string(),
        "closed_notice": pa.string(),
    }
)


class AlertsError(RuntimeError):
    """Alerts cannot be computed or sent; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert of a rule. It is open until `closed_at` is set.

    `opened_notice` and `closed_notice` are the ids of unsent notices.
    """

    alert_id: str
    rule: str
    queue: str
    job_type: str
    opened_at: datetime
    closed_at: datetime | None
    value: float
    text: str
    opened_notice: str | None
    closed_notice: str | None

    @property
    def key(self) -> Key:
        return self.rule, self.queue, self.job_type


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice of an alert that opens or closes. `id` is the same each time it is sent."""

    id: str
    event: Literal["opened", "closed"]
    alert: Alert

    def as_json(self) -> dict[str, object]:
        alert = self.alert
        return {
            "id": self.id,
            "event": self.event,
            "alert_id": alert.alert_id,
            "rule": alert.rule,
            "queue": alert.queue,
            "job_type": alert.job_type,
            "opened_at": alert.opened_at.isoformat(),
            "closed_at": alert.closed_at.isoformat() if alert.closed_at and self.event == "closed" else None,
            "value": alert.value,
            "text": alert.text,
        }


class AlertTable:
    """The alerts of a data directory."""

    def __init__(self, directory: Path) -> None:
        self.path = table_of(directory)
        self.alerts: list[Alert] = []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock and read the table. Raises AlertsError."""
        place = self.path.parent
        with locked(place, AlertsError(f"another `waybill pipeline alerts` is using {place}")):
            self.alerts = read_alerts(self.path)
            yield

    def change(self, firing: Mapping[Key, Firing], now: datetime) -> None:
        """Open an alert for each key that fires and has none open, and close those that no longer fire."""
        changed = []
        for alert in self.alerts:
            if alert.closed_at is None:
                found = firing.get(alert.key)
                changed.append(
                    replace(alert, closed_at=now, closed_notice=new_id())
                    if found is None
                    else replace(alert, value=found.value, text=found.text)
                )
            else:
                changed.append(alert)
        is_open = {alert.key for alert in changed if alert.closed_at is None}
        changed += [
            Alert(new_id(), *key, now, None, found.value, found.text, new_id(), None)
            for key, found in firing.items()
            if key not in is_open
        ]
        self._store(changed)

    def unsent(self) -> list[Notice]:
        """The unsent notices, in order."""
        notices = []
        for alert in self.alerts:
            if alert.opened_notice is not None:
                notices.append(Notice(alert.opened_notice, "opened", alert))
            if alert.closed_notice is not None:
                notices.append(Notice(alert.closed_notice, "closed", alert))
        return notices

    def sent(self, notice: Notice) -> None:
        """Record that a notice was sent."""
        self._store([_without(alert, notice) for alert in self.alerts])

    def _store(self, alerts: list[Alert]) -> None:
        done = [one for one in alerts if one.closed_at and not one.opened_notice and not one.closed_notice]
        dropped = {one.alert_id for one in done[: max(0, len(done) - CLOSED_MAX)]}
        self.alerts = [one for one in alerts if one.alert_id not in dropped]
        rows = pa.Table.from_pylist([asdict(one) for one in self.alerts], schema=SCHEMA)
        written = self.path.with_suffix(".new")
        with written.open("wb") as file:
            pq.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self.path)


def _without(alert: Alert, notice: Notice) -> Alert:
    if notice.event == "opened" and alert.opened_notice == notice.id:
        return replace(alert, opened_notice=None)
    if notice.event == "closed" and alert.closed_notice == notice.id:
        return replace(alert, closed_notice=None)
    return alert


def table_of(directory: Path) -> Path:
    """The path of the table in a data directory."""
    return directory / "alerts" / "alerts.parquet"


def read_alerts(path: Path) -> list[Alert]:
    """All alerts of a table; none if it is missing. Raises AlertsError."""
    if not path.exists():
        return []
    try:
        rows = pq.read_table(path, schema=SCHEMA)
    except (OSError, pa.ArrowException) as problem:
        raise AlertsError(
            f"{path} cannot be read: {problem}. Without it, notices of open alerts are sent again"
        ) from None
    return [Alert(**row) for row in rows.to_pylist()]
