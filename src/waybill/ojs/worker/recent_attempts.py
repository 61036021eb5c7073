"""The last attempts that were finished here."""

from __future__ import annotations

from waybill.ojs.worker.execution import AttemptKey


class RecentAttempts:
    """Remembers at least the last `kept` attempts that were finished here."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._young: set[AttemptKey] = set()
        self._old: set[AttemptKey] = set()

    def add(self, key: AttemptKey) -> None:
        """Remember an attempt; from time to time the older half is dropped."""
        self._young.add(key)
        if len(self._young) >= self._kept:
            self._old, self._young = self._young, set()

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._young or key in self._old
