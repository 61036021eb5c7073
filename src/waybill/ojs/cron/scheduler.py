"""The scheduler of cron jobs: decides about ticks while its coordinator leads, and writes the events of firings.

At most once a second it decides about due ticks (ojs-cron section 7.3): it writes the claims of `decision` as
cron.claimed events, and continues from the folded state. A claim that is written twice, or after another leader's, has
no effect. `claim_pusher` pushes the jobs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Final, TypeVar

from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.control import Control
from waybill.ojs.coordinator.claims import Claim
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.cron.cron_fold import CRON, MAX_CRON_JOBS, CronRow
from waybill.ojs.cron.decision import decide, next_tick, wake_ms
from waybill.ojs.cron.definition import CronFiring, time_of
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.cron_events import CronSkipped, CronTold, CronTriggered
from waybill.ojs.spec.events import JobEnqueued
from waybill.ojs.spec.identifiers import derived_id
from waybill.ojs.spec.nesting import shown

EVALUATION_SECONDS: Final = 1.0
"""The minimum time between two evaluations."""
LONGEST_SLEEP_SECONDS: Final = 5.0
PROPOSAL_SECONDS: Final = 10.0
"""How long to wait for a written claim to be folded before it is written again."""
MANY_WAITING: Final = 2
CHANGES_SECONDS: Final = 0.02
FEW_CRON_JOBS: Final = 100
PAGE: Final = 200
"""How many cron jobs are read from the store at a time: others wait for it."""
PORTION: Final = 20
"""How many are decided about before others are served."""
_LONGEST_MS: Final = int(LONGEST_SLEEP_SECONDS * 1000)

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.cron")


class CronScheduler:
    """The scheduler of all cron jobs."""

    def __init__(self, broker: BrokerConnection, view: JobView, leader: Leader, coordinator: str) -> None:
        """`coordinator` is the id of this one."""
        self._broker = broker
        self._view = view
        self._leader = leader
        self._coordinator = coordinator
        self._control = Control(broker)
        self._rows: list[tuple[str, CronRow]] = []
        self._has_changed = True
        self._proposed: dict[str, tuple[tuple[int, str, int], float]] = {}
        """For each cron job with a pending claim: the state for which it was written, and the deadline."""
        self._telling: dict[tuple[str, str], float] = {}
        self._next_evaluation = 0.0
        """The earliest time of the next evaluation, by the loop's clock."""
        self._wakes: dict[str, tuple[tuple[int, str, int], int | None]] = {}
        self._wake = asyncio.Event()
        view.on_feature.append(self._changed)
        leader.on_change.append(self._wake.set)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            seconds = LONGEST_SLEEP_SECONDS
            if self._leader.leads:
                try:
                    seconds = await self._look_at_all()
                except Exception:  # noqa: BLE001 - a database may raise anything
                    _log.exception("the cron jobs cannot be read")
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        """Wait for a time or a change; changes are handled in groups."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                # Reading all cron jobs takes time, and other features cause changes, too.
                await asyncio.sleep(CHANGES_SECONDS if len(self._rows) <= FEW_CRON_JOBS else EVALUATION_SECONDS)
        except TimeoutError:
            pass
        self._wake.clear()

    def _changed(self) -> None:
        self._has_changed = True
        self._wake.set()

    async def _look_at_all(self) -> float:
        """Decide about due ticks, if the last evaluation is a second ago; returns the seconds until the next tick."""
        if self._has_changed:
            self._has_changed = False
            self._rows = await self._read()
        loop_now, now_ms = asyncio.get_running_loop().time(), int(self._leader.now() * 1000)
        waits = []
        async for key, row in in_portions(self._rows):
            self._tell(row)
            wake = self._wake_of(key, row, loop_now)
            if wake is not None:
                waits.append((wake, key, row))
        due = [(key, row) for wake, key, row in waits if wake <= now_ms]
        if due and loop_now < self._next_evaluation:
            return self._next_evaluation - loop_now
        if due:
            self._next_evaluation = loop_now + EVALUATION_SECONDS
        async for key, row in in_portions(due):
            self._propose(key, row, now_ms, loop_now)
        later_ms = min((wake - now_ms for wake, _, _ in waits if wake > now_ms), default=_LONGEST_MS)
        return min(max(later_ms, 1), _LONGEST_MS) / 1000

    async def _read(self) -> list[tuple[str, CronRow]]:
        rows: list[tuple[str, CronRow]] = []
        while len(rows) < MAX_CRON_JOBS:
            page = await self._view.listed(CRON, CronRow, PAGE, rows[-1][0] if rows else "")
            rows += page
            if len(page) < PAGE:
                break
        return rows

    def _wake_of(self, key: str, row: CronRow, loop_now: float) -> int | None:
        """Return when the next tick of a cron job is due, None if there is none or a claim is pending."""
        decided = (row.until_ms, row.until_key, row.version)
        proposed = self._proposed.get(key)
        if proposed is not None and proposed[0] == decided and proposed[1] > loop_now:
            return None
        known = self._wakes.get(key)
        if known is None or known[0] != decided:
            known = self._wakes[key] = (decided, self._next_wake(row))
        return known[1]

    @staticmethod
    def _next_wake(row: CronRow) -> int | None:
        try:
            tick = next_tick(row)
        except InvalidJob as error:
            # It may have been registered with another time zone database.
            _log.error("cron job %s cannot be evaluated: %s", shown(row.job.name), error)
            return None
        except Exception:  # noqa: BLE001 - an error of one cron job must not affect the others
            _log.exception("cron job %s cannot be evaluated", shown(row.job.name))
            return None
        return None if tick is None else wake_ms(row, tick)

    def _propose(self, key: str, row: CronRow, now_ms: int, loop_now: float) -> None:
        try:
            claims = decide(row, now_ms, self._coordinator)
        except Exception:  # noqa: BLE001 - an error of one cron job must not affect the others
            _log.exception("cron job %s cannot be evaluated", shown(row.job.name))
            claims = []
        for one in claims:
            self._broker.events.record(row.job.name, one)
        self._proposed[key] = ((row.until_ms, row.until_key, row.version), loop_now + PROPOSAL_SECONDS)

    # --- events of firings ---

    def _tell(self, row: CronRow) -> None:
        """Write the events of skipped and waiting firings, which have no other writer."""
        if not row.to_tell:
            return
        now, name = asyncio.get_running_loop().time(), row.job.name
        self._telling = {key: until for key, until in self._telling.items() if until > now}
        keys = [key for key in row.to_tell if (name, key) not in self._telling]
        for key in keys:
            self._telling[name, key] = now + PROPOSAL_SECONDS
            firing = row.firing(key)
            if firing is not None and firing.state == "skipped":
                self._tell_skipped(row, firing)
            elif firing is not None:
                self._tell_waiting(row, firing)
        if keys:
            self._broker.events.record(name, CronTold(keys=keys))

    def _tell_skipped(self, row: CronRow, firing: CronFiring) -> None:
        job = row.job
        data = CronSkipped(
            cron_name=job.name,
            cron_expr=job.cron,
            job_type=job.type,
            reason=firing.reason or "",
            cron_expression=job.cron,
            timezone=job.timezone,
            scheduled_time=firing.scheduled_at,
            existing_job_id=firing.job_id,
            active_job_id=firing.job_id,
        )
        event_id = f"evt_{derived_id(0, 'cron.skipped', job.name, firing.key, row.created_at)}"
        self._broker.events.record(job.name, data, event_id=event_id)
        _log.info("cron job %s is skipped at %s: %s", job.name, firing.scheduled_at, firing.reason)

    def _tell_waiting(self, row: CronRow, firing: CronFiring) -> None:
        """Report a job that waits for the previous one as enqueued, although the broker does not have it yet."""
        job = row.job
        priority = job.options.get("priority")
        data = JobEnqueued(job_type=job.type, queue=job.queue, priority=priority if isinstance(priority, int) else None)
        if firing.job_id is not None:
            self._broker.events.record(firing.job_id, data, firing.at)
        waiting = sum(one.state == "waiting" for one in row.firings)
        if waiting > MANY_WAITING:
            _log.warning("%d jobs of cron job %s wait for the running one", waiting, job.name)

    async def before_push(self, _job_id: str, one: Claim) -> None:
        """Cancel the jobs that a new job replaces."""
        cancels = one.note.get("cancels")
        for job_id in cancels if isinstance(cancels, list) else ():
            _log.info("cron job %s cancels its previous job, %s", shown(one.owner), shown(str(job_id)))
            await self._control.cancel(str(job_id), None)

    async def definer_of(self, key: str) -> str | None:
        """Return the user who has registered the cron job of a row."""
        found = await self._view.row(key, CronRow)
        return None if found is None else found.owner

    def on_pushed(self, job_id: str, one: Claim) -> None:
        """Write the event of a fired tick."""
        run_count, scheduled_at = one.note.get("run_count"), one.note.get("scheduled_at")
        if not isinstance(run_count, int) or not isinstance(scheduled_at, str):
            return
        cron, timezone = str(one.note.get("cron")), str(one.note.get("timezone"))
        data = CronTriggered(
            cron_name=one.owner.removeprefix(CRON),
            cron_expr=cron,
            job_type=str(one.job.get("type", "")),
            job_id=job_id,
            scheduled_at=scheduled_at,
            cron_expression=cron,
            timezone=timezone,
            run_count=run_count,
            scheduled_time=scheduled_at,
            actual_time=time_of(int(self._leader.now() * 1000)),
        )
        event_id = f"evt_{derived_id(0, 'cron.triggered', job_id)}"
        self._broker.events.record(data.cron_name, data, event_id=event_id)


async def in_portions(rows: Sequence[T]) -> AsyncGenerator[T]:
    """Yield all, and let others go on after a few of them."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % PORTION == 0:
            await asyncio.sleep(0)
