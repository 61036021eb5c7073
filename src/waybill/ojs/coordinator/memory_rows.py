"""The rows of features in memory: as JSON, by kind and key, with an index of their marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from heapq import nsmallest

from waybill.ojs.coordinator.feature_fold import StoredRow, kind_of
from waybill.ojs.coordinator.overflow import Overflow


class MemoryRows:
    """The rows of features in the memory store; `overflow` has what memory has no room for."""

    def __init__(self, overflow: Overflow) -> None:
        self.overflow = overflow
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.overflow.close()
        self._kinds: defaultdict[str, dict[str, StoredRow]] = defaultdict(dict)
        self._marks: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def load(self, keys: Sequence[str]) -> dict[str, StoredRow]:
        """Return the existing rows of these keys."""
        found = ((key, self._find(key)) for key in keys)
        return {key: row for key, row in found if row is not None}

    def marked(self, mark: str, limit: int, after: str = "") -> list[tuple[str, StoredRow]]:
        """Return rows with a mark whose keys are greater than `after`, in the order of their keys."""
        keys = self._marks.get(mark, {})
        return list(self.load(nsmallest(limit, (key for key in keys if key > after))).items())

    def count(self, mark: str) -> int:
        """Return how many rows have a mark."""
        return len(self._marks.get(mark, ()))

    def listed(self, prefix: str, limit: int, after: str) -> list[tuple[str, StoredRow]]:
        """Return the rows of one kind whose keys begin with `prefix` and are greater than `after`."""
        kind = self._kinds.get(kind_of(prefix), {})
        keys = nsmallest(limit, (key for key in kind if key.startswith(prefix) and key > after))
        return list(self.load(keys).items())

    def change(self, put: Mapping[str, StoredRow], gone: Collection[str]) -> None:
        """Store folded changes."""
        for key in (*put, *gone):
            before = self._kinds[kind_of(key)].pop(key, None)
            if before is None:
                continue
            self.overflow.drop(key, before.value)
            if before.mark is not None:
                del self._marks[before.mark][key]
                if not self._marks[before.mark]:
                    del self._marks[before.mark]
        for key, row in put.items():
            self._kinds[kind_of(key)][key] = StoredRow(self.overflow.keep(key, row.value), row.mark)
            if row.mark is not None:
                self._marks[row.mark][key] = None

    def _find(self, key: str) -> StoredRow | None:
        kind = self._kinds.get(kind_of(key))
        row = None if kind is None else kind.get(key)
        return None if row is None else StoredRow(self.overflow.text(key, row.value), row.mark)
