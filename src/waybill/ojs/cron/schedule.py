"""When a cron job is due: an expression in a time zone, or an interval (ojs-cron sections 4.1 and 5).

A tick of an expression is a local time, and each local time fires once:

    clocks jump ahead      02:00 EST ... 03:00 EDT    02:30 does not exist: the tick is skipped, when the clock jumps
    clocks fall back       01:30 EDT ... 01:30 EST    01:30 comes twice: the tick is the first one

So ticks of one schedule are in order by local time, and by the moment at which they are due as well. A `Tick` has both;
the local time is its key, and names it in events. Ticks of an interval are whole intervals after its anchor.
"""

from __future__ import annotations

import functools
import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from waybill.ojs.cron.expression import Expression
from waybill.ojs.errors import InvalidJob

EVERY: Final = "@every"
MAX_INTERVAL_MS: Final = 366 * 86_400_000
_DAY_MS: Final = 86_400_000
_WINDOWS_MS: Final = (60_000, 3_600_000, _DAY_MS, 32 * _DAY_MS, 400 * _DAY_MS, 9 * 366 * _DAY_MS)
_PART: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)")
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_ABBREVIATIONS: Final = frozenset({
    "EST", "MST", "HST", "CET", "EET", "MET", "WET", "EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT",
})  # fmt: skip
"""Names of the database that are abbreviations and not places (section 5.1)."""
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - local times are reckoned from it, too


class Tick(NamedTuple):
    """An occurrence: its time in Unix milliseconds, its key, and whether its local time exists."""

    due_ms: int
    key: str
    exists: bool = True

    @property
    def order(self) -> tuple[int, str]:
        """The sort key of ticks of one schedule."""
        return self.due_ms, self.key


class Schedule:
    """The ticks of a cron job."""

    def next(self, after_ms: int, after_key: str = "") -> Tick | None:
        """Return the first tick after a time, or after the tick with this time and key; None if there is none."""
        raise NotImplementedError

    def latest(self, moment_ms: int) -> Tick | None:
        """Return the last tick at or before a time, None if there is none within a few years."""
        raise NotImplementedError


class CronSchedule(Schedule):
    """An expression in a time zone."""

    def __init__(self, cron: str, timezone: str) -> None:
        """Raises InvalidJob naming the invalid field."""
        self.expression = Expression(cron)
        self._zone = zone(timezone)

    def next(self, after_ms: int, after_key: str = "") -> Tick | None:
        local: datetime | None = self._local(after_ms, after_key)
        while local is not None and (local := self.expression.after(local)) is not None:
            tick = self._tick(local)
            # In an hour that comes twice, this is its second time: those of the first are over.
            if after_key or tick.due_ms > after_ms:
                return tick
        return None

    def latest(self, moment_ms: int) -> Tick | None:
        for window_ms in _WINDOWS_MS:
            found, tick = None, self.next(moment_ms - window_ms)
            while tick is not None and tick.due_ms <= moment_ms:
                found, tick = tick, self.next(*tick.order)
            if found is not None:
                return found
        return None

    def _local(self, after_ms: int, after_key: str) -> datetime:
        if after_key:
            try:
                return datetime.fromisoformat(after_key)
            except ValueError:
                pass
        moment = _EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=after_ms)
        return moment.astimezone(self._zone).replace(tzinfo=None, fold=0)

    def _tick(self, local: datetime) -> Tick:
        key = local.isoformat()
        before, after = (local.replace(tzinfo=self._zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        due = local - before
        if after > before:
            # The clock jumps over it: see PEP 495.
            return Tick(_milliseconds(self._jump(local - after, due)), key, exists=False)
        return Tick(_milliseconds(due), key)

    def _jump(self, early: datetime, late: datetime) -> datetime:
        """Return the moment of the single offset change between two naive times in UTC, to the second."""
        offset = self._offset(early)
        while late - early > timedelta(seconds=1):
            middle = (early + (late - early) / 2).replace(microsecond=0)
            if middle <= early:
                break
            early, late = (middle, late) if self._offset(middle) == offset else (early, middle)
        return late

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.replace(tzinfo=UTC).astimezone(self._zone).utcoffset()


class Interval(Schedule):
    """A fixed interval after an anchor."""

    def __init__(self, interval_ms: int, anchor_ms: int) -> None:
        """Raises InvalidJob for an interval below a millisecond or above a year."""
        if not 1 <= interval_ms <= MAX_INTERVAL_MS:
            raise InvalidJob("cron", "an interval is from a millisecond to 366 days")
        self.interval_ms = interval_ms
        self._anchor_ms = anchor_ms

    def next(self, after_ms: int, after_key: str = "") -> Tick | None:
        count = max((after_ms - self._anchor_ms) // self.interval_ms + 1, 1)
        due_ms = self._anchor_ms + count * self.interval_ms
        return Tick(due_ms, (_EPOCH + timedelta(milliseconds=due_ms)).isoformat())

    def latest(self, moment_ms: int) -> Tick | None:
        tick = self.next(moment_ms - self.interval_ms)
        return tick if tick is not None and tick.due_ms <= moment_ms else None


@functools.lru_cache(1000)
def read_schedule(cron: str, timezone: str, anchor_ms: int) -> Schedule:
    """Return the schedule of a `cron` field. Raises InvalidJob naming the invalid field."""
    zone(timezone)
    if cron.lstrip().startswith(EVERY):
        return Interval(read_every(cron), anchor_ms)
    return CronSchedule(cron, timezone)


def read_every(cron: str) -> int:
    """Return the milliseconds of `@every 1h30m`, written as Go writes durations. Raises InvalidJob."""
    text = cron.strip().removeprefix(EVERY)
    duration = text.strip()
    if text[:1].isspace() and duration and _PART.sub("", duration) == "":
        total = sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(duration))
        if total == int(total) and 1 <= total <= MAX_INTERVAL_MS:
            return int(total)
    raise InvalidJob("cron", f"{cron!r} must be like `@every 1h30m`, from 1ms to 366 days, with the units h m s ms")


def write_every(interval: timedelta) -> str:
    """Return an interval in the form of `@every`. Raises InvalidJob unless it is a positive whole number of ms."""
    milliseconds = interval / timedelta(milliseconds=1)
    if milliseconds != int(milliseconds) or not 1 <= milliseconds <= MAX_INTERVAL_MS:
        raise InvalidJob("every", f"{interval} is not whole milliseconds from 1 to 366 days")
    rest, parts = int(milliseconds), []
    for unit in ("h", "m", "s", "ms"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return f"{EVERY} {''.join(parts)}"


@functools.lru_cache(1000)
def zone(name: str) -> zoneinfo.ZoneInfo:
    """Return a zone of the IANA database by its name. Raises InvalidJob for offsets and abbreviations, too."""
    if name not in _ABBREVIATIONS and name in _names():
        return zoneinfo.ZoneInfo(name)
    raise InvalidJob(
        "timezone", f"{name[:100]!r} is not in the IANA time zone database; use a name such as Europe/Berlin"
    )


@functools.cache
def _names() -> set[str]:
    return zoneinfo.available_timezones() - {"localtime", "Factory", "posixrules"}


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
