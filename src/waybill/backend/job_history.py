"""The execution history of jobs (ojs-execution-history): what happened to a job, when, and who did it.

Entries are made from the job's events, as long as this server remembers these. Older entries are reconstructed from the
job's state, which has the time of its creation, of its failures, of its last start and of its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.history_purge import HistoryPurge
from waybill.backend.job_form import TERMINAL, Form
from waybill.backend.settings import SettingTable
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import parse_timestamp

MOST_EVENTS: Final = 20_000
"""Events of this server's memory that a request reads."""
PURGED: Final = "history-purged/"
CREATED: Final = "job.created"
CHANGED: Final = "job.state_changed"
_ACTIVE: Final = State.ACTIVE.value
_AVAILABLE: Final = State.AVAILABLE.value
_RETRYABLE: Final = State.RETRYABLE.value
_SCHEDULED: Final = State.SCHEDULED.value
_USUAL: Final = {
    _ACTIVE: _AVAILABLE,
    _RETRYABLE: _ACTIVE,
    State.COMPLETED.value: _ACTIVE,
    State.DISCARDED.value: _ACTIVE,
}
"""The state before another one, for jobs whose earlier events are not known."""
_ENDS: Final = {
    State.COMPLETED.value: "job.completed",
    State.CANCELLED.value: "job.cancelled",
    State.DISCARDED.value: "job.discarded",
}


class JobEvent(NamedTuple):
    """An event of a job, or one that is reconstructed from its state."""

    id: str
    type: str
    time: str
    data: Form
    is_reconstructed: bool = False


class Purged(msgspec.Struct):
    """The history of a job was deleted: entries until then are not shown."""

    until: str


async def job_entries(backend: Backend, detail: JobDetail) -> list[Form]:
    """Return the entries of a job, oldest first, without those that were deleted."""
    job_id = detail.info.id
    events = [event_of(one) for one in reversed(await backend.events.newest((), (), job_id, MOST_EVENTS))]
    if not events or events[0].type != "job.enqueued":
        first = events[0].time if events else "~"
        events = [*(one for one in events_of_state(detail) if one.time < first), *events]
    entries = entries_of(job_id, events, detail.envelope)
    entries = kept(backend.extensions.history_purges, entries, detail.info.queue)
    purged = await backend.extensions.records.get(PURGED + job_id)
    if purged is None:
        return entries
    until = purged.read(Purged).until
    return [one for one in entries if str(one["timestamp"]) > until]


def kept(purges: SettingTable[HistoryPurge], entries: list[Form], queue: str) -> list[Form]:
    """Return the entries of a job of a queue that were not deleted with those of other jobs."""
    return [one for one in entries if not any(purge.covers(one, queue) for purge in purges.known.values())]


def event_of(form: Mapping[str, object]) -> JobEvent:
    """Return an event from the form of answers."""
    data = form["data"]
    return JobEvent(str(form["id"]), str(form["type"]), str(form["time"]), data if isinstance(data, dict) else {})


def entries_of(job_id: str, events: Sequence[JobEvent], envelope: Form | None) -> list[Form]:
    """Return the entries for the events of a job, both oldest first. `envelope` is the pushed job, if it is known."""
    return list(_Timeline(job_id, events, envelope).entries())


def events_of_state(detail: JobDetail) -> list[JobEvent]:
    """Return the events that the state of a job tells of, oldest first."""
    info = detail.info
    names: Form = {"job_type": info.type, "queue": info.queue}

    def event(kind: str, time: str, **data: object) -> JobEvent:
        name = f"{info.id}-{kind}-{data.get('attempt', 0)}"
        return JobEvent(name, kind, time, {**names, **data}, is_reconstructed=True)

    found: list[JobEvent] = []
    if info.enqueued_at is not None:
        found.append(event("job.enqueued", info.enqueued_at, scheduled_at=info.scheduled_at))
    for error in detail.errors or []:
        attempt = error.get("attempt")
        if str(error.get("occurred_at", "")) < (info.enqueued_at or ""):
            # It is of the run before a dead letter was retried.
            continue
        found.append(event("job.failed", str(error.get("occurred_at", "")), attempt=attempt, error=error))
        if isinstance(attempt, int) and (attempt < info.attempt or info.state == _RETRYABLE):
            found.append(event("job.retrying", str(error.get("occurred_at", "")), attempt=attempt))
    if info.started_at is not None:
        found.append(event("job.started", info.started_at, attempt=info.attempt, worker_id=info.worker_id))
    if info.state in TERMINAL and info.ended_at is not None:
        end: Form = {"attempt": info.attempt, "total_attempts": info.attempt, "last_error": info.error}
        if info.state == State.COMPLETED.value and info.started_at is not None:
            end["duration_ms"] = _milliseconds(info.started_at, info.ended_at)
        found.append(event(_ENDS[info.state], info.ended_at, **end))
    # The sort is stable, so that an attempt ends before the job does.
    return sorted(found, key=lambda one: one.time)


