"""The data of an attempt's outcome for events and messages: result, error, and what the next attempt needs."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.client import ClientError, Delivery
from waybill.ojs.control.control import Control
from waybill.ojs.errors import ControlFailed, InvalidJob, ResponseCode
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.results.codec import DEFAULT_SIZE_LIMIT, encode_result
from waybill.ojs.spec.checkpoint import Checkpoint, read_checkpoint
from waybill.ojs.spec.envelope import (
    MAX_DELAY_SECONDS,
    MAX_ID_LENGTH,
    MAX_RESULT_BYTES,
    MAX_RESULT_TTL_SECONDS,
    Envelope,
    ErrorRecord,
    edit_envelope,
    ttl_end,
)
from waybill.ojs.spec.event_data import ErrorSummary
from waybill.ojs.spec.events import JobExpired, JobFailure
from waybill.ojs.spec.headers import max_attempts
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.spec.retry import is_non_retryable, retry_delay_seconds
from waybill.ojs.spec.timeout_events import EVENT_OF_KIND
from waybill.ojs.spec.timeouts import STALLED_TYPE, VISIBILITY_TYPE, exceeded
from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp
from waybill.ojs.worker.delivered_job import named_in
from waybill.ojs.worker.execution import LOST, Execution, Failure

CHECKPOINT_SECONDS: Final = 3.0
"""How long to wait for the coordinator's checkpoint of a job whose worker vanished."""

_log = logging.getLogger("waybill.ojs.worker")


def encoded_result(execution: Execution, result: object) -> tuple[bytes | None, ErrorSummary | None]:
    """Return a result as JSON, or why that is impossible."""
    handler, envelope = execution.handler, execution.envelope
    encode = msgspec.json.encode if handler is None else handler.result.encode
    encoded = encode_result(result, encode, result_limit(envelope))
    if isinstance(encoded, bytes):
        return encoded, None
    _log.error("job %s (%s): %s", shown(envelope.id), shown(envelope.type), encoded.message)
    return None, encoded


def result_limit(envelope: Envelope) -> int:
    """Return how many bytes the result of a job may have."""
    limit = envelope.result_size_limit
    return DEFAULT_SIZE_LIMIT if limit is None else min(max(limit, 0), MAX_RESULT_BYTES)


def kept_result(execution: Execution, encoded: bytes | None) -> tuple[bytes | None, str | None]:
    """Return the result for coordinators to keep, and its expiry; None if it is kept as long as the job."""
    lasts = execution.envelope.result_ttl
    if encoded is None or lasts == 0:
        return None, None
    if lasts is None or lasts < 0:
        return encoded, None
    expires_at = datetime.now(UTC) + timedelta(seconds=min(lasts, MAX_RESULT_TTL_SECONDS))
    return encoded, format_timestamp(expires_at)


def gets_another(execution: Execution, failure: Failure) -> bool:
    """Return whether a failed job is retried: its handler, its policy and its attempts allow it."""
    envelope = execution.envelope
    return (
        failure.response is ResponseCode.RETRY
        and execution.attempt < max_attempts(execution.delivery, envelope)
        and not is_non_retryable(envelope.policy, failure.record.type)
    )


def delay_of(execution: Execution) -> float:
    """Return the delay of the next attempt in seconds."""
    policy = execution.envelope.policy
    delay = retry_delay_seconds(policy, execution.attempt, random.random())  # noqa: S311 - jitter
    return min(delay, MAX_DELAY_SECONDS)


async def next_checkpoint(control: Control, execution: Execution, failure: Failure) -> Checkpoint | None:
    """Return the checkpoint for the next attempt, from this attempt or from the coordinator."""
    carried = _checkpoint_of(execution)
    if (
        execution.context is not None
        or execution.has_told_checkpoint
        or failure.record.type not in {LOST, STALLED_TYPE, VISIBILITY_TYPE}
    ):
        return carried
    try:
        if await control.is_heard(execution.queue):
            job = await control.info(execution.envelope.id, execution.queue, CHECKPOINT_SECONDS)
            return carried if job is None or job.checkpoint is None else job.checkpoint
    except (ClientError, ControlFailed) as error:
        _log.warning("the checkpoint of job %s could not be looked up: %r", execution.envelope.id, error)
    return carried


def postponed_body(execution: Execution) -> bytes:
    """Return the message of an attempt that will start again: with its checkpoint, otherwise unchanged."""
    body, checkpoint = execution.delivery.body, _checkpoint_of(execution)
    is_same = checkpoint == read_checkpoint(execution.envelope.checkpoint)
    return body if is_same else edit_envelope(body, {"checkpoint": checkpoint})


def _checkpoint_of(execution: Execution) -> Checkpoint | None:
    """Return the latest checkpoint that this process knows, from this attempt or an earlier one."""
    if execution.context is not None:
        return execution.context.current_checkpoint
    if execution.has_told_checkpoint:
        return execution.checkpoint
    return read_checkpoint(execution.envelope.checkpoint)


