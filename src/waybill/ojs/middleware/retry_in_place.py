"""Retries a handler immediately, within the same attempt, for brief failures.

A retry by the policy of the job goes through a queue and takes at least a second. This one occupies a place of the
worker meanwhile, and counts as one attempt, so it should be short.
"""

from __future__ import annotations

import asyncio
import logging

from waybill.client.ranges import check_number, check_whole
from waybill.ojs.errors import JobError
from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, JobMiddleware

_log = logging.getLogger("waybill.ojs.job")


class RetryInPlace(JobMiddleware):
    """Makes the inner call up to `tries` times while it raises one of `errors`, with doubling pauses."""

    def __init__(
        self, *errors: type[Exception], tries: int = 3, pause_seconds: float = 0.05, max_pause_seconds: float = 1.0
    ) -> None:
        """`errors` defaults to ConnectionError and TimeoutError. Raises ValueError for numbers out of range."""
        check_whole("tries", tries, 1, 1_000_000)
        check_number("pause_seconds", pause_seconds, 0, 86_400)
        check_number("max_pause_seconds", max_pause_seconds, 0, 86_400)
        self._errors = errors or (ConnectionError, TimeoutError)
        self._tries = tries
        self._pause_seconds = pause_seconds
        self._max_pause_seconds = max_pause_seconds

    async def execute(self, job: JobContext, call: Call) -> object:
        """Return the first result, or raise the last error. A JobError is the handler's decision and is not retried."""
        pause = self._pause_seconds
        for count in range(1, self._tries):
            try:
                return await call(job)
            except self._errors as error:
                if isinstance(error, JobError) or job.is_cancelled:
                    raise
                _log.info("job %s (%s) is retried in place after try %d: %r", job.id, job.type, count, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._max_pause_seconds)
        return await call(job)
