"""The scheduler with thousands of cron jobs that are due in the same second."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.ojs.cron import scheduler
from waybill.ojs.cron.scheduler import CronScheduler


class View:
    """Has cron jobs, and counts how many are read at a time."""

    def __init__(self, count: int) -> None:
        self.on_feature: list[object] = []
        self.most = 0
        self._rows = [(f"cron/{number:05}", SimpleNamespace(to_tell=[])) for number in range(count)]

    async def listed(self, _prefix: str, _kind: object, limit: int, after: str = "") -> list[tuple[str, Any]]:
        found = [row for row in self._rows if row[0] > after][:limit]
        self.most = max(self.most, len(found))
        return found


async def test_ticks_of_many_cron_jobs_are_decided_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand of them took a second of everybody."""
    view = View(1000)
    leader: Any = SimpleNamespace(on_change=[], leads=True, now=lambda: 1000.0)
    broker: Any = SimpleNamespace(connection=None)
    made = CronScheduler(broker, view, leader, "one")  # type: ignore[arg-type]
    looked, proposed = [0], [0]

    def wake_of(*_: object) -> int:
        looked[-1] += 1
        return 0

    def propose(*_: object) -> None:
        proposed[-1] += 1

    monkeypatch.setattr(made, "_wake_of", wake_of)
    monkeypatch.setattr(made, "_propose", propose)
    looking = asyncio.create_task(made._look_at_all())
    while not looking.done():
        looked.append(0)
        proposed.append(0)
        await asyncio.sleep(0)
    await looking
    assert (sum(looked), sum(proposed)) == (1000, 1000)
    assert (max(looked), max(proposed), view.most) == (scheduler.PORTION, scheduler.PORTION, scheduler.PAGE)
