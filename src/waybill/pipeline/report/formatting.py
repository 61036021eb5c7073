"""Formats numbers, durations and times for people."""

from datetime import datetime, timedelta
from typing import Final

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_S: Final = 86_400
_LONGEST: Final = 160


def clipped(text: str | None, longest: int = _LONGEST) -> str:
    """A text of a job, truncated."""
    text = text or ""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def number(value: float) -> str:
    """A count with thousands separators, a fraction with its significant digits: 12,345 or 3.2 or 0.04."""
    if value == int(value):
        return f"{int(value):,}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def share(part: int, whole: int) -> str:
    """A part as a percentage of the whole, never rounded up to all of it; a dash if there is nothing."""
    if not whole:
        return "–"  # noqa: RUF001 - an en dash means no figure
    percent = 100 * part / whole
    if part < whole:
        percent = min(percent, 99.99)
    if part:
        percent = max(percent, 0.01)
    return f"{percent:.2f}".rstrip("0").rstrip(".") + " %"


def ratio(value: float | None) -> str:
    """A share that is known as a fraction, as a percentage; a dash if it is not known."""
    return share(0, 0) if value is None else share(round(value * 1_000_000), 1_000_000)


def duration(milliseconds: float | None) -> str:
    """Milliseconds in a suitable unit: 7 ms, 1.25 s, 3 min 20 s, 2 h 5 min."""
    if milliseconds is None:
        return "–"  # noqa: RUF001 - an en dash means no figure
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    if milliseconds < _MINUTE_MS:
        return f"{milliseconds / 1000:.3g} s"
    if milliseconds < _HOUR_MS:
        minutes, rest = divmod(round(milliseconds / 1000), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, rest = divmod(round(milliseconds / _MINUTE_MS), 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def moment(time: datetime, step: timedelta) -> str:
    """A time as a label of an axis whose labels are `step` apart."""
    if step.total_seconds() >= _DAY_S:
        return f"{time:%d %b}"
    return f"{time:%H:%M}" if step.total_seconds() >= 60 else f"{time:%H:%M:%S}"


def span(start: datetime | None, end: datetime | None) -> str:
    """A time span, with the date only once if it is the same."""
    if start is None or end is None:
        return "no events yet"
    last = f"{end:%H:%M:%S}" if start.date() == end.date() else f"{end:%d %b %Y %H:%M:%S}"
    return f"{start:%d %b %Y %H:%M:%S} to {last} UTC"
