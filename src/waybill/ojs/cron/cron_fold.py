"""The coordinators' state of cron jobs: folded from the events, one row `cron/{name}` for each.

    cron.registered   a cron job is new, or other than before; what is the same changes nothing
    cron.toggled      it was paused, or resumed
    cron.removed      it is gone; a row `cron-gone/{name}` stays, so that no tick of it can ever come twice
    cron.claimed      a leader has decided about a tick: the first event in the stream that goes beyond what was decided
                      counts, so one tick is decided once, by any leader and any clock
    cron.told         what was decided is told to the world, as cron.skipped and job.enqueued
    job.*             how the jobs of its firings do
    claim.dropped     a job is unique and another one has its place: its firing is skipped

A claim names the `version` of the row that it goes by. One that was made just before the cron job was changed is passed
by, and decided anew. All of these events but those of jobs count from trusted users only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.ojs.coordinator.claims import DROPPED, Claim, claim, claimed, key_of, let_go
from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.coordinator.job_fold import ENDS
from waybill.ojs.cron.definition import CronFiring, CronInfo, CronJob
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.cron_events import CronClaimed
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import may_be_derived
from waybill.ojs.spec.states import TERMINAL, State

CRON: Final = "cron/"
GONE: Final = "cron-gone/"
"""The ticks of removed cron jobs are decided up to this time."""
MAX_CRON_JOBS: Final = 10_000
MAX_FIRINGS: Final = 20
"""The number of ended firings to keep; others are kept as well, up to MAX_OPEN."""
MAX_OPEN: Final = 1000
MAX_TO_TELL: Final = 1000
MAX_MOMENT_MS: Final = 1 << 47
"""In the year 6429. No coordinator's clock shows a later time, and none has ticks for ever."""

_TYPES: Final = frozenset({"cron.registered", "cron.toggled", "cron.removed", "cron.claimed", "cron.told"})
_STATES: Final = {
    "job.started": State.ACTIVE.value,
    "job.retrying": State.RETRYABLE.value,
    "job.scheduled": State.SCHEDULED.value,
    **ENDS,
    DROPPED: "skipped",
}
DUPLICATE: Final = "duplicate"
"""Why a firing is skipped whose job is unique."""
_OVER: Final = frozenset({"skipped", "lost", *(state.value for state in TERMINAL)})


class CronRow(msgspec.Struct, omit_defaults=True):
    """A cron job and how far it is decided. Times in milliseconds are Unix time.

    All ticks up to `until_ms`, `until_key` are decided. `anchor_ms` is what intervals count from.
    """

    job: CronJob
    created_at: str
    version: int
    anchor_ms: int
    until_ms: int
    until_key: str = ""
    owner: str | None = None
    origin: str = ""
    """The id of the event that created it."""
    is_enabled: bool = True
    run_count: int = 0
    last_run_at: str | None = None
    firings: list[CronFiring] = msgspec.field(default_factory=list)
    """The oldest first."""
    to_tell: list[str] = msgspec.field(default_factory=list)
    """Keys of firings whose events are not written yet."""

    def firing(self, key: str) -> CronFiring | None:
        """Return a firing."""
        return next((one for one in reversed(self.firings) if one.key == key), None)

    @property
    def open(self) -> list[CronFiring]:
        """The firings whose jobs have not ended."""
        return [one for one in self.firings if one.state not in _OVER]

    def info(self, next_run_at: str | None) -> CronInfo:
        """Return the public state."""
        job = {name: getattr(self.job, name) for name in CronJob.__struct_fields__}
        return CronInfo(
            **{**job, "enabled": self.is_enabled},
            status="active" if self.is_enabled else "paused",
            last_run_at=self.last_run_at,
            next_run_at=next_run_at,
            run_count=self.run_count,
            created_at=self.created_at,
            owner=self.owner,
            warning_text=self.job.warning,
        )


class GoneRow(msgspec.Struct):
    """The state that outlives a cron job."""

    until_ms: int
    version: int


