"""Saves the history of jobs across restarts: one record for each active minute, for a day.

Servers of one broker write the same minutes, since all of them count the same jobs: a later record replaces an
earlier one. In a minute without a record, nothing changed or no server ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from waybill.backend.history import DAY, MINUTE, Done, History, HistoryStep, Wait
from waybill.ojs.coordinator.records import Record, Records
from waybill.ojs.spec.timestamps import format_unix_time

KIND: Final = "history/"
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

    async def read(self) -> None:
        """Load the saved history."""
        now = self._clock()
        self._next = int(now // MINUTE)
        steps: list[HistoryStep] = []
        after = _key(int((now - DAY) // MINUTE))
        while found := await self._records.list(KIND, READ_AT_ONCE, after):
            steps += [step for one in found if (step := _step(one)) is not None]
            after = found[-1].key
            if len(found) < READ_AT_ONCE:
                break
        self._history.restore(steps)

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
