"""`jobs.sync.crons`: register, query and control cron jobs from code without an event loop."""

from __future__ import annotations

import builtins
from typing import TypeVar

from waybill.ojs.cron.crons import NEXT_RUNS, Crons
from waybill.ojs.cron.definition import CronInfo, CronJob
from waybill.ojs.sync.caller import Caller

T = TypeVar("T")


class SyncCrons:
    """The blocking methods of `Crons`, for any thread without an event loop.

    Arguments, results and errors are those of `Crons`.
    """

    def __init__(self, call: Caller[Crons]) -> None:
        self._call = call

    def sync(self, *, prune: bool = False) -> dict[str, str]:
        """As `Crons.sync`."""
        return self._call(lambda crons: crons.sync(prune=prune), "jobs.crons.sync(...)")

    def register(self, job: CronJob) -> str:
        """As `Crons.register`."""
        return self._call(lambda crons: crons.register(job), "jobs.crons.register(...)")

    def list(self) -> builtins.list[CronInfo]:
        """As `Crons.list`."""
        return self._call(lambda crons: crons.list(), "jobs.crons.list()")

    def get(self, name: str, *, next_runs: int = NEXT_RUNS) -> CronInfo:
        """As `Crons.get`."""
        return self._call(lambda crons: crons.get(name, next_runs=next_runs), "jobs.crons.get(...)")

    def pause(self, name: str, *, by: str | None = None) -> CronInfo:
        """As `Crons.pause`."""
        return self._call(lambda crons: crons.pause(name, by=by), "jobs.crons.pause(...)")

    def resume(self, name: str, *, by: str | None = None) -> CronInfo:
        """As `Crons.resume`."""
        return self._call(lambda crons: crons.resume(name, by=by), "jobs.crons.resume(...)")

    def remove(self, name: str, *, by: str | None = None) -> None:
        """As `Crons.remove`."""
        self._call(lambda crons: crons.remove(name, by=by), "jobs.crons.remove(...)")

    def run(self, name: str) -> str:
        """As `Crons.run`."""
        return self._call(lambda crons: crons.run(name), "jobs.crons.run(...)")
