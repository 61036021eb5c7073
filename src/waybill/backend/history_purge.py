"""Deletions of the histories of many jobs (ojs-execution-history section 7.6)."""

from __future__ import annotations

import msgspec

from waybill.backend.job_form import Form


class HistoryPurge(msgspec.Struct):
    """Which entries are not shown any more: those before a time, of some queues and types, or of all."""

    before: str
    queues: list[str]
    event_types: list[str]

    def covers(self, entry: Form, queue: str) -> bool:
        """Whether an entry of a job of a queue is deleted."""
        return (
            str(entry["timestamp"]) < self.before
            and (not self.queues or queue in self.queues)
            and (not self.event_types or entry["event_type"] in self.event_types)
        )
