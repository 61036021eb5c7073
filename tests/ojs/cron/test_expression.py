"""Cron expressions: each field, the days of the month and the week, and what is refused."""

import random
from datetime import datetime, timedelta

import pytest

from waybill.ojs import InvalidJob
from waybill.ojs.cron.expression import ALIASES, Expression


def runs(text: str, start: str, count: int) -> list[str]:
    """Return the first times of an expression after a start."""
    expression = Expression(text)
    found: list[str] = []
    at: datetime | None = datetime.fromisoformat(start)
    while len(found) < count and at is not None and (at := expression.after(at)) is not None:
        found.append(at.isoformat(" "))
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/15 * * * *", ["2026-01-31 23:45:00", "2026-02-01 00:00:00"]),
        ("30 9 * * mon-FRI", ["2026-02-02 09:30:00", "2026-02-03 09:30:00"]),
        ("0 0 1 Jan,jul *", ["2026-07-01 00:00:00", "2027-01-01 00:00:00"]),
        ("*/20 59 23 * * *", ["2026-01-31 23:59:00", "2026-01-31 23:59:20"]),
        ("5 4 * * 7", ["2026-02-01 04:05:00", "2026-02-08 04:05:00"]),
        ("5 4 * * SUN", ["2026-02-01 04:05:00", "2026-02-08 04:05:00"]),
        ("5 4 * * 0-0", ["2026-02-01 04:05:00", "2026-02-08 04:05:00"]),
        ("0 12 * * FRI-SUN", ["2026-02-01 12:00:00", "2026-02-06 12:00:00"]),
        ("0 0 L * *", ["2026-02-28 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 L-2 * *", ["2026-02-26 00:00:00", "2026-03-29 00:00:00"]),
        ("0 0 15W * *", ["2026-02-16 00:00:00", "2026-03-16 00:00:00"]),
        ("0 0 1W * *", ["2026-02-02 00:00:00", "2026-03-02 00:00:00"]),
        ("0 0 31W 5,8 *", ["2026-05-29 00:00:00", "2026-08-31 00:00:00"]),
        ("0 0 LW * *", ["2026-02-27 00:00:00", "2026-03-31 00:00:00"]),
        ("0 0 * * 5#3", ["2026-02-20 00:00:00", "2026-03-20 00:00:00"]),
        ("0 0 * * FRI#5", ["2026-05-29 00:00:00", "2026-07-31 00:00:00"]),
        ("0 0 * * 5L", ["2026-02-27 00:00:00", "2026-03-27 00:00:00"]),
        ("0 0 13 * FRI", ["2026-02-06 00:00:00", "2026-02-13 00:00:00"]),
        ("0 0 */10 * MON", ["2026-05-11 00:00:00", "2026-06-01 00:00:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00:00", "2032-02-29 00:00:00"]),
        ("0 22/1 * * *", ["2026-01-31 23:00:00", "2026-02-01 22:00:00"]),
        ("1-5/2,58 0 * * *", ["2026-02-01 00:01:00", "2026-02-01 00:03:00"]),
    ],
)
def test_each_field_says_what_it_says(text: str, expected: list[str]) -> None:
    assert runs(text, "2026-01-31T22:00:00" if text != "*/15 * * * *" else "2026-01-31T23:30:00", 2) == expected


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_aliases_are_the_expressions_that_they_stand_for(alias: str) -> None:
    for written in (alias, alias.upper(), f" {alias} "):
        assert runs(written, "2026-01-31T22:00:00", 3) == runs(ALIASES[alias], "2026-01-31T22:00:00", 3)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *",
        "* * * 0 *", "* * * * 8", "60 * * * * *", "*/0 * * * *", "*/-1 * * * *", "*/ * * * *", "5- * * * *",
        "-5 * * * *", "9-5 * * * *", "1,,2 * * * *", ",1 * * * *", "a * * * *", "* * * FOO *", "* * * * MO",
        "1.5 * * * *", "٣ * * * *", "* * W * *", "* * 0W * *", "* * 32W * *", "* * * * 5#6", "* * * * 5#0",
        "* * * * #2",
        "* * * * 8#1", "L * * * *", "@often", "@reboot", "* * L-31 * *", "*" * 600, "\0 * * * *", "* * 1-L * *",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob) as error:
        Expression(text)
    assert error.value.field == "cron"


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("0 0 31 * *", "months without a day 31 are skipped"),
        ("0 0 29 2 *", "months without a day 29 are skipped"),
        ("0 0 31 2 *", "it never fires: none of its months has that day"),
        ("0 0 31 1,3 *", None),
        ("0 0 28 * *", None),
        ("0 0 * * *", None),
    ],
)
def test_days_that_not_every_month_has_are_told_of(text: str, warning: str | None) -> None:
    assert Expression(text).warning == warning


def matches(at: datetime, allowed: list[set[int]], *, both: bool) -> bool:
    """Say whether a time is among the minutes, hours, days, months and weekdays that are allowed."""
    minutes, hours, days, months, weekdays = allowed
    by_day, by_weekday = at.day in days, at.isoweekday() % 7 in weekdays
    day = by_day and by_weekday if both else by_day or by_weekday
    return at.minute in minutes and at.hour in hours and at.month in months and day


def test_it_finds_what_looking_at_every_minute_finds() -> None:
    chance = random.Random(18)

    def field(least: int, most: int) -> tuple[str, set[int]]:
        kind = chance.randrange(4)
        if kind == 0:
            return "*", set(range(least, most + 1))
        if kind == 1:
            step = chance.randint(1, most)
            return f"*/{step}", set(range(least, most + 1, step))
        if kind == 2:
            first = chance.randint(least, most)
            last = chance.randint(first, most)
            return f"{first}-{last}", set(range(first, last + 1))
        some = {chance.randint(least, most) for _ in range(3)}
        return ",".join(map(str, some)), some

    start = datetime.fromisoformat("2027-12-30T20:00:00")
    for _ in range(40):
        fields = [field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)]
        allowed = [numbers for _, numbers in fields]
        both = fields[2][0].startswith("*") or fields[4][0].startswith("*")
        walked = (start + timedelta(minutes=count) for count in range(1, 4000))
        expected = [at.isoformat(" ") for at in walked if matches(at, allowed, both=both)][:30]
        found = runs(" ".join(text for text, _ in fields), "2027-12-30T20:00:00", len(expected))
        assert found == expected
