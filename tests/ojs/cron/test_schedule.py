"""Time zones and intervals: when a tick is due, above all where clocks change."""

from datetime import datetime, timedelta

import pytest

from waybill.ojs import InvalidJob
from waybill.ojs.cron.definition import time_of
from waybill.ojs.cron.schedule import Schedule, read_every, read_schedule, write_every, zone


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def ticks(schedule: Schedule, start: str, count: int) -> list[str]:
    """Return when the first ticks after a moment are due, with `-` before those that do not exist."""
    found: list[str] = []
    tick = schedule.next(ms(start))
    while tick is not None and len(found) < count:
        found.append(("" if tick.exists else "-") + time_of(tick.due_ms)[:16] + " " + tick.key[11:16])
        tick = schedule.next(*tick.order)
    return found


def test_an_hour_that_is_left_out_fires_nothing() -> None:
    # New York, 8 March 2026: 02:00 EST is 03:00 EDT.
    assert ticks(read_schedule("30 2 * * *", "America/New_York", 0), "2026-03-07T00:00Z", 3) == [
        "2026-03-07T07:30 02:30", "-2026-03-08T07:00 02:30", "2026-03-09T06:30 02:30",
    ]  # fmt: skip
    assert ticks(read_schedule("*/30 * * * *", "America/New_York", 0), "2026-03-08T06:00Z", 5) == [
        "2026-03-08T06:30 01:30", "-2026-03-08T07:00 02:00", "-2026-03-08T07:00 02:30", "2026-03-08T07:00 03:00",
        "2026-03-08T07:30 03:30",
    ]  # fmt: skip


def test_an_hour_that_comes_twice_fires_the_first_time() -> None:
    # New York, 1 November 2026: 02:00 EDT is 01:00 EST.
    daily = read_schedule("30 1 * * *", "America/New_York", 0)
    assert ticks(daily, "2026-10-31T12:00Z", 2) == ["2026-11-01T05:30 01:30", "2026-11-02T06:30 01:30"]
    assert ticks(daily, "2026-11-01T06:10Z", 1) == ["2026-11-02T06:30 01:30"]
    assert ticks(read_schedule("0,30 * * * *", "America/New_York", 0), "2026-11-01T04:45Z", 4) == [
        "2026-11-01T05:00 01:00", "2026-11-01T05:30 01:30", "2026-11-01T07:00 02:00", "2026-11-01T07:30 02:30",
    ]  # fmt: skip


def test_half_an_hour_and_a_day_that_is_left_out() -> None:
    assert ticks(read_schedule("*/20 2 * * *", "Australia/Lord_Howe", 0), "2026-10-03T14:00Z", 4) == [
        "-2026-10-03T15:30 02:00", "-2026-10-03T15:30 02:20", "2026-10-03T15:40 02:40", "2026-10-04T15:00 02:00",
    ]  # fmt: skip
    # Samoa had no 30 December 2011.
    assert ticks(read_schedule("0 12 * * *", "Pacific/Apia", 0), "2011-12-29T00:00Z", 3) == [
        "2011-12-29T22:00 12:00", "-2011-12-30T10:00 12:00", "2011-12-30T22:00 12:00",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
@pytest.mark.parametrize(("first", "last"), [("2026-03-05", "2026-04-08"), ("2026-10-02", "2026-11-04")])
def test_every_local_time_fires_once_and_in_order(name: str, first: str, last: str) -> None:
    schedule, where = read_schedule("*/15 * * * *", name, 0), zone(name)
    found, tick = [], schedule.next(ms(f"{first}T00:00Z"))
    while tick is not None and tick.due_ms < ms(f"{last}T00:00Z"):
        found.append(tick)
        tick = schedule.next(*tick.order)
    walked: dict[str, int] = {}
    at, end = datetime.fromisoformat(f"{first}T00:15Z"), datetime.fromisoformat(f"{last}T00:00Z")
    while at < end:
        walked.setdefault(at.astimezone(where).replace(tzinfo=None, fold=0).isoformat(), int(at.timestamp() * 1000))
        at += timedelta(minutes=15)
    assert {one.key: one.due_ms for one in found if one.exists} == walked
    jumps = {"Europe/Berlin": ("2026-03", 4), "America/New_York": ("2026-03", 4), "Australia/Lord_Howe": ("2026-10", 2)}
    month, missing = jumps.get(name, ("none", 0))
    assert sum(not one.exists for one in found) == (missing if first.startswith(month) else 0)
    assert [one.order for one in found] == sorted(one.order for one in found)


def test_the_latest_tick_is_found_without_all_of_those_before() -> None:
    now = ms("2026-06-15T10:00:30Z")
    for cron in ("* * * * * *", "*/5 * * * *", "@daily", "@monthly", "@yearly", "0 0 29 2 *", "@every 7m"):
        schedule = read_schedule(cron, "Europe/Berlin", 0)
        tick = schedule.latest(now)
        assert tick is not None
        following = schedule.next(*tick.order)
        assert following is not None
        assert tick.due_ms <= now < following.due_ms
    assert read_schedule("0 0 31 2 *", "UTC", 0).latest(now) is None
    assert read_schedule("@every 7m", "UTC", now).latest(now) is None


def test_intervals_count_from_their_anchor() -> None:
    schedule = read_schedule("@every 1h30m", "UTC", ms("2026-01-01T00:10Z"))
    assert ticks(schedule, "2026-01-01T00:10Z", 2) == ["2026-01-01T01:40 01:40", "2026-01-01T03:10 03:10"]
    assert ticks(schedule, "2025-01-01T00:00Z", 1) == ["2026-01-01T01:40 01:40"]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("@every 30m", 1_800_000), ("@every 1h30m", 5_400_000), ("@every 45s", 45_000), ("@every 500ms", 500),
        ("@every 2h45m30s", 9_930_000), ("@every  1.5h", 5_400_000), (" @every 1s ", 1000),
    ],
)  # fmt: skip
def test_durations_are_those_of_go(text: str, milliseconds: int) -> None:
    assert read_every(text) == milliseconds
    assert read_every(write_every(timedelta(milliseconds=milliseconds))) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["@every", "@every ", "@every 5", "@every m", "@every 0s", "@every -5m", "@every 5d", "@every5m", "@every 5m x",
     "@every 0.1ms", "@every 9999999h", "@every 5 m"],
)  # fmt: skip
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob):
        read_schedule(text, "UTC", 0)


@pytest.mark.parametrize(
    "interval", [timedelta(0), timedelta(seconds=-1), timedelta(days=400), timedelta(microseconds=1)]
)
def test_intervals_are_whole_milliseconds(interval: timedelta) -> None:
    with pytest.raises(InvalidJob):
        write_every(interval)


@pytest.mark.parametrize(
    "name",
    ["", "+05:00", "-08:00", "UTC+5", "EST", "PST", "CST", "Mars/Olympus", "../etc/passwd", "/etc/localtime",
     "localtime", "europe/berlin", "Europe/Berlin\0", "x" * 300, "CET"],
)  # fmt: skip
def test_only_names_of_places_are_time_zones(name: str) -> None:
    with pytest.raises(InvalidJob) as error:
        read_schedule("@daily", name, 0)
    assert error.value.field == "timezone"
