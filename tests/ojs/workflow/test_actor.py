"""What the leader does for workflows, with a view and a broker that only count."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from waybill.ojs.spec.events import JobCancellation
from waybill.ojs.workflow import actor
from waybill.ojs.workflow.actor import WorkflowActor
from waybill.ojs.workflow.progress import Progress
from waybill.ojs.workflow.values import Plans


class Stream:
    """Folds events a little later, as a view of a stream does."""

    def __init__(self) -> None:
        self.on_feature: list[object] = []
        self.written = self.folded = self.most = 0
        self._expected: dict[str, asyncio.Future[None]] = {}

    def expect(self, _kind: str, job_id: str) -> asyncio.Future[None]:
        self._expected[job_id] = asyncio.get_running_loop().create_future()
        return self._expected[job_id]

    def record(self, subject: str, data: object, *_: object, **__: object) -> None:
        if isinstance(data, JobCancellation):
            self.written += 1
            self.most = max(self.most, self.written - self.folded)
            asyncio.get_running_loop().call_soon(self._fold, subject)

    def _fold(self, job_id: str) -> None:
        self.folded += 1
        if job_id in self._expected:
            self._expected.pop(job_id).set_result(None)


async def test_the_jobs_of_a_cancelled_workflow_are_recorded_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events of others wait behind them: 5,000 in one go were seconds."""
    stream = Stream()

    async def tell_workers(*_: object) -> None:
        """There are none."""

    async def dropped(*_: object) -> list[tuple[str, str, str]]:
        return [(f"{number}", "a.b", "q") for number in range(250)]

    monkeypatch.setattr(WorkflowActor, "_read", dropped)
    broker = SimpleNamespace(tell_workers=tell_workers, events=stream)
    responder: Any = SimpleNamespace(view=stream, broker=broker)
    leader: Any = SimpleNamespace(on_change=[], leads=True)
    jobs: Any = None
    await WorkflowActor(responder, leader, jobs, Plans())._stop(Progress("w", "cancelled one", "2026-01-01T00:00:00Z"))
    assert (stream.written, stream.folded, stream.most) == (250, 250, actor.STOPPED_AT_A_TIME)
