"""Creates the envelope of a new job and the properties of its message."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec

from waybill.ojs.errors import InvalidJob
from waybill.ojs.handler import NewJob, Options
from waybill.ojs.job_context import current
from waybill.ojs.push.option_types import check_options
from waybill.ojs.push.outgoing import SCHEDULED
from waybill.ojs.spec.envelope import Envelope, seconds_until_scheduled, validate
from waybill.ojs.spec.identifiers import child_traceparent, new_id, new_traceparent
from waybill.ojs.spec.states import Operation, transition
from waybill.ojs.spec.timestamps import format_timestamp, resolve_moment
from waybill.ojs.topology.topology import Topology


def needs_more_headers(envelope: Envelope, options: Options) -> bool:
    return (
        envelope.scheduled_at is not None
        or envelope.expires_at is not None
        or bool(envelope.tags)
        or "correlation_id" in options
        or "enqueue_ttl" in options
    )


def expiration_ms(envelope: Envelope, options: Options, topology: Topology) -> int | None:
    lifetime = options.get("enqueue_ttl")
    if lifetime is None:
        return None
    if envelope.state == SCHEDULED:
        raise InvalidJob("enqueue_ttl", "would also run while the job is scheduled: use expires_at")
    if topology.settle_by == "nack":
        raise InvalidJob(
            "enqueue_ttl", "is not available with settle_by nack, which has no dead letter queue: use expires_at"
        )
    if lifetime < timedelta(milliseconds=1):
        raise InvalidJob("enqueue_ttl", "must be at least a millisecond")
    return round(lifetime / timedelta(milliseconds=1))


def envelope_of(job: NewJob, now: datetime) -> Envelope:
    options = job.options
    check_options(options)
    envelope = Envelope(
        id=job.id or options.get("id") or new_id(),
        type=job.type,
        queue=options.get("queue", "default"),
        args=job.args,
        meta=options.get("meta", {}),
        priority=options.get("priority", 0),
        retry=options.get("retry"),
        tags=options.get("tags", []),
        rate_limit=options.get("rate_limit"),
        workflow_id=options.get("workflow_id"),
        unique=msgspec.to_builtins(options["unique"]) if "unique" in options else None,
    )
    envelope.timeout, envelope.timeout_ms = whole_or_ms(options.get("timeout"))
    visibility = whole_or_ms(options.get("visibility_timeout"))
    envelope.visibility_timeout, envelope.visibility_timeout_ms = visibility
    result_ttl = options.get("result_ttl")
    if result_ttl is not None:
        envelope.result_ttl = math.ceil(result_ttl)
    envelope.result_size_limit = options.get("result_size_limit")
    scheduled_at: datetime | timedelta | str | None = options.get("delay", options.get("scheduled_at"))
    if scheduled_at is not None:
        envelope.scheduled_at = resolve_moment(scheduled_at, "scheduled_at", now)
    expires_at = options.get("expires_at")
    if expires_at is not None:
        envelope.expires_at = resolve_moment(expires_at, "expires_at", now)
    return envelope


def whole_or_ms(seconds: float | None) -> tuple[int | None, int | None]:
    """Return a time as whole seconds or as milliseconds, for the field that fits."""
    if seconds is None:
        return None, None
    return (int(seconds), None) if seconds == int(seconds) else (None, round(seconds * 1000))


def stamp(envelope: Envelope, now: datetime) -> None:
    """Set the fields that a caller cannot choose."""
    text = format_timestamp(now)
    later = seconds_until_scheduled(envelope, now) > 0
    envelope.state = transition(None, Operation.PUSH_SCHEDULED if later else Operation.PUSH).value
    envelope.attempt = 0
    envelope.max_attempts = envelope.policy.max_attempts
    envelope.created_at = text
    envelope.enqueued_at = text


def trace_of(envelope: Envelope, options: Options) -> tuple[str, str | None]:
    """Return the trace context of a new job: the caller's, else its metadata's, else that of the current job."""
    given = options.get("traceparent")
    if given is not None:
        return given, options.get("tracestate")
    noted = envelope.meta.get("traceparent")
    if isinstance(noted, str):
        tracestate = envelope.meta.get("tracestate")
        return noted, tracestate if isinstance(tracestate, str) else None
    context = current.get()
    traceparent, tracestate = context.trace() if context is not None else (None, None)
    return (child_traceparent(traceparent) if traceparent else new_traceparent()), tracestate


def options_of(**given: object) -> Options:
    """Return the given options: those that are not None."""
    return cast("Options", {name: value for name, value in given.items() if value is not None})


def handler_options(job_type: str, common: Options, **given: object) -> Options:
    """Return the default options of a handler's jobs: its own, else the common ones.

    Raises InvalidJob for a type or an option that no job may have, and TypeError for a decorator without parentheses.
    """
    if callable(job_type):
        raise TypeError("the type of the job is missing: write @jobs.handler('mail.send'), not @jobs.handler")
    options = cast("Options", {**common, **options_of(**given)})
    now = datetime.now(UTC)
    validate(envelope_of(NewJob(job_type, [], options), now), now)
    return options
