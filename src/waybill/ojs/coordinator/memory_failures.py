"""The groups of failed jobs of the job state in memory."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nlargest

from waybill.ojs.coordinator.failure_group import RETENTION_HOURS, FailureGroup, Hours, group_of, hour_of
from waybill.ojs.coordinator.job_record import JobRecord


class MemoryFailures:
    """Counts the jobs that failed alike."""

    def __init__(self) -> None:
        self._groups: dict[str, FailureGroup] = {}
        """By fingerprint, like the next."""
        self._hours: dict[str, Hours] = {}

    def join(self, job: JobRecord) -> None:
        """Count a job in its group."""
        group = group_of(job)
        before = self._groups.get(group.fingerprint)
        if before is not None:
            group.count, group.first_at = before.count + 1, before.first_at
        self._groups[group.fingerprint] = group
        hour = hour_of(job)
        if hour is not None:
            hours = self._hours.setdefault(group.fingerprint, Hours())
            hours[hour] += 1
            for old in [one for one in hours if one <= hour - RETENTION_HOURS]:
                del hours[old]

    def leave(self, fingerprint: str | None) -> None:
        """Count a job of a group no more."""
        group = None if fingerprint is None else self._groups.get(fingerprint)
        if group is not None:
            group.count -= 1
            if group.count <= 0:
                del self._groups[group.fingerprint]
                self._hours.pop(group.fingerprint, None)

    def newest(self, limit: int, prefix: str) -> list[FailureGroup]:
        """Return the groups of queues with this prefix, the last failures first."""
        groups = (group for group in self._groups.values() if group.queue.startswith(prefix))
        return nlargest(limit, groups, key=lambda group: (group.last_at, group.fingerprint))

    def hours(self, fingerprints: Sequence[str]) -> dict[str, Hours]:
        """Return the numbers of failures by hour."""
        return {one: Hours(self._hours.get(one)) for one in fingerprints}
