"""Jobs that were pushed to be activated later: kept in the stream, in no queue (ojs-http-binding section 9.5).

    job.staged      confirmed -> the job is safe, and pending
    job.activated   the first one in the order of the stream counts: its writer pushes the job
    job.unstaged    the job is in its queue, or was cancelled before somebody activated it, and is forgotten here

If the process that activated a job dies before it pushed it, another one may activate it after AGAIN_SECONDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.timestamps import parse_timestamp

AGAIN_SECONDS: Final = 30.0

_TYPES: Final = frozenset({"job.staged", "job.activated", "job.unstaged"})


class Staged(msgspec.Struct, omit_defaults=True):
    """A waiting job. `by` is the event that activated it, `at` the time of that."""

    job: dict[str, object]
    by: str = ""
    at: str = ""


def staged_key(job_id: str) -> str:
    """Return the key of a job's row."""
    return f"staged/{job_id}"


class StagedFold(FeatureFold):
    """Folds these events."""

    types = _TYPES

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the key of the row of the job that an event is about."""
        return (staged_key(event.subject),) if event.type in _TYPES else ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Store a staged job, note who activates it, and delete it when it is in its queue."""
        key = staged_key(event.subject)
        found = rows.get(key, Staged)
        if event.type == "job.staged":
            job = event.data.get("job")
            if found is None and isinstance(job, dict):
                rows.put(key, Staged(job))
        elif found is None:
            return
        elif event.type == "job.unstaged":
            if event.data.get("cancelled") is not True or _is_free(found, event.time):
                rows.delete(key)
        elif _is_free(found, event.time):
            found.by, found.at = event.id, event.time
            rows.put(key, found)


def _is_free(row: Staged, now: str) -> bool:
    """Return whether nobody is about to push a job."""
    return not row.by or _is_long_ago(row.at, now)


def _is_long_ago(before: str, now: str) -> bool:
    try:
        passed = parse_timestamp(now, "time") - parse_timestamp(before, "time")
    except InvalidJob:
        return True
    return passed >= timedelta(seconds=AGAIN_SECONDS)
