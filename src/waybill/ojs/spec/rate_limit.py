"""The limits that a job asks for itself (ojs-rate-limiting section 6)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, Literal

import msgspec

from waybill.ojs.errors import InvalidJob

_KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]{0,127}")

MAX_COUNT: Final = 1_000_000
SHORTEST: Final = timedelta(milliseconds=1)
LONGEST: Final = timedelta(days=365)

OnLimit = Literal["wait", "reschedule", "drop"]


class Window(msgspec.Struct, frozen=True):
    """`limit` starts in each `period`."""

    limit: int
    period: timedelta


class RateLimitPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is limited by `key`: jobs at a time, starts in a window, starts evenly spaced."""

    key: str
    concurrency: int | None = None
    rate: Window | None = None
    throttle: Window | None = None
    on_limit: OnLimit = "wait"


def read_rate_limit(value: dict[str, object]) -> RateLimitPolicy:
    """Return the policy in an envelope. Raises InvalidJob naming the field."""
    try:
        policy = msgspec.convert(value, RateLimitPolicy)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidJob(f"rate_limit{place.rstrip('`')}", text) from error
    check_key(policy.key)
    if policy.concurrency is not None and not 1 <= policy.concurrency <= MAX_COUNT:
        text = f"must be from 1 to {MAX_COUNT}: to stop the jobs of a queue, pause it"
        raise InvalidJob("rate_limit.concurrency", text)
    for name, window in (("rate", policy.rate), ("throttle", policy.throttle)):
        if window is not None and not 1 <= window.limit <= MAX_COUNT:
            raise InvalidJob(f"rate_limit.{name}.limit", f"must be from 1 to {MAX_COUNT}")
        if window is not None and not SHORTEST <= window.period <= LONGEST:
            raise InvalidJob(f"rate_limit.{name}.period", "must be from a millisecond to a year")
    return policy


def check_key(key: str) -> None:
    """Raise InvalidJob unless this can be the key of a limit (ojs-rate-limiting section 6.2)."""
    if _KEY.fullmatch(key) is None:
        raise InvalidJob("rate_limit.key", f"{key!r} is not letters, digits, '.', '_', ':' and '-', 128 at most")
