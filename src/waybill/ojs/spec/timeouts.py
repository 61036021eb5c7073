"""The time limits of a job (ojs-timeouts): what they are measured from, and the errors of jobs that exceed them.

timeout            of an attempt, and then `grace_period` until the server ends it
heartbeat_timeout  from one heartbeat of a worker to the next
enqueue_ttl        from `created_at` to the start of the first attempt
total_timeout      from `created_at` to the end of the last attempt
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from waybill.ojs.spec.envelope import Envelope, ErrorRecord, end_after_creation, seconds_of, ttl_end
from waybill.ojs.spec.timestamps import parse_timestamp

EXECUTION: Final = "execution"
STALLED: Final = "stalled"
ENQUEUE_TTL: Final = "enqueue_ttl"
TOTAL: Final = "total"

STALLED_TYPE: Final = "stalled"
VISIBILITY_TYPE: Final = "visibility_timeout"
"""The type of the error of an attempt whose lease at a server has ended (ojs-worker-protocol section 5.5)."""
_ERRORS: Final = {
    EXECUTION: ("timeout", "HANDLER_TIMEOUT", "the handler exceeded its {:g} s"),
    STALLED: (STALLED_TYPE, "HANDLER_TIMEOUT", "the worker sent no heartbeat for {:g} s"),
    ENQUEUE_TTL: ("enqueue_ttl_expired", "JOB_EXPIRED", "the job did not start within {:g} s"),
    TOTAL: ("total_timeout", "JOB_EXPIRED", "the job did not end within {:g} s"),
}
_TOLERANCE: Final = timedelta(seconds=1)
"""`expires_at` was computed shortly before `created_at` was set."""


class Overrun(NamedTuple):
    """A limit that a job has exceeded, and the time that it took."""

    kind: str
    limit_seconds: float
    elapsed_seconds: float

    @property
    def in_whole(self) -> tuple[float, float]:
        """The limit and the time that it took, without a fraction if they have none."""
        return _whole(self.limit_seconds), _whole(self.elapsed_seconds)

    def error(self, attempt: int, occurred_at: str) -> ErrorRecord:
        """Return the error (section 8)."""
        kind, code, text = _ERRORS[self.kind]
        limit, elapsed = self.in_whole
        return ErrorRecord(
            type=kind,
            message=text.format(self.limit_seconds),
            code=code,
            attempt=attempt,
            occurred_at=occurred_at,
            timeout_kind=self.kind,
            limit_seconds=limit,
            elapsed_seconds=elapsed,
        )


def total_end(envelope: Envelope) -> datetime | None:
    """Return when the time of all attempts of a job is over, None if it has no such limit."""
    return end_after_creation(envelope, envelope.total_timeout)


def exceeded(envelope: Envelope, now: datetime) -> Overrun | None:
    """Return which limit has expired a waiting job; None if that is its own `expires_at`."""
    ends_at = ttl_end(envelope)
    if ends_at is not None and ends_at <= now:
        return Overrun(ENQUEUE_TTL, seconds_of(envelope.enqueue_ttl), _age(envelope, now))
    return exceeded_total(envelope, now)


def exceeded_total(envelope: Envelope, now: datetime) -> Overrun | None:
    """Return the limit of all attempts if a job has reached it."""
    ends_at = total_end(envelope)
    if ends_at is None or ends_at - _TOLERANCE > now:
        return None
    limit = seconds_of(envelope.total_timeout)
    return Overrun(TOTAL, limit, max(limit, _age(envelope, now)))


def _age(envelope: Envelope, now: datetime) -> float:
    created_at = parse_timestamp(envelope.created_at or "", "created_at") if envelope.created_at else now
    return (now - created_at).total_seconds()


def _whole(seconds: float) -> float:
    """Return a number of seconds without a fraction, if it has none; at most milliseconds otherwise."""
    rounded = round(seconds, 3)
    return int(rounded) if rounded == int(rounded) else rounded