class CronFold(FeatureFold):
    """Folds the events of cron jobs."""

    types = frozenset((*_TYPES, *_STATES))

    def __init__(self, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` returns whether a user may be a coordinator's."""
        self._is_trusted = is_trusted
        self._folds: dict[str, Callable[[Rows, CronRow, ReceivedEvent], None]] = {
            "cron.toggled": _toggle,
            "cron.claimed": _decide,
            "cron.told": _told,
        }

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the keys of a cron job's row, or of the claim of a job that may be a firing's."""
        if event.type in _STATES:
            counts = event.type != DROPPED or self._is_trusted(event.user)
            return (key_of(event.subject),) if counts and may_be_derived(event.subject) else ()
        return (CRON + event.subject,) if event.type in _TYPES and self._is_trusted(event.user) else ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Apply an event to a row."""
        if event.type in _STATES:
            _follow(rows, event)
            return
        row = rows.get(CRON + event.subject, CronRow)
        if event.type == "cron.registered":
            _register(rows, row, event)
        elif row is not None and event.type == "cron.removed":
            rows.delete(CRON + event.subject)
            rows.put(GONE + event.subject, GoneRow(row.until_ms, row.version))
        elif row is not None:
            self._folds[event.type](rows, row, event)
            rows.put(CRON + event.subject, row)


def _register(rows: Rows, before: CronRow | None, event: ReceivedEvent) -> None:
    data = event.data
    job = msgspec.convert(data.get("job"), CronJob)
    try:
        job.check()
    except InvalidJob:
        # A newer version may have fields that this one does not know.
        return
    now_ms = _moment(data.get("now_ms"))
    owner = data.get("owner")
    if before is None:
        gone = rows.get(GONE + event.subject, GoneRow) or GoneRow(0, 0)
        rows.delete(GONE + event.subject)
        row = CronRow(job, event.time, gone.version, now_ms, gone.until_ms)
        row.owner, row.origin = owner if isinstance(owner, str) else None, event.id
    elif job == before.job:
        return
    else:
        row = before
    if before is None or (job.cron, job.timezone) != (row.job.cron, row.job.timezone):
        # Ticks of the old expression do not matter to the new one.
        row.until_ms, row.until_key, row.anchor_ms = max(row.until_ms, now_ms), "", now_ms
    row.is_enabled = row.is_enabled if job.enabled is None else job.enabled
    row.job = job
    row.version += 1
    rows.put(CRON + event.subject, row)


def _toggle(_rows: Rows, row: CronRow, event: ReceivedEvent) -> None:
    is_enabled = event.data.get("enabled") is True
    if is_enabled == row.is_enabled:
        return
    row.is_enabled = is_enabled
    row.version += 1
    if is_enabled:
        # Ticks in between were skipped, and waiting jobs no longer wait.
        row.until_ms, row.until_key = max(row.until_ms, _moment(event.data.get("now_ms"))), ""
        for one in row.firings:
            if one.state == State.AVAILABLE.value:
                one.state = "lost"
        _let_next_go(_rows, row)


def _decide(rows: Rows, row: CronRow, event: ReceivedEvent) -> None:
    """Apply a leader's decision about a tick, if it is the first."""
    found = msgspec.convert(event.data, CronClaimed)
    is_manual = found.kind == "manual"
    if is_manual:
        if row.firing(found.key) is not None:
            return
    elif found.version != row.version or (found.until_ms, found.until_key) <= (row.until_ms, row.until_key):
        return
    else:
        row.until_ms, row.until_key = _moment(found.until_ms), _local_time(found.until_key)
    for skipped in found.skipped:
        _skip(row, skipped.key, skipped.scheduled_at, event.time, skipped.reason, skipped.job_id)
    if found.key and found.job is not None and found.job_id is not None:
        _fire(rows, row, found, event)
    _forget(row)


def _fire(rows: Rows, row: CronRow, found: CronClaimed, event: ReceivedEvent) -> None:
    job_id = found.job_id or ""
    waits = row.job.overlap_policy == "enqueue" and found.kind != "manual" and bool(row.open)
    new = Claim(CRON + event.subject, found.job or {}, found.by, [found.copy], waits=waits, note=_note(row, found))
    if not claim(rows, job_id, new):
        return
    row.run_count += 1
    row.last_run_at = found.scheduled_at
    firing = CronFiring(
        key=found.key,
        scheduled_at=found.scheduled_at,
        at=event.time,
        state="waiting" if waits else State.AVAILABLE.value,
        kind=found.kind,
        job_id=job_id,
        missed=found.missed,
    )
    row.firings.append(firing)
    if waits:
        _tell(row, firing.key)


def _note(row: CronRow, found: CronClaimed) -> dict[str, object]:
    """Return the data of a firing that the pusher of its job needs."""
    note: dict[str, object] = {"scheduled_at": found.scheduled_at, "run_count": row.run_count + 1}
    note |= {"cron": row.job.cron, "timezone": row.job.timezone}
    if row.job.overlap_policy == "cancel_previous" and found.kind != "manual":
        note["cancels"] = [one.job_id for one in row.firings if one.state == State.ACTIVE.value]
    return note


def _skip(row: CronRow, key: str, scheduled_at: str, at: str, reason: str, job_id: str | None) -> None:
    row.firings.append(
        CronFiring(key=key, scheduled_at=scheduled_at, at=at, state="skipped", reason=reason, job_id=job_id)
    )
    _tell(row, key)


def _tell(row: CronRow, key: str) -> None:
    row.to_tell = [*row.to_tell, key][-MAX_TO_TELL:]


def _told(_rows: Rows, row: CronRow, event: ReceivedEvent) -> None:
    told = event.data.get("keys")
    row.to_tell = [key for key in row.to_tell if not isinstance(told, list) or key not in told]


def _follow(rows: Rows, event: ReceivedEvent) -> None:
    """Track the state of a firing's job."""
    found = claimed(rows, event)
    if found is None or not found.owner.startswith(CRON):
        return
    row = rows.get(found.owner, CronRow)
    firing = None if row is None else next((one for one in row.firings if one.job_id == event.subject), None)
    if row is None or firing is None or firing.state in _OVER - {"lost"}:
        return
    firing.state = _STATES[event.type]
    if event.type == DROPPED:
        firing.reason, firing.job_id = DUPLICATE, str(event.data.get("existing_job_id"))
        row.run_count -= 1
        _tell(row, firing.key)
    if event.type in ENDS or event.type == DROPPED:
        firing.ended_at = event.time
        _let_next_go(rows, row)
        _forget(row)
    rows.put(found.owner, row)


def _let_next_go(rows: Rows, row: CronRow) -> None:
    """Let the job be pushed that waits for earlier ones to end."""
    still_open = row.open
    if still_open and still_open[0].state == "waiting":
        still_open[0].state = State.AVAILABLE.value
        let_go(rows, still_open[0].job_id or "")


def _forget(row: CronRow) -> None:
    over = [one for one in row.firings if one.state in _OVER and one.key not in row.to_tell]
    forgotten = {id(one) for one in over[: max(0, len(over) - MAX_FIRINGS)]}
    row.firings = [one for one in row.firings if id(one) not in forgotten][-MAX_OPEN:]


def _moment(value: object) -> int:
    """Return a time in Unix milliseconds. Raises ValueError for one that no coordinator can have written."""
    if not isinstance(value, int) or not 0 <= value < MAX_MOMENT_MS:
        raise ValueError("it has no valid time")
    return value


def _local_time(key: str) -> str:
    """Return the key of a tick. Raises ValueError as `_moment`."""
    if key:
        local = datetime.fromisoformat(key)
        _moment(int(local.replace(tzinfo=UTC).timestamp() * 1000) if local.tzinfo is None else None)
    return key