class _Timeline:
    """Converts the events of one job in order."""

    def __init__(self, job_id: str, events: Sequence[JobEvent], envelope: Form | None) -> None:
        self._job_id = job_id
        self._events = events
        self._args = None if envelope is None else envelope.get("args")
        self._retried = [one.data.get("attempt") for one in events if one.type == "job.retrying"]
        self._state = ""
        self._worker = ""
        self._due = ""
        """When the next attempt may start."""

    def entries(self) -> Iterator[Form]:
        for event in self._events:
            convert = _CONVERSIONS.get(event.type)
            if convert is not None:
                yield from convert(self, event)

    def enqueued(self, event: JobEvent) -> Iterator[Form]:
        data = event.data
        state = _SCHEDULED if data.get("scheduled_at") else _AVAILABLE
        if self._state:
            yield from self._change(event, state)
            return
        self._state = state
        size = {} if self._args is None else {"args_size_bytes": len(msgspec.json.encode(self._args))}
        yield self._entry(event, CREATED, {"queue": data.get("queue"), "type": data.get("job_type"), **size}, "client")

    def postponed(self, event: JobEvent) -> Iterator[Form]:
        if self._state != _SCHEDULED:
            yield from self._change(event, _SCHEDULED)

    def started(self, event: JobEvent) -> Iterator[Form]:
        self._worker = str(event.data.get("worker_id") or "")
        data: Form = {"worker_id": self._worker, "attempt": event.data.get("attempt")}
        if self._state in {_RETRYABLE, _SCHEDULED}:
            # The end of a delay has no event of its own.
            moment = min(self._due or event.time, event.time)
            yield from self._change(event._replace(id=f"{event.id}-due", time=moment), _AVAILABLE)
        yield from self._change(event, _ACTIVE)
        yield self._entry(event, "job.attempt_started", data, "worker")

    def completed(self, event: JobEvent) -> Iterator[Form]:
        data: Form = {"duration_ms": event.data.get("duration_ms"), "attempt": event.data.get("attempt")}
        yield self._entry(event, "job.attempt_completed", data, "worker")
        yield from self._change(event, State.COMPLETED.value)

    def failed(self, event: JobEvent) -> Iterator[Form]:
        error, attempt = event.data.get("error"), event.data.get("attempt")
        data: Form = {"error": _text_of(error), "attempt": attempt, "will_retry": attempt in self._retried}
        if isinstance(error, dict) and error.get("code"):
            data["error_code"] = error["code"]
        yield self._entry(event, "job.attempt_failed", data, "worker")

    def retrying(self, event: JobEvent) -> Iterator[Form]:
        self._due = str(event.data.get("next_retry_at") or "")
        yield from self._change(event, _RETRYABLE)

    def cancelled(self, event: JobEvent) -> Iterator[Form]:
        reason = event.data.get("reason")
        yield self._entry(event, "job.cancelled", {} if reason is None else {"reason": reason}, "client")
        yield from self._change(event, State.CANCELLED.value)

    def discarded(self, event: JobEvent) -> Iterator[Form]:
        data: Form = {"total_attempts": event.data.get("total_attempts")}
        data["last_error"] = _text_of(event.data.get("last_error"))
        yield self._entry(event, "job.discarded", data, "system")
        yield from self._change(event, State.DISCARDED.value)

    def progressed(self, event: JobEvent) -> Iterator[Form]:
        data = event.data
        checkpoint = data.get("checkpoint")
        if isinstance(checkpoint, dict):
            size = len(msgspec.json.encode(checkpoint.get("state")))
            saved: Form = {"sequence": checkpoint.get("sequence"), "size_bytes": size}
            yield self._entry(event, "job.checkpoint_saved", saved, "worker")
            return
        told: Form = {"percent": data.get("progress_percent"), "message": data.get("progress_message")}
        yield self._entry(event, "job.progress", told, "worker")

    def _change(self, event: JobEvent, state: str) -> Iterator[Form]:
        if self._state == state:
            # A job whose priority was changed is told of again.
            return
        data: Form = {"from": self._state or _USUAL.get(state), "to": state}
        self._state = state
        actor = "worker" if self._worker and event.type in {"job.started", "job.completed"} else "system"
        yield self._entry(event._replace(id=f"{event.id}-state"), CHANGED, data, actor)

    def _entry(self, event: JobEvent, kind: str, data: Form, actor: str) -> Form:
        form: Form = {
            "id": event.id,
            "job_id": self._job_id,
            "event_type": kind,
            "timestamp": event.time,
            "actor": {"type": actor, "id": self._worker} if actor == "worker" and self._worker else {"type": actor},
            "data": {name: value for name, value in data.items() if value is not None},
        }
        if event.is_reconstructed:
            form["metadata"] = {"reconstructed": True}
        return form


_CONVERSIONS: Final[dict[str, Callable[[_Timeline, JobEvent], Iterator[Form]]]] = {
    "job.enqueued": _Timeline.enqueued,
    "job.scheduled": _Timeline.postponed,
    "job.started": _Timeline.started,
    "job.completed": _Timeline.completed,
    "job.failed": _Timeline.failed,
    "job.retrying": _Timeline.retrying,
    "job.cancelled": _Timeline.cancelled,
    "job.discarded": _Timeline.discarded,
    "job.progress": _Timeline.progressed,
}


def _text_of(error: object) -> object:
    return error.get("message") if isinstance(error, dict) else None


def _milliseconds(begin: str, end: str) -> int | None:
    try:
        passed = parse_timestamp(end, "time") - parse_timestamp(begin, "time")
    except InvalidJob:
        return None
    return max(0, int(passed.total_seconds() * 1000))
