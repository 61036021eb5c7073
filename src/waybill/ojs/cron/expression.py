"""Cron expressions (ojs-cron sections 3 and 4): which local times match.

    second (optional)  minute  hour  day of month  month  day of week
    0-59               0-59    0-23  1-31 L W      1-12   0-7 L #

An expression has no time zone: it steps from one local time to the next, and `schedule` converts these. Fields are sets
of numbers; the days of a month are computed month by month, and cached.

If both the day of month and the day of week are restricted, a day needs to match one of them only, as in POSIX and
Vixie cron. A field that begins with `*` restricts nothing in this sense.
"""

from __future__ import annotations

import calendar
import re
from bisect import bisect_left
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from waybill.ojs.errors import InvalidJob

MAX_LENGTH: Final = 500
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SHORTEST: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The days of each month, in the shortest year."""
_MAX_YEARS_AHEAD: Final = 50
_SOME_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time of no zone
_DECIMAL: Final = re.compile(r"[0-9]{1,4}")


class _Field(NamedTuple):
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    first_name: int = 0


_SECOND: Final = _Field("second", 0, 59)
_MINUTE: Final = _Field("minute", 0, 59)
_HOUR: Final = _Field("hour", 0, 23)
_DAY: Final = _Field("day of month", 1, 31)
_MONTH: Final = _Field("month", 1, 12, _MONTHS, 1)
_WEEKDAY: Final = _Field("day of week", 0, 7, _WEEKDAYS, 0)


class Expression:
    """An expression of five or six fields."""

    def __init__(self, text: str) -> None:
        """Parse an expression, or an alias such as `@daily`. Raises InvalidJob naming the invalid field."""
        if len(text) > MAX_LENGTH:
            raise _invalid(f"is longer than {MAX_LENGTH} characters")
        fields = ALIASES.get(text.strip().lower(), text).split()
        if len(fields) not in {5, 6}:
            raise _invalid(f"{text!r} has {len(fields)} fields; it needs 5 (6 with seconds), or a name such as @daily")
        seconds, minutes, hours, days, months, weekdays = fields if len(fields) == 6 else ["0", *fields]
        self.text = text
        self._seconds = sorted(_numbers(_SECOND, seconds))
        self._minutes = sorted(_numbers(_MINUTE, minutes))
        self._hours = sorted(_numbers(_HOUR, hours))
        self._months = sorted(_numbers(_MONTH, months))
        self._days = _Days(days, weekdays)
        self._matching_days = lru_cache(64)(self._days.of)

    @property
    def warning(self) -> str | None:
        """Return a warning about days that not every month has."""
        if self.after(_SOME_DAY) is None:
            return "it never fires: none of its months has that day"
        day = self._days.rarest_day
        shortest = min(_SHORTEST[month - 1] for month in self._months)
        return f"months without a day {day} are skipped" if day > shortest else None

    def after(self, moment: datetime) -> datetime | None:
        """Return the first matching local time after another, None if there is none within 50 years.

        Both are naive, in whole seconds.
        """
        start = moment.replace(microsecond=0) + timedelta(seconds=1)
        time = self._time_of_day(start.hour, start.minute, start.second)
        year, month, day = start.year, start.month, start.day
        if time is None:
            time, day = self._first_time, day + 1
        for _ in range(_MAX_YEARS_AHEAD * 12):
            if month in self._months:
                days = self._matching_days(year, month)
                at = bisect_left(days, day)
                if at < len(days):
                    is_today = (year, month, days[at]) == (start.year, start.month, start.day)
                    return datetime(year, month, days[at], *(time if is_today else self._first_time))  # noqa: DTZ001 - local
            year, month, day = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)
            if year > 9999:
                return None
        return None

    @property
    def _first_time(self) -> tuple[int, int, int]:
        return self._hours[0], self._minutes[0], self._seconds[0]

    def _time_of_day(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """Return the first matching time of a day, not before another time, None if there is none."""
        hours, minutes, seconds = self._hours, self._minutes, self._seconds
        at = bisect_left(hours, hour)
        if at == len(hours):
            return None
        if hours[at] > hour:
            return hours[at], minutes[0], seconds[0]
        minute_at = bisect_left(minutes, minute)
        if minute_at < len(minutes) and minutes[minute_at] == minute:
            second_at = bisect_left(seconds, second)
            if second_at < len(seconds):
                return hour, minute, seconds[second_at]
            minute_at += 1
        if minute_at < len(minutes):
            return hour, minutes[minute_at], seconds[0]
        return (hours[at + 1], minutes[0], seconds[0]) if at + 1 < len(hours) else None


class _Days:
    """The days of a month that the day of month and the day of week allow, together."""

    def __init__(self, days: str, weekdays: str) -> None:
        self._any_day = days.startswith("*")
        self._any_weekday = weekdays.startswith("*")
        self._days: set[int] = set()
        self._last_days: set[int] = set()
        """Days before the last of the month: 0 for L."""
        self._near: set[int] = set()
        """Days that stand for their nearest weekday; 0 for the last weekday of the month."""
        self._weekdays: set[int] = set()
        self._nth: set[tuple[int, int]] = set()
        """A weekday and its number in the month; -1 for the last one."""
        for part in days.split(","):
            self._add_day(part.upper())
        for part in weekdays.split(","):
            self._add_weekday(part.upper())

    @property
    def rarest_day(self) -> int:
        """Return the greatest day number in it, 0 if there is none."""
        return 0 if self._any_day else max(self._days, default=0)

    def of(self, year: int, month: int) -> list[int]:
        """Return the days of a month that match, in order."""
        first, length = calendar.monthrange(year, month)
        # Monday is 0 in Python, Sunday is 0 in cron.
        first = (first + 1) % 7
        days = range(1, length + 1)
        by_day = {day for day in self._days if day <= length} | {length - back for back in self._last_days}
        by_day |= {_nearest(day or length, first, length) for day in self._near if day <= length}
        by_weekday = {day for day in days if (first + day - 1) % 7 in self._weekdays}
        by_weekday |= {day for weekday, number in self._nth if (day := _nth(weekday, number, first, length))}
        both = self._any_day or self._any_weekday
        return sorted(day for day in (by_day & by_weekday if both else by_day | by_weekday) if 1 <= day <= length)

    def _add_day(self, part: str) -> None:
        if part == "L":
            self._last_days.add(0)
        elif part.startswith("L-"):
            self._last_days.add(_number(_Field("day of month after L-", 0, 30), part[2:]))
        elif part in {"LW", "WL"}:
            self._near.add(0)
        elif part.endswith("W"):
            self._near.add(_number(_DAY, part[:-1]))
        else:
            self._days |= _numbers(_DAY, part)

    def _add_weekday(self, part: str) -> None:
        weekday, mark, number = part.partition("#")
        if mark:
            self._nth.add((_number(_WEEKDAY, weekday) % 7, _number(_Field("number after #", 1, 5), number)))
        elif part.endswith("L") and part != "L":
            self._nth.add((_number(_WEEKDAY, part[:-1]) % 7, -1))
        elif part == "L":
            # As in Quartz: the last day of the week.
            self._weekdays.add(6)
        else:
            self._weekdays |= {number % 7 for number in _numbers(_WEEKDAY, part)}


def _nearest(day: int, first: int, length: int) -> int:
    """Return the day from Monday to Friday that is nearest to a day, within its month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else day + 2
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _nth(weekday: int, number: int, first: int, length: int) -> int:
    """Return the day of the n-th such weekday of a month, 0 if there is none."""
    day = (weekday - first) % 7 + 1
    if number == -1:
        return day + (length - day) // 7 * 7
    day += (number - 1) * 7
    return day if day <= length else 0


