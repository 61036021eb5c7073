"""The events of cron jobs (ojs-cron section 9), and those by which coordinators agree on what they push themselves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from waybill.ojs.spec.event_data import EventData


class CronTriggered(EventData, frozen=True, kw_only=True):
    """A schedule fired and enqueued a job.

    ojs-events and ojs-cron have two names each for the expression and the time; both are written.
    """

    cron_name: str
    cron_expr: str
    job_type: str
    job_id: str
    scheduled_at: str
    cron_expression: str
    timezone: str
    run_count: int
    scheduled_time: str
    actual_time: str


class CronSkipped(EventData, frozen=True, kw_only=True):
    """A schedule was due, and no job was enqueued: `reason` is overlap_skip, disabled, dst_skip or duplicate."""

    cron_name: str
    cron_expr: str
    job_type: str
    reason: str
    cron_expression: str
    timezone: str
    scheduled_time: str
    existing_job_id: str | None = None
    active_job_id: str | None = None


class CronRegistered(EventData, frozen=True, kw_only=True):
    """A cron job is registered or changed; `now_ms` is when, by the coordinators' time. Not a standard event."""

    job: dict[str, object]
    owner: str | None = None
    now_ms: int


class CronToggled(EventData, frozen=True, kw_only=True):
    """A cron job is paused or resumed. An event of ours."""

    enabled: bool
    now_ms: int
    by: str | None = None


class CronRemoved(EventData, frozen=True, kw_only=True):
    """A cron job was removed. An event of Waybill's."""

    by: str | None = None


class SkippedTick(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tick that enqueues no job, and why; `job_id` is the job in its way."""

    key: str
    scheduled_at: str
    reason: str
    job_id: str | None = None


class CronClaimed(EventData, frozen=True, kw_only=True):
    """A leader decides about the ticks of a cron job up to one of them; the first in the stream counts. One of ours.

    `key`, `job` and `job_id` are there if a tick fires; `copy` is the name of its first push, by the coordinator `by`.
    """

    version: int
    until_ms: int
    until_key: str
    by: str
    copy: str
    kind: str = "tick"
    key: str = ""
    scheduled_at: str = ""
    job: dict[str, object] | None = None
    job_id: str | None = None
    missed: int = 0
    skipped: Sequence[SkippedTick] = ()


class CronTold(EventData, frozen=True, kw_only=True):
    """Decisions about ticks were announced. An event of Waybill's."""

    keys: Sequence[str]


class ClaimPushed(EventData, frozen=True, kw_only=True):
    """A coordinator has pushed a job that was claimed, under the name of this copy. An event of ours."""

    copy: str
    by: str


class ClaimCopied(EventData, frozen=True, kw_only=True):
    """A coordinator is about to push a claimed job once more, as it cannot know of the push before. One of ours."""

    copy: str
    by: str


class ClaimDropped(EventData, frozen=True, kw_only=True):
    """A job is not pushed, because it is unique and another one has its place."""

    by: str
    existing_job_id: str


class ClaimAdmitted(EventData, frozen=True, kw_only=True):
    """A worker requests to run a copy of a claimed job; the first request in the stream wins. Not a standard event."""

    copy: str
    worker_id: str
