"""Where jobs are: what this federation has learned from its own pushes and fetches. It is lost with the process.

Nothing depends on it: whatever is not here is found by asking the regions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MOST: Final = 100_000


class Homes:
    """The newest jobs, each with its region. Of a worker's own jobs, it knows from where that worker has them."""

    def __init__(self, most: int = MOST) -> None:
        """Keep so many."""
        self._most = most
        self._regions: OrderedDict[tuple[str, str], str] = OrderedDict()

    def note(self, job_id: str, region: str, worker_id: str = "") -> None:
        """Take note of a job in a region, and of its worker."""
        for key in {(job_id, ""), (job_id, worker_id)}:
            self._regions[key] = region
            self._regions.move_to_end(key)
        while len(self._regions) > self._most:
            self._regions.popitem(last=False)

    def find(self, job_id: str, worker_id: str = "") -> str | None:
        """Return the region of a job, as its worker knows it; None if it is not known."""
        return self._regions.get((job_id, worker_id)) or self._regions.get((job_id, ""))

    def forget(self, job_id: str, worker_id: str = "") -> None:
        """Forget a job that is not there any more."""
        self._regions.pop((job_id, worker_id), None)
        self._regions.pop((job_id, ""), None)
