"""Times and durations as the envelope writes them: RFC 3339 with a zone, ISO 8601 (ojs-json-format section 5)."""

from __future__ import annotations

import functools
import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta

import msgspec

from waybill.ojs.errors import InvalidJob

_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def format_timestamp(moment: datetime) -> str:
    """Write a moment in UTC with milliseconds: `2026-02-15T10:30:00.000Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def format_unix_time(seconds: float) -> str:
    """Write Unix seconds in UTC with milliseconds."""
    second, millisecond = divmod(round(seconds * 1_000_000) // 1000, 1000)
    return f"{_to_the_second(second)}.{millisecond:03d}Z"


@functools.lru_cache(1)
def _to_the_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:-6]


def time_after(before: object, now: datetime) -> str:
    """Return `now`, or the next millisecond after the time `before`, if that is not before it.

    The time at which a job is enqueued again tells its message from the former one, whatever clock gave that its time.
    A time that is more than a day ahead is from no clock, and ignored.
    """
    text = format_timestamp(now)
    try:
        last = parse_timestamp(str(before), "time")
    except InvalidJob:
        return text
    if last - now > timedelta(days=1) or format_timestamp(last) < text:
        return text
    return format_timestamp(last + timedelta(milliseconds=1))


def parse_timestamp(text: str, field: str) -> datetime:
    """Read an RFC 3339 timestamp; its offset is kept.

    Raises InvalidJob naming `field` for anything else, above all for a time without a zone.
    """
    if _RFC_3339.fullmatch(text) is None:
        raise InvalidJob(field, f"{text!r} is not an RFC 3339 timestamp with a time zone")
    try:
        moment = datetime.fromisoformat(text.upper())
        if moment.year in {MINYEAR, MAXYEAR}:
            # In UTC, it may be in a year that `datetime` does not support: callers may compute with it.
            moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidJob(field, f"{text!r} is not a valid time: {error}") from error
    return moment


def parse_duration(text: str, field: str) -> timedelta:
    """Read an ISO 8601 duration of weeks, days, hours, minutes and seconds (`PT1.5S`, `P1DT12H`).

    Years and months are refused, because their length is not fixed. Raises InvalidJob naming `field`.
    """
    try:
        return msgspec.convert(text, timedelta)
    except msgspec.ValidationError as error:
        raise InvalidJob(field, f"{text!r} is not an ISO 8601 duration") from error


def format_duration(duration: timedelta) -> str:
    """Write a duration of ISO 8601 with hours, minutes and seconds: `PT1H`, `PT1M30S`, `PT0.5S`."""
    whole_minutes, seconds = divmod(duration.total_seconds(), 60)
    hours, minutes = divmod(int(whole_minutes), 60)
    parts = [f"{count:g}{unit}" for count, unit in ((hours, "H"), (minutes, "M"), (seconds, "S")) if count]
    return f"PT{''.join(parts) or '0S'}"


def resolve_moment(value: str | datetime | timedelta, field: str, now: datetime) -> str:
    """Return a caller's time as RFC 3339 text.

    A timedelta, or text like `+PT2S`, counts from `now`. A datetime must have a time zone, and text keeps its own
    offset.
    """
    if isinstance(value, timedelta):
        return _after(now, value, field)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidJob(field, "a datetime without a time zone is ambiguous")
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if value.startswith("+"):
        return _after(now, parse_duration(value[1:], field), field)
    parse_timestamp(value, field)
    return value


def _after(now: datetime, duration: timedelta, field: str) -> str:
    try:
        return format_timestamp(now + duration)
    except OverflowError as error:
        raise InvalidJob(field, "is too far away") from error
