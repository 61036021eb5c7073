"""A leader's decision about a cron job at a time: a pure function of its row and the time.

Due ticks whose local time does not exist are skipped (ojs-cron section 5.2); if the cron job is disabled, all are. The
last remaining tick fires, or is skipped by its overlap policy. Earlier ones are missed, and `missed_policy` applies. A
tick that is late by at most LATE_MS is not missed; a new leader takes over in less time.
"""

from __future__ import annotations

from typing import Final

from waybill.ojs.cron.cron_fold import CronRow
from waybill.ojs.cron.definition import time_of
from waybill.ojs.cron.schedule import Schedule, Tick
from waybill.ojs.spec.cron_events import CronClaimed, SkippedTick
from waybill.ojs.spec.identifiers import derived_id, new_id
from waybill.ojs.spec.states import State

LATE_MS: Final = 60_000
MAX_TICKS: Final = 100
"""The maximum number of ticks of a cron job in one evaluation."""


def next_tick(row: CronRow) -> Tick | None:
    """Return the first undecided tick, None if there is none."""
    return row.job.schedule(row.anchor_ms).next(row.until_ms, row.until_key)


def wake_ms(row: CronRow, tick: Tick) -> int:
    """Return when a tick must be decided."""
    return tick.due_ms + row.job.put_off_ms(tick)


def decide(row: CronRow, now_ms: int, coordinator: str) -> list[CronClaimed]:
    """Return the claims to write, in order; none if nothing is due."""
    ticks = _due(row, now_ms)
    if not ticks:
        return []
    skipped = {tick.key: _skipped(tick, "dst_skip") for tick in ticks if not tick.exists}
    real = [tick for tick in ticks if tick.exists]
    if not row.is_enabled:
        skipped |= {tick.key: _skipped(tick, "disabled") for tick in real}
        return [_claim(row, ticks[-1], coordinator, tuple(skipped.values()))]
    if row.job.missed_policy == "skip":
        real = [tick for tick in real if now_ms - wake_ms(row, tick) <= LATE_MS]
    if row.job.missed_policy != "all":
        real = real[-1:]
    busy = next((one for one in row.firings if one.state == State.ACTIVE.value), None)
    if busy is not None and row.job.overlap_policy == "skip":
        skipped |= {tick.key: _skipped(tick, "overlap_skip", busy.job_id) for tick in real}
        real = []
    claims, start = [], 0
    for tick in real:
        end = ticks.index(tick) + 1
        before = ticks[start : end - 1]
        told = tuple(skipped[one.key] for one in before if one.key in skipped)
        claims.append(_fire(row, tick, now_ms, coordinator, told, len(before) - len(told)))
        start = end
    rest = ticks[start:]
    if rest:
        claims.append(_claim(row, rest[-1], coordinator, tuple(skipped[one.key] for one in rest if one.key in skipped)))
    return claims


def manual(row: CronRow, now_ms: int, coordinator: str, request_id: str) -> CronClaimed:
    """Return the claim of a manual run. A request makes one job, however often it is handled."""
    tick = Tick(now_ms, f"manual/{request_id}")
    job_id = derived_id(now_ms, "cron", row.job.name, tick.key)
    return CronClaimed(
        version=row.version,
        until_ms=row.until_ms,
        until_key=row.until_key,
        by=coordinator,
        copy=new_id(),
        kind="manual",
        key=tick.key,
        scheduled_at=time_of(now_ms),
        job=row.job.job(tick, job_id, now_ms),
        job_id=job_id,
    )


def _due(row: CronRow, now_ms: int) -> list[Tick]:
    schedule = row.job.schedule(row.anchor_ms)
    ticks = _first_due(row, schedule, now_ms, row.until_ms, row.until_key)
    if len(ticks) == MAX_TICKS and (not row.is_enabled or row.job.missed_policy != "all"):
        last = schedule.latest(now_ms)
        if last is not None and last.order > ticks[-1].order:
            return [*ticks, last]
    return ticks


def _first_due(row: CronRow, schedule: Schedule, now_ms: int, after_ms: int, after_key: str) -> list[Tick]:
    ticks: list[Tick] = []
    while len(ticks) < MAX_TICKS:
        tick = schedule.next(after_ms, after_key)
        if tick is None or wake_ms(row, tick) > now_ms:
            break
        ticks.append(tick)
        after_ms, after_key = tick.order
    return ticks


def _skipped(tick: Tick, reason: str, job_id: str | None = None) -> SkippedTick:
    return SkippedTick(tick.key, time_of(tick.due_ms), reason, job_id)


def _claim(row: CronRow, last: Tick, coordinator: str, skipped: tuple[SkippedTick, ...]) -> CronClaimed:
    """Return a claim of ticks that do not fire."""
    return CronClaimed(
        version=row.version,
        until_ms=last.due_ms,
        until_key=last.key,
        by=coordinator,
        copy="",
        skipped=skipped,
    )


def _fire(
    row: CronRow, tick: Tick, now_ms: int, coordinator: str, skipped: tuple[SkippedTick, ...], missed: int
) -> CronClaimed:
    job_id = derived_id(tick.due_ms, "cron", row.job.name, tick.key)
    return CronClaimed(
        version=row.version,
        until_ms=tick.due_ms,
        until_key=tick.key,
        by=coordinator,
        copy=new_id(),
        kind="tick" if now_ms - wake_ms(row, tick) <= LATE_MS else "catch_up",
        key=tick.key,
        scheduled_at=time_of(tick.due_ms),
        job=row.job.job(tick, job_id, now_ms),
        job_id=job_id,
        missed=missed,
        skipped=skipped,
    )
