"""Retry policies: how often, how long to wait, and which errors end a job at once (ojs-retry.md).

Delays are computed exactly, then rounded *up* to one of ten fixed buckets: each distinct delay needs a queue of its
own on the broker, because AMQP expires messages in queue order, and random jitter would make a queue per message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from datetime import timedelta
from math import inf
from typing import Final, Literal

import msgspec

from waybill.ojs.errors import InvalidJob

Backoff = Literal["exponential", "linear", "polynomial", "none"]
OnExhaustion = Literal["discard", "dead_letter"]

RETRY_BUCKETS_MS: Final = (1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000, 256000, 300000)
"""The delays that have a retry queue, in milliseconds."""

_INVALID: Final = "INVALID_RETRY_POLICY"


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A retry policy; omitted fields have the defaults of the specification (section 8).

    `max_attempts` counts all attempts, so 0 and 1 both mean no retry. `backoff_strategy` is the extension field of
    section 3. A value that breaks a rule of section 11 raises InvalidJob naming the field.
    """

    max_attempts: int = 3
    initial_interval: timedelta = timedelta(seconds=1)
    backoff_coefficient: float = 2.0
    max_interval: timedelta = timedelta(minutes=5)
    jitter: bool = True
    non_retryable_errors: Sequence[str] = ()
    on_exhaustion: OnExhaustion = "discard"
    backoff_strategy: Backoff = "exponential"

    def __post_init__(self) -> None:
        """Check the rules that a type cannot express, and frequent mistakes of calls without a type checker."""
        for name in ("initial_interval", "max_interval"):
            interval: object = getattr(self, name)
            if not isinstance(interval, timedelta):
                raise TypeError(f"Retry: {name} must be a timedelta such as timedelta(seconds=5), not {interval!r}")
        if self.max_attempts < 0:
            raise InvalidJob("retry.max_attempts", "must not be negative", code=_INVALID)
        if self.initial_interval <= timedelta(0):
            raise InvalidJob("retry.initial_interval", "must be greater than zero", code=_INVALID)
        if not 1.0 <= self.backoff_coefficient < inf:
            raise InvalidJob("retry.backoff_coefficient", "must be a number of at least 1.0", code=_INVALID)
        if self.max_interval < self.initial_interval:
            raise InvalidJob("retry.max_interval", "must not be less than initial_interval", code=_INVALID)


DEFAULT_RETRY: Final = Retry()


def raw_delay_seconds(policy: Retry, retry_number: int) -> float:
    """Return the wait before retry `retry_number` (1 is the first retry) before cap and jitter, in seconds."""
    initial = policy.initial_interval.total_seconds()
    try:
        match policy.backoff_strategy:
            case "exponential":
                return float(initial * policy.backoff_coefficient ** (retry_number - 1))
            case "polynomial":
                return float(initial * retry_number**policy.backoff_coefficient)
            case "linear":
                return initial * retry_number
            case "none":
                return initial
    except OverflowError:
        return float("inf")


def retry_delay_seconds(policy: Retry, retry_number: int, random: float) -> float:
    """Return the wait before retry `retry_number` in seconds, capped, jittered and capped again (section 5).

    `random` is uniform in [0, 1).
    """
    cap = policy.max_interval.total_seconds()
    delay = min(raw_delay_seconds(policy, retry_number), cap)
    if policy.jitter:
        delay = min(delay * (0.5 + random), cap)
    return delay


def retry_bucket_ms(delay_seconds: float) -> int | None:
    """Return the delay of the smallest retry queue that waits at least that long; None if there is none."""
    index = bisect_left(RETRY_BUCKETS_MS, delay_seconds * 1000)
    return RETRY_BUCKETS_MS[index] if index < len(RETRY_BUCKETS_MS) else None


def is_non_retryable(policy: Retry, error_type: str) -> bool:
    """Return whether the policy names this error type, exactly or by a prefix like `auth.*` (section 6.2)."""
    return any(
        error_type == entry or (entry.endswith(".*") and error_type.startswith(entry[:-1]))
        for entry in policy.non_retryable_errors
    )


def may_retry(policy: Retry, attempt: int, error_type: str) -> bool:
    """Return whether a job that failed in its attempt number `attempt` gets another one."""
    return attempt < policy.max_attempts and not is_non_retryable(policy, error_type)
