"""One OpenTelemetry trace from the push of a job through all of its attempts (binding section 12.2).

    jobs = Jobs(uri, middleware=[Tracing()])

    POST /orders                       the caller's span, if any
      └ email enqueue     PRODUCER     its context is sent in the headers and in `meta`
          ├ email process CONSUMER     attempt 1, linked to the enqueuing
          └ email process CONSUMER     attempt 2, linked to the enqueuing and to attempt 1

The context of the push is the same for all attempts, as the binding requires; the link to a failed attempt is sent in a
separate header.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waybill.ojs.job_context import JobContext
from waybill.ojs.middleware.chain import Call, Enqueue, JobMiddleware
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.headers import TRACE_PREVIOUS

try:
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        Link,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
    )
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError("tracing needs the package opentelemetry-api: pip install 'waybill-amqp[tracing]'") from error

_propagator: Final = TraceContextTextMapPropagator()
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"


class Tracing(JobMiddleware):
    """Creates the spans. Use it outermost: then the records of other middleware belong to them."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider` defaults to the global one. Without an SDK, no spans are recorded."""
        self._tracer = get_tracer("waybill.ojs", tracer_provider=provider)

    def prepare(self, job: Envelope) -> None:
        """Make the current span the parent of a later enqueue."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        job.meta = {**carrier, **job.meta}

    async def enqueue(self, job: Envelope, call: Enqueue) -> Envelope | None:
        """Create the span of the enqueuing, and add its context to the job."""
        # A context set by the caller is the parent.
        parent = _propagator.extract(_carrier(job.meta)) if TRACEPARENT in job.meta else None
        with self._tracer.start_as_current_span(
            f"{job.queue} enqueue",
            context=parent,
            kind=SpanKind.PRODUCER,
            attributes=_attributes(job.id, job.type, job.queue),
        ) as span:
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            job.meta = {**job.meta, **carrier}
            pushed = await call(job)
            if pushed is not None:
                span.set_attribute("ojs.job.state", pushed.state or "")
            span.set_status(Status(StatusCode.OK))
            return pushed

    async def execute(self, job: JobContext, call: Call) -> object:
        """Create the span of an attempt: a child of the enqueuing, linked to the previous attempt."""
        traceparent, tracestate = job.trace()
        parent = _propagator.extract(_carrier({TRACEPARENT: traceparent, TRACESTATE: tracestate}))
        links = [Link(context) for context in (_span_context(parent), self._previous(job)) if context is not None]
        with self._tracer.start_as_current_span(
            f"{job.queue} process",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                **_attributes(job.id, job.type, job.queue),
                "ojs.job.attempt": job.attempt,
                "ojs.worker.id": job.worker_id,
            },
            links=links,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            if TRACEPARENT in carrier:
                job.next_headers[TRACE_PREVIOUS] = carrier[TRACEPARENT]
            try:
                result = await call(job)
            except BaseException as error:
                if not job.is_cancelled:
                    span.record_exception(error)
                    span.set_status(Status(StatusCode.ERROR, str(error)))
                    span.set_attributes(
                        {
                            "error.type": type(error).__name__,
                            "error.message": str(error),
                            "ojs.job.error.attempt": job.attempt,
                        }
                    )
                raise
            span.set_status(Status(StatusCode.OK))
            return result

    @staticmethod
    def _previous(job: JobContext) -> SpanContext | None:
        return _span_context(_propagator.extract(_carrier({TRACEPARENT: job.headers.get(TRACE_PREVIOUS)})))


def _attributes(job_id: str, job_type: str, queue: str) -> dict[str, str]:
    return {"messaging.system": "ojs", "ojs.job.id": job_id, "ojs.job.type": job_type, "ojs.job.queue": queue}


def _carrier(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: text for name in (TRACEPARENT, TRACESTATE) if isinstance(text := fields.get(name), str)}


def _span_context(context: Context) -> SpanContext | None:
    found = get_current_span(context).get_span_context()
    return found if found.is_valid else None
