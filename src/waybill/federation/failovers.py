"""Reports jobs that go to another region than planned (ojs-federation section 8.1)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

EVENT: Final = "ojs.federation.failover"
REPEAT_SECONDS: Final = 10.0
"""How often the same failover is logged: under load there is one for each job."""

_log = logging.getLogger("waybill.federation")


class Failovers:
    """Counts failovers, and logs the first of each kind immediately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """Jobs, by planned and actual region."""
        self._clock = clock
        self._logged: dict[tuple[str, str], tuple[str, float, int]] = {}

    def note(self, from_region: str, to_region: str, reason: str, job_id: str) -> None:
        """Record a job."""
        pair = from_region, to_region
        self.counts[pair] += 1
        before, logged_at, count = self._logged.get(pair, ("", -REPEAT_SECONDS, 0))
        now = self._clock()
        if reason == before and now < logged_at + REPEAT_SECONDS:
            return
        jobs = self.counts[pair] - count
        self._logged[pair] = (reason, now, self.counts[pair])
        fields = {"from_region": from_region, "to_region": to_region, "reason": reason, "job_id": job_id, "jobs": jobs}
        text = f"{EVENT} from_region=%s to_region=%s reason=%r job_id=%s jobs=%d"
        _log.warning(text, from_region, to_region, reason, job_id, jobs, extra={"event": EVENT, **fields})

    def form(self) -> list[dict[str, object]]:
        """Return the counts."""
        return [
            {"from_region": one, "to_region": other, "jobs": count}
            for (one, other), count in sorted(self.counts.items())
        ]
