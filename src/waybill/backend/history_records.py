"""Saves the history of jobs across restarts: one record for each active minute for a day, and hour for thirty days.

Servers of one broker write the same minutes, since all of them count the same jobs: a later record replaces an
earlier one. In a minute without a record, nothing changed or no server ran.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from waybill.backend.history import DAY, HOUR, MINUTE, Done, History, HistoryStep, Wait
from waybill.ojs.coordinator.records import Record, Records
from waybill.ojs.spec.timestamps import format_unix_time

KIND: Final = "history/"
HOURS: Final = "history-hour/"
KEPT_HOURS_SECONDS: Final = 30 * DAY
MOST_QUEUES: Final = 200
"""The busiest queues of a minute: a record has at most some ten kilobytes."""
READ_AT_ONCE: Final = 500


class Minute(msgspec.Struct):
    """The changes between two Unix times, in total and by queue: enqueued, completed and failed; and waits."""

    begin: float
    end: float
    total: Done
    queues: dict[str, Done]
    waits: dict[str, Wait] = {}


class HistoryRecords:
    """The records of one server's history."""

    def __init__(self, history: History, records: Records, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the Unix time."""
        self._history = history
        self._records = records
        self._clock = clock
        self._next = 0
        """The first minute that is not saved."""
        self._next_hour = 0

    async def read(self) -> None:
        """Load the saved history."""
        now = self._clock()
        self._next = int(now // MINUTE)
        saved_minutes = self._saved(KIND, _key(int((now - DAY) // MINUTE)))
        steps = [step async for one in saved_minutes if (step := _step(one)) is not None]
        self._history.restore(steps)
        first = int((now - DAY) // HOUR) + 1
        saved = [int(one.key.removeprefix(HOURS)) async for one in self._saved(HOURS, _hour_key(first - 1))]
        self._next_hour = max([first, *(hour + 1 for hour in saved)])

    async def hours(self, since: float) -> list[HistoryStep]:
        """Return the saved hours from a moment on that begin before the minutes of the history, oldest first."""
        oldest = self._history.oldest
        saved = self._saved(HOURS, _hour_key(int(since // HOUR) - 1))
        steps = [step async for one in saved if (step := _step(one)) is not None]
        return [step for step in steps if oldest is None or step.begin < oldest]

    async def _saved(self, kind: str, after: str) -> AsyncIterator[Record]:
        while found := await self._records.list(kind, READ_AT_ONCE, after):
            for one in found:
                yield one
            after = found[-1].key

    def write(self, *, is_last: bool = False) -> None:
        """Save finished minutes, with `is_last` also the current one. Does not wait."""
        present = int(self._clock() // MINUTE)
        for minute, steps in self._history.cut(self._next).items():
            if minute < present or is_last:
                kept = _minute(steps)
                if any(kept.total):
                    until = format_unix_time((minute + 1) * MINUTE + DAY)
                    self._records.put_soon(_key(minute), kept, expires_at=until)
        self._next = present
        hour = int(self._clock() // HOUR)
        for number in range(self._next_hour, hour):
            steps = self._history.within(number * HOUR, (number + 1) * HOUR)
            if steps and any((kept := _minute(steps)).total):
                until = format_unix_time((number + 1) * HOUR + KEPT_HOURS_SECONDS)
                self._records.put_soon(_hour_key(number), kept, expires_at=until)
        self._next_hour = hour


def _hour_key(hour: int) -> str:
    return f"{HOURS}{max(hour, 0):08d}"


def _key(minute: int) -> str:
    return f"{KIND}{minute:010d}"


def _minute(steps: list[HistoryStep]) -> Minute:
    whole = HistoryStep(steps[0].begin)
    whole.end = steps[-1].end
    for step in steps:
        whole.add_all(step)
    busiest = sorted(whole.queues.items(), key=lambda one: sum(one[1]), reverse=True)[:MOST_QUEUES]
    waits = {queue: whole.waits[queue] for queue, _ in busiest if queue in whole.waits}
    return Minute(whole.begin, whole.end, whole.total, dict(busiest), waits)


def _step(record: Record) -> HistoryStep | None:
    try:
        kept = record.read(Minute)
    except msgspec.ValidationError:
        # A record of another version is ignored.
        return None
    step = HistoryStep(kept.begin)
    step.end, step.total, step.queues, step.waits = kept.end, kept.total, kept.queues, kept.waits
    return step
