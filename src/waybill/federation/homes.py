"""Remembers the regions of jobs, from the pushes and fetches of this process.

It is a cache: the region of an unknown job is found by asking all regions.
"""

from __future__ import annotations

from typing import Final

from waybill.ojs.bounded_dict import BoundedDict

MOST: Final = 100_000


class Homes:
    """The newest jobs with their regions. For a worker's own jobs, it is the region that leased them."""

    def __init__(self, most: int = MOST) -> None:
        """`most` limits the number of jobs."""
        self._regions: BoundedDict[tuple[str, str], str] = BoundedDict(most)

    def note(self, job_id: str, region: str, worker_id: str = "") -> None:
        """Record the region and the worker of a job."""
        for key in {(job_id, ""), (job_id, worker_id)}:
            self._regions[key] = region
            self._regions.move_to_end(key)

    def find(self, job_id: str, worker_id: str = "") -> str | None:
        """Return the region of a job for a worker; None if unknown."""
        return self._regions.get((job_id, worker_id)) or self._regions.get((job_id, ""))

    def forget(self, job_id: str, worker_id: str = "") -> None:
        """Forget a job that no longer exists."""
        self._regions.pop((job_id, worker_id), None)
        self._regions.pop((job_id, ""), None)