def _numbers(field: _Field, text: str) -> set[int]:
    """Return the numbers in a list of values, ranges and steps."""
    found: set[int] = set()
    for part in text.upper().split(","):
        whole, slash, step_text = part.partition("/")
        step = _number(_Field(f"step of {field.name}", 1, field.most + 1), step_text) if slash else 1
        first_text, dash, last_text = whole.partition("-")
        if whole == "*":
            # 7 is Sunday once more.
            first, last = field.least, min(field.most, 6) if field is _WEEKDAY else field.most
        elif dash:
            first, last = _number(field, first_text), _number(field, last_text)
            if field is _WEEKDAY and last == 0 < first:
                last = 7
        else:
            first = _number(field, first_text)
            last = field.most if slash else first
        if first > last:
            raise _invalid(f"{part!r} of the {field.name} ends before it begins")
        found.update(range(first, last + 1, step))
    return found


def _number(field: _Field, text: str) -> int:
    """Parse a number or a name of the field. Raises InvalidJob naming the field."""
    if text in field.names:
        return field.names.index(text) + field.first_name
    if _DECIMAL.fullmatch(text) is None:
        raise _invalid(f"{text!r} is not a {field.name}")
    number = int(text)
    if not field.least <= number <= field.most:
        raise _invalid(f"the {field.name} is {number}, but must be from {field.least} to {field.most}")
    return number


def _invalid(message: str) -> InvalidJob:
    return InvalidJob("cron", message)
