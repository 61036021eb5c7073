"""Jobs that a region may have accepted without an answer, before another region got them.

When such a region is back, it is asked. Jobs that still wait there are cancelled, so that they do not run twice.
Running and finished jobs stay: they have run twice, as at-least-once delivery allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final
from urllib.parse import quote

import msgspec

from waybill.federation.connection import RegionFailed
from waybill.federation.region import Region

MOST: Final = 10_000
WAITING: Final = frozenset({"available", "pending", "scheduled", "retryable"})

_log = logging.getLogger("waybill.federation")


class _Job(msgspec.Struct):
    state: str = ""


class _Found(msgspec.Struct):
    job: _Job | None = None
    state: str = ""


class Doubts:
    """The doubtful jobs of one federation. They are lost with the process."""

    def __init__(self, most: int = MOST) -> None:
        """`most` limits the number of jobs: the oldest are dropped."""
        self._most = most
        self._regions: OrderedDict[str, dict[str, None]] = OrderedDict()
        self._taken: dict[str, str] = {}
        self._settling: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._regions)

    def add(self, job_id: str, region: str) -> None:
        """Record a push without an answer."""
        self._regions.setdefault(job_id, {})[region] = None
        if len(self._regions) > self._most:
            oldest, _ = self._regions.popitem(last=False)
            self._taken.pop(oldest, None)
            _log.warning("there are more than %d pushes without an answer: job %s may run twice", self._most, oldest)

    def regions_of(self, job_id: str) -> list[str]:
        """Return the regions that may have a job."""
        return list(self._regions.get(job_id, ()))

    def taken(self, job_id: str, region: str) -> None:
        """Record the region that certainly has a job."""
        doubtful = self._regions.get(job_id)
        if doubtful is not None:
            doubtful.pop(region, None)
            self._taken[job_id] = region
            if not doubtful:
                self._end(job_id)

    def settle_soon(self, region: Region) -> None:
        """Settle the doubtful jobs of a region that is back."""
        if region.breaker.is_ready and any(region.id in found for found in self._regions.values()):
            task = asyncio.get_running_loop().create_task(self.settle(region))
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)

    async def settle(self, region: Region) -> None:
        """Cancel jobs that wait in a region although another region has them."""
        for job_id in [one for one, found in self._regions.items() if region.id in found]:
            if job_id not in self._taken:
                # The client still retries this push and gets its answer then.
                continue
            try:
                await self._cancel(region, job_id)
            except RegionFailed:
                return
            self._regions.get(job_id, {}).pop(region.id, None)
            if not self._regions.get(job_id):
                self._end(job_id)

    async def close(self) -> None:
        """Stop settling."""
        settling = list(self._settling)
        for task in settling:
            task.cancel()
        await asyncio.gather(*settling, return_exceptions=True)

    async def _cancel(self, region: Region, job_id: str) -> None:
        """Cancel a duplicate. Raises RegionFailed if the region does not answer."""
        path = f"/ojs/v1/jobs/{quote(job_id, safe='')}"
        answer = await region.request("GET", path)
        if answer.status != 200:
            return
        try:
            found = msgspec.json.decode(answer.body, type=_Found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        state = found.state if found.job is None else found.job.state
        if state in WAITING:
            await region.request("DELETE", path)
            _log.info("job %s was cancelled in %s: %s has it", job_id, region.id, self._taken.get(job_id))
        else:
            _log.warning("job %s is %s in %s, though %s has it: it runs twice", job_id, state[:20], region.id,
                         self._taken.get(job_id))  # fmt: skip

    def _end(self, job_id: str) -> None:
        self._regions.pop(job_id, None)
        self._taken.pop(job_id, None)
