"""Limits the number of job starts of a key in a period, across all workers.

jobs.use(RateLimit(jobs, 100, timedelta(minutes=1), key="mail"))
jobs.use(JobRateLimits(jobs))       # the `rate_limit` of each job
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta

from waybill.ojs.client import Jobs
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, JobMiddleware
from waybill.ojs.middleware.limited import KeyedPermitPools, WaitPolicy, acquire
from waybill.ojs.spec.rate_limit import RateLimitPolicy, read_rate_limit


class RateLimit(JobMiddleware):
    """Starts a job with a permit of its key, which returns after the period: a sliding window.

    With `evenly`, starts are spaced: one in each `period / count`.
    """

    def __init__(
        self,
        jobs: Jobs,
        count: int,
        period: timedelta,
        *,
        key: str | Callable[[JobContext], str | None],
        evenly: bool = False,
        wait_policy: WaitPolicy | None = None,
    ) -> None:
        """`key` is as for ConcurrencyLimit. Raises ValueError for a count below 1 or a period below a millisecond."""
        self._key = key
        self._wait_policy = wait_policy or WaitPolicy()
        self._permits = _permits(jobs, count, period, evenly=evenly)

    async def execute(self, job: JobContext, call: Call) -> object:
        """Use a permit, then run the job."""
        key = self._key if isinstance(self._key, str) else self._key(job)
        if key is not None:
            await acquire(self._permits.of(key), self._wait_policy)
        return await call(job)


class JobRateLimits(JobMiddleware):
    """Enforces the `rate_limit` of each job (ojs-rate-limiting section 6): concurrency, rate and throttle by key."""

    def __init__(self, jobs: Jobs, *, wait_policy: WaitPolicy | None = None) -> None:
        """`wait_policy` is for jobs whose `on_limit` is "wait"."""
        self._jobs = jobs
        self._wait_policy = wait_policy or WaitPolicy()
        self._permits: dict[object, KeyedPermitPools] = {}

    async def execute(self, job: JobContext, call: Call) -> object:
        """Satisfy all limits of the job, then run it."""
        if job.envelope.rate_limit is None:
            return await call(job)
        policy = read_rate_limit(job.envelope.rate_limit)
        wait_policy = self._wait_policy.for_action(policy.on_limit)
        async with AsyncExitStack() as stack:
            # Concurrency first: a permit of a rate is used up even if the job cannot run.
            if policy.concurrency is not None:
                permits = self._of(policy.concurrency, lambda count: KeyedPermitPools(self._jobs, count))
                stack.callback((await acquire(permits.of(policy.key), wait_policy)).release)
            for window, evenly in ((policy.rate, False), (policy.throttle, True)):
                if window is not None:
                    permits = self._of(
                        (window, evenly),
                        lambda found: _permits(self._jobs, found[0].limit, found[0].period, evenly=found[1]),
                    )
                    await acquire(permits.of(policy.key), wait_policy)
            return await call(job)

    def _of(self, setting: object, make: Callable[..., KeyedPermitPools]) -> KeyedPermitPools:
        if setting not in self._permits:
            self._permits[setting] = make(setting)
        return self._permits[setting]


def _permits(jobs: Jobs, count: int, period: timedelta, *, evenly: bool) -> KeyedPermitPools:
    seconds = period.total_seconds()
    # The broker's times to live are in milliseconds.
    return KeyedPermitPools(jobs, 1, max(seconds / count, 0.001)) if evenly else KeyedPermitPools(jobs, count, seconds)


__all__ = ["JobRateLimits", "RateLimit", "RateLimitPolicy"]
