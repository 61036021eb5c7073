"""Limits the number of running jobs of a key, across all workers.

jobs.use(ConcurrencyLimit(jobs, 5, key="stripe"))
jobs.use(ConcurrencyLimit(jobs, 1, key=lambda job: f"tenant-{job.meta['tenant']}"))
"""

from __future__ import annotations

from collections.abc import Callable

from waybill.ojs.client import Jobs
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, JobMiddleware
from waybill.ojs.middleware.limited import KeyedPermitPools, WaitPolicy, acquire


class ConcurrencyLimit(JobMiddleware):
    """Runs a job while it holds a permit of its key; `ojs.middleware.permit_pool` says how that survives crashes."""

    def __init__(
        self,
        jobs: Jobs,
        count: int,
        *,
        key: str | Callable[[JobContext], str | None],
        wait_policy: WaitPolicy | None = None,
    ) -> None:
        """`key` is the key, or a function that returns it for a job; jobs whose key is None are not limited.

        Raises ValueError for a count below 1.
        """
        self._key = key
        self._wait_policy = wait_policy or WaitPolicy()
        self._permits = KeyedPermitPools(jobs, count)

    async def execute(self, job: JobContext, call: Call) -> object:
        key = self._key if isinstance(self._key, str) else self._key(job)
        if key is None:
            return await call(job)
        permit = await acquire(self._permits.of(key), self._wait_policy)
        try:
            return await call(job)
        finally:
            permit.release()