def placeholder_of(delivery: Delivery, queue: str) -> tuple[Envelope, str]:
    """Return a placeholder for an unreadable job, and its content encoding, if any."""
    try:
        properties = delivery.properties
    except ValueError:
        return Envelope(id="unknown", type="unknown", queue=queue), " (and its properties are malformed)"
    encoding = properties.content_encoding or ""
    known = encoding.lower() in {"", "utf-8", "utf8", "identity"}
    named_id, named_type = named_in(delivery.body)
    job_id = clean_text(properties.message_id or named_id or "unknown", MAX_ID_LENGTH)
    job_type = clean_text(properties.type or named_type or "unknown", MAX_ID_LENGTH)
    placeholder = Envelope(id=job_id, type=job_type, queue=queue)
    return placeholder, "" if known else f" (content-encoding {encoding!r} is not supported)"


def failed_event(execution: Execution, failure: Failure, duration_seconds: float) -> JobFailure:
    """Return the event of a failed attempt."""
    return JobFailure(
        job_type=execution.envelope.type,
        queue=execution.queue,
        attempt=execution.attempt,
        error=summary_of(failure.record),
        duration_ms=int(duration_seconds * 1000),
    )


def summary_of(record: ErrorRecord) -> ErrorSummary:
    """Return an error in the form of events."""
    return ErrorSummary(
        code=record.code,
        message=record.message,
        type=record.type,
        retryable=record.retryable,
        stack_trace="\n".join(record.backtrace) if record.backtrace else None,
        timeout_kind=record.timeout_kind,
        limit_seconds=record.limit_seconds,
        elapsed_seconds=record.elapsed_seconds,
    )


def expired_event(execution: Execution, now: datetime) -> JobExpired:
    """Return the event of a job that expired before it could start."""
    created_at, lifetime = _lifetime_of(execution.envelope)
    return JobExpired(
        job_type=execution.envelope.type,
        queue=execution.queue,
        created_at=created_at,
        expired_at=format_timestamp(now),
        ttl_ms=int(lifetime / timedelta(milliseconds=1)),
    )


def _lifetime_of(envelope: Envelope) -> tuple[str, timedelta]:
    """Return the creation time of a job with a deadline, and its lifetime."""
    created_at = envelope.created_at or envelope.expires_at or ""
    deadline = ttl_end(envelope)
    if envelope.expires_at is not None:
        expires_at = parse_timestamp(envelope.expires_at, "expires_at")
        deadline = expires_at if deadline is None else min(deadline, expires_at)
    try:
        if deadline is None:
            return created_at, timedelta(0)
        return created_at, deadline - parse_timestamp(created_at, "created_at")
    except InvalidJob:
        # The deadline has passed in any case.
        return envelope.expires_at or "", timedelta(0)


def expiry_record(envelope: Envelope, now: datetime) -> ErrorRecord:
    """Return the error of a job that expired before it could start."""
    limit = exceeded(envelope, now)
    if limit is None:
        return ErrorRecord(type="Expired", message=f"it expired at {envelope.expires_at}", code="JOB_EXPIRED")
    return limit.error(envelope.attempt, format_timestamp(now))


def record_timeout(events: EventWriter, execution: Execution, record: ErrorRecord) -> None:
    """Record the event of a time limit that a job exceeded, if that is its error."""
    event = None if record.timeout_kind is None else EVENT_OF_KIND.get(record.timeout_kind)
    if event is None:
        return
    envelope = execution.envelope
    data = event(
        job_id=envelope.id,
        job_type=envelope.type,
        queue=execution.queue,
        timeout_kind=record.timeout_kind or "",
        limit_seconds=record.limit_seconds or 0,
        elapsed_seconds=record.elapsed_seconds or 0,
        attempt=record.attempt,
    )
    events.record(envelope.id, data)


def log_failure(
    log: logging.Logger, execution: Execution, failure: Failure, delay: float | None, error: BaseException | None
) -> None:
    """Log a failed attempt, with its traceback if there is one. Arguments are confidential (ojs-logging 9)."""
    envelope = execution.envelope
    job = (shown(envelope.id), shown(envelope.type), execution.attempt, shown(failure.record.type))
    fields = {"category": "error"}
    trace = None if error is None else (type(error), error, error.__traceback__)
    for shown_trace in (trace, None):
        try:
            if delay is None:
                log.error("job %s (%s) failed in its last attempt, %d: %s", *job, exc_info=shown_trace, extra=fields)
            else:
                text = "job %s (%s) failed in attempt %d: %s; the next one begins in %.1f s"
                log.warning(text, *job, delay, exc_info=shown_trace, extra=fields)
        except Exception:  # noqa: BLE001, S112 - whatever a formatter makes of a handler's exception
            continue
        return
