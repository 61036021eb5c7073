"""Log records with their job: a filter that adds fields, and a middleware that logs the steps of each job.

The filter reads the context variable of the handler, so records of libraries that a handler calls, also in a thread,
have the job's id, too. No record contains arguments or results (ojs-logging section 9).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from waybill.ojs.job_context import JobContext, current
from waybill.ojs.middleware.chain import Call, Enqueue, JobMiddleware
from waybill.ojs.spec.envelope import Envelope

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


class JobLogging(JobMiddleware):
    """Logs the enqueuing, the start and the end of every job, with durations in milliseconds.

    Use it outermost: then durations include other middleware.
    """

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        """Log that a job is enqueued, or dropped."""
        pushed = await call(job)
        if pushed is None:
            _log.info("job %s (%s) was dropped by a middleware", job.id, job.type, extra=_of(job, "client"))
        else:
            _log.info("job %s (%s) is enqueued to %s", pushed.id, job.type, job.queue, extra=_of(pushed, "client"))
        return pushed

    async def execute(self, job: JobContext, call: Call) -> object:
        """Log when a job starts and how it ends."""
        return await log_context(job, call)


async def log_context(job: JobContext, call: Call) -> object:
    """Log when a job starts and how it ends; the execution side of `JobLogging`."""
    _log.info("job %s (%s) started, attempt %d", job.id, job.type, job.attempt, extra={"category": "lifecycle"})
    started = time.perf_counter()
    try:
        result = await call(job)
    except BaseException as error:
        taken = _milliseconds(started)
        fields = {"category": "error", "attributes": {"duration_ms": taken}, "job_error": error}
        _log.warning("job %s (%s) failed after %d ms: %r", job.id, job.type, taken, error, extra=fields)
        raise
    taken = _milliseconds(started)
    fields = {"category": "performance", "attributes": {"duration_ms": taken}}
    _log.info("job %s (%s) completed after %d ms", job.id, job.type, taken, extra=fields)
    return result


def _of(job: Envelope, component: str) -> Mapping[str, object]:
    """Return the log fields of a job that is not the current one."""
    fields = {"job_id": job.id, "job_type": job.type, "queue": job.queue, "state": job.state}
    return {"category": "lifecycle", "component": component, "ojs": fields}


def _milliseconds(started: float) -> int:
    return int((time.perf_counter() - started) * 1000)
