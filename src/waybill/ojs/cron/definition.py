"""The definition of a cron job: the fields of ojs-cron section 2, our additions, and its form in messages.

`CronJob` is what an application registers, `CronInfo` what a coordinator knows. Both follow the specification;
`missed_policy` and `jitter` are additions.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, get_args

import msgspec

from waybill.ojs.cron.schedule import CronSchedule, Schedule, Tick, read_schedule
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import check_queue, check_type, parse_envelope
from waybill.ojs.spec.identifiers import derived_id
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.spec.unique import read_unique

OverlapPolicy = Literal["skip", "allow", "cancel_previous", "enqueue"]
MissedPolicy = Literal["once", "skip", "all"]

MAX_NAME_LENGTH: Final = 255
MAX_BYTES: Final = 256 * 1024
"""The maximum size of a definition, because each firing has its job in an event."""
MAX_JITTER_SECONDS: Final = 86_400.0
OPTIONS: Final = frozenset({
    "queue", "priority", "timeout", "timeout_ms", "visibility_timeout", "visibility_timeout_ms", "retry", "tags",
    "meta", "rate_limit", "result_ttl", "result_size_limit", "total_timeout", "enqueue_ttl", "heartbeat_timeout",
    "grace_period", "version", "unique",
})  # fmt: skip
"""The job options that a cron job may set."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9\-.]*")


class CronJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A periodic job.

    `enabled` None leaves a paused cron job paused, and enables a new one. `missed_policy` applies to ticks that were
    missed because no coordinator was running: run the last one ("once"), all, or none. `jitter` delays each firing by
    up to that many seconds, always the same for one tick.
    """

    name: str
    cron: str
    type: str
    timezone: str = "UTC"
    args: list[object] = msgspec.field(default_factory=list)
    meta: dict[str, object] = msgspec.field(default_factory=dict)
    options: dict[str, object] = msgspec.field(default_factory=dict)
    overlap_policy: OverlapPolicy = "skip"
    missed_policy: MissedPolicy = "once"
    jitter: float = 0.0
    enabled: bool | None = None
    description: str | None = None

    def check(self) -> None:
        """Raise InvalidJob naming the first invalid field."""
        if len(self.name) > MAX_NAME_LENGTH or _NAME.fullmatch(self.name) is None:
            raise InvalidJob("name", f"{self.name[:100]!r} is not lower case letters, digits, '-' and '.'")
        check_type(self.type)
        for field, policy, known in (
            ("overlap_policy", self.overlap_policy, get_args(OverlapPolicy)),
            ("missed_policy", self.missed_policy, get_args(MissedPolicy)),
        ):
            if policy not in known:
                raise InvalidJob(field, f"{policy!r} is not one of {', '.join(known)}")
        if not 0 <= self.jitter <= MAX_JITTER_SECONDS:
            raise InvalidJob("jitter", f"must be from 0 to {MAX_JITTER_SECONDS:g} seconds")
        unknown = sorted(self.options.keys() - OPTIONS)
        if unknown:
            raise InvalidJob(f"options.{unknown[0]}", "is not an option of a cron job")
        self.schedule(0)
        job = parse_envelope(self.job(Tick(0, ""), derived_id(0, self.name), 0), datetime.now(UTC))
        check_queue(job.queue)
        if job.unique is not None:
            read_unique(job.unique)
        if len(msgspec.json.encode(self)) > MAX_BYTES:
            raise InvalidJob("args", f"make this cron job larger than {MAX_BYTES} bytes")

    def schedule(self, anchor_ms: int) -> Schedule:
        """Return the schedule; an interval counts from the anchor. Raises InvalidJob."""
        return read_schedule(self.cron, self.timezone, anchor_ms)

    @property
    def warning(self) -> str | None:
        """Return a warning about a surprising expression, or why this machine cannot evaluate it."""
        try:
            found = self.schedule(0)
        except InvalidJob as error:
            return str(error)
        return found.expression.warning if isinstance(found, CronSchedule) else None

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        queue = self.options.get("queue", "default")
        return queue if isinstance(queue, str) else "default"

    def put_off_ms(self, tick: Tick) -> int:
        """Return the jitter of a tick: the same for every coordinator."""
        if not self.jitter:
            return 0
        number = int.from_bytes(hashlib.sha256(f"{self.name} {tick.key}".encode()).digest()[:8])
        return int(number / 2**64 * self.jitter * 1000)

    def job(self, tick: Tick, job_id: str, now_ms: int) -> dict[str, object]:
        """Return the job of a tick, as an envelope's JSON."""
        options = dict(self.options)
        of_options = options.pop("meta", {})
        meta = {**(of_options if isinstance(of_options, dict) else {}), **self.meta}
        meta |= {"cron_name": self.name, "cron_triggered_at": time_of(tick.due_ms)}
        job: dict[str, object] = {"specversion": "1.0", "id": job_id, "type": self.type, "args": self.args, **options}
        return {**job, "meta": meta, "created_at": time_of(now_ms)}


class CronFiring(msgspec.Struct):
    """A decided tick.

    `state` is that of its job, or skipped, with the reason. `kind` is tick, catch_up for a tick that fires late because
    no coordinator was running, or manual. `missed` counts the dropped ticks before it.
    """

    key: str
    scheduled_at: str
    at: str
    state: str = "pending"
    kind: str = "tick"
    job_id: str | None = None
    reason: str | None = None
    missed: int = 0
    ended_at: str | None = None


class CronInfo(CronJob, kw_only=True, omit_defaults=False):
    """A cron job as a coordinator knows it. Times are RFC 3339."""

    status: str = "active"
    last_run_at: str | None = None
    next_run_at: str | None = None
    run_count: int = 0
    created_at: str = ""
    owner: str | None = None
    warning_text: str | None = msgspec.field(default=None, name="warning")
    firings: list[CronFiring] = msgspec.field(default_factory=list)
    """The last firings, newest first; only in the reply for a single cron job."""
    next_runs: list[str] = msgspec.field(default_factory=list)


def read_cron_job(value: object) -> CronJob:
    """Return a valid cron job from a JSON object; system-managed fields are ignored. Raises InvalidJob."""
    try:
        made = msgspec.convert(value, CronJob)
    except (msgspec.ValidationError, RecursionError) as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidJob(f"cron_job{place.rstrip('`')}", text) from error
    made.check()
    return made


def time_of(milliseconds: int) -> str:
    """Write Unix milliseconds as RFC 3339 in UTC."""
    return format_timestamp(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds))
