"""Metrics of jobs for Prometheus, by queue and type (ojs-observability section 8).

    jobs = Jobs(uri, middleware=[JobMetrics()])

Metrics of workers and their connections are in `waybill.ojs.observe.metrics`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, Enqueue, JobMiddleware
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.timestamps import parse_timestamp

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
except ImportError as error:
    raise ImportError("metrics need the package prometheus-client: pip install 'waybill-amqp[metrics]'") from error

DURATION_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
QUEUE_TIME_BOUNDS: Final = (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600)
_BY_TYPE: Final = ("queue", "type")


class JobMetrics(JobMiddleware):
    """Counts and times the enqueuing and the execution of jobs. Use it outermost."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Register the metrics. Raises ValueError if the registry has them already."""
        self._enqueued = Counter("ojs_job_enqueued", "Jobs enqueued.", _BY_TYPE, registry=registry)
        self._enqueue_duration = Histogram(
            "ojs_job_enqueue_duration_seconds", "Time to enqueue a job.", ("queue",), registry=registry
        )
        self._attempts = Counter("ojs_job_attempts", "Attempts by outcome.", (*_BY_TYPE, "state"), registry=registry)
        self._duration = Histogram(
            "ojs_job_attempt_duration_seconds",
            "Duration of attempts.",
            (*_BY_TYPE, "state"),
            buckets=DURATION_BOUNDS,
            registry=registry,
        )
        self._queue_time = Histogram(
            "ojs_job_queue_time_seconds",
            "Time from when a job was available to its first start.",
            _BY_TYPE,
            buckets=QUEUE_TIME_BOUNDS,
            registry=registry,
        )

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        """Count an enqueued job."""
        started = time.perf_counter()
        pushed = await call(job)
        if pushed is not None:
            self._enqueued.labels(job.queue, job.type).inc()
            self._enqueue_duration.labels(job.queue).observe(time.perf_counter() - started)
        return pushed

    async def execute(self, job: JobContext, call: Call) -> object:
        """Time an attempt; `state` is completed, failed or cancelled."""
        if job.attempt == 1:
            self._queue_time.labels(job.queue, job.type).observe(_waited_seconds(job.envelope))
        started = time.perf_counter()
        state = "failed"
        try:
            result = await call(job)
            state = "completed"
            return result
        finally:
            if job.is_cancelled and state == "failed":
                state = "cancelled"
            self._attempts.labels(job.queue, job.type, state).inc()
            self._duration.labels(job.queue, job.type, state).observe(time.perf_counter() - started)


def _waited_seconds(job: Envelope) -> float:
    since = job.scheduled_at or job.enqueued_at or job.created_at
    if since is None:
        return 0.0
    try:
        waited = datetime.now(UTC) - parse_timestamp(since, "enqueued_at")
    except ValueError:
        return 0.0
    return max(0.0, waited.total_seconds())
