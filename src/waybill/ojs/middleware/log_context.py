"""Log records that know their job: a filter for the fields, and a middleware that logs start and end of each job.

The filter reads the context variable that every handler runs with, so records of libraries that a handler calls, in a
thread too, bear the job's id as well.
"""

from __future__ import annotations

import logging
import time

from waybill.ojs.job_context import JobContext, current
from waybill.ojs.middleware.chain import Call

_log = logging.getLogger("waybill.ojs.job")


class JobLogFilter(logging.Filter):
    """Adds `job_id`, `job_type` and `job_attempt` to every record; they are empty outside of jobs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; no record is dropped."""
        job = current.get()
        record.job_id = "" if job is None else job.id
        record.job_type = "" if job is None else job.type
        record.job_attempt = "" if job is None else job.attempt
        return True


async def log_context(job: JobContext, call: Call) -> object:
    """Log when a job starts and how it ends, with its duration in milliseconds."""
    _log.info("job %s (%s) started, attempt %d", job.id, job.type, job.attempt)
    started = time.perf_counter()
    try:
        result = await call(job)
    except BaseException as error:
        _log.warning("job %s (%s) failed after %d ms: %r", job.id, job.type, _milliseconds(started), error)
        raise
    _log.info("job %s (%s) completed after %d ms", job.id, job.type, _milliseconds(started))
    return result


def _milliseconds(started: float) -> int:
    return int((time.perf_counter() - started) * 1000)
