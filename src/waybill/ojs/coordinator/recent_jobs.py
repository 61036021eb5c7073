"""The jobs that folds have brought last: those who wait for new jobs need not query a database for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from waybill.ojs.bounded_dict import BoundedDict

MOST: Final = 20_000


class RecentJobs:
    """The ids of jobs that nobody has asked for yet."""

    def __init__(self) -> None:
        self._ids: BoundedDict[str, None] = BoundedDict(MOST)

    def add(self, job_ids: Iterable[str]) -> None:
        """Note the jobs of a fold."""
        for job_id in job_ids:
            self._ids[job_id] = None

    def take(self, job_ids: Sequence[str]) -> bool:
        """Return whether all of these are known, and forget them if so."""
        if not self._ids.keys() >= set(job_ids):
            return False
        for job_id in job_ids:
            self._ids.pop(job_id, None)
        return True
