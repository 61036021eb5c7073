"""A time limit for all jobs, in addition to that of each job (ojs-middleware section 8.1.3).

A worker enforces the `timeout` of a job without middleware. This limit is set by the operator of the worker, for jobs
without a timeout or with one that is too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from waybill.ojs.errors import JobError
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, JobMiddleware
from waybill.ojs.worker.execution import TIMEOUT

MAX_SECONDS: Final = 31_536_000


class TimeLimit(JobMiddleware):
    """Fails attempts with the error type `timeout` that take longer than `seconds`; the retry policy applies."""

    def __init__(self, seconds: float, *, by_type: Mapping[str, float] | None = None) -> None:
        """`by_type` has limits for single job types. Raises ValueError unless all limits are above 0."""
        self._seconds = seconds
        self._by_type = dict(by_type or {})
        for limit in (seconds, *self._by_type.values()):
            if not 0 < limit <= MAX_SECONDS:
                raise ValueError(f"a time limit is a number of seconds above 0 and up to {MAX_SECONDS}, not {limit!r}")

    async def execute(self, job: JobContext, call: Call) -> object:
        """Cancel a coroutine; for a thread, mark its job as cancelled and abandon it."""
        seconds = self._by_type.get(job.type, self._seconds)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await call(job)
        except TimeoutError as error:
            if not limit.expired():
                raise
            job.cancel()
            raise JobError(f"the job exceeded the worker's limit of {seconds:g} s", type=TIMEOUT) from error
