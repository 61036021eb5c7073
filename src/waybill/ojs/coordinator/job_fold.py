"""The effect of an event on the state of a job: a pure function of both.

Events of clients and workers can overtake each other, so an event only moves a job forward: by run, by attempt, then by
phase. The first end of a run counts. A run begins when a dead letter is retried; its events have its number, since the
clocks of those who write them may differ. Where a number is missing, only an enqueueing or a start after the end
starts the job again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import msgspec

from waybill.ojs.coordinator.feature_fold import EventRefused
from waybill.ojs.coordinator.job_record import JobRecord, RawJobRecord
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.checkpoint import read_checkpoint
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import MAX_ERRORS, MAX_ID_LENGTH, MAX_TYPE_LENGTH
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import push_event_id
from waybill.ojs.spec.nesting import clean_text
from waybill.ojs.spec.states import TERMINAL, State
from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp
from waybill.ojs.spec.unique import stands_in_the_way

# Plain strings: every event of every job passes here, and `.value` of an enum member is slow.
ENDS: Final = {
    "job.completed": State.COMPLETED.value,
    "job.discarded": State.DISCARDED.value,
    "job.cancelled": State.CANCELLED.value,
}
_ACTIVE: Final = State.ACTIVE.value
_AVAILABLE: Final = State.AVAILABLE.value
END_STATES: Final = frozenset(state.value for state in TERMINAL)
ENQUEUED: Final = "job.enqueued"
_PHASES: Final = {
    ENQUEUED: (0, _AVAILABLE),
    "job.started": (1, _ACTIVE),
    "job.retrying": (2, State.RETRYABLE.value),
}
_WAITING: Final = frozenset({_AVAILABLE, State.SCHEDULED.value})
DELETED: Final = "job.deleted"
_END_RANK: Final = 1 << 40
_RUN_RANK: Final = 1 << 41
MAX_RUN: Final = 2**20
"""The ranks of a run are those of the first one, and this much for each run before: -1, one for each attempt and phase,
and that of the end.
"""
MAX_NUMBER: Final = 2**31 - 1
_FOR_EVER: Final = "9999-12-31T23:59:59Z"
MAX_TIME_LENGTH: Final = 64
MAX_KEY_LENGTH: Final = 500
"""Characters of up to four bytes: an index of PostgreSQL has room for 2,700 bytes."""
MAX_NAME_LENGTH: Final = MAX_TYPE_LENGTH
"""The same for types and queues, whose indexes also contain the state and the id."""
_PHASES_PER_ATTEMPT: Final = 3
_TEXTS_OF_ERRORS: Final = ("code", "type", "message")
MAX_TRACE: Final = 10_000
"""The maximum length of the last error's stack trace, in characters. Its end has the frames that raised."""


def new_record(event: ReceivedEvent) -> JobRecord:
    """Return a job as it is before its first event: only with what every event tells."""
    job_type, queue = event.data.get("job_type"), event.data.get("queue")
    return RawJobRecord(
        id=event.subject,
        type=_name(job_type) or "",
        queue=_name(queue) or "",
        state=_AVAILABLE,
    )


def fold_all(
    events: Sequence[ReceivedEvent], jobs: dict[str, JobRecord], same: defaultdict[object, list[JobRecord]]
) -> dict[str, JobInfo | None]:
    """Apply events to jobs, in order; new jobs are added, and deleted ones removed.

    `jobs` has the jobs of the events by id, and `same` the jobs among these that reservations compete with, by unique
    key. Returns for each reservation, by the id of its event, the conflicting job, None if it got its place. Raises
    EventRefused for an event that fails.
    """
    verdicts: dict[str, JobInfo | None] = {}
    for event in events:
        try:
            _fold_one(event, jobs, same, verdicts)
        except Exception as error:
            raise EventRefused(event.id) from error
    return verdicts


def _fold_one(
    event: ReceivedEvent,
    jobs: dict[str, JobRecord],
    same: defaultdict[object, list[JobRecord]],
    verdicts: dict[str, JobInfo | None],
) -> None:
    if event.type == DELETED:
        forget(jobs, event, same)
        return
    job = jobs.get(event.subject)
    if event.type == "job.reserved":
        candidates = same[unique_key_of(event)]
        obstacle = None if job in candidates else in_the_way(candidates, event)
        verdicts[event.id] = None if obstacle is None else info_of(obstacle)
        if obstacle is not None or job in candidates:
            return
    if job is None:
        if event.data.get("waited") is True:
            # It was cancelled and deleted before a worker met its message.
            return
        job = jobs[event.subject] = new_record(event)
    if event.type == "job.reserved":
        reserve(job, event)
        same[job.unique_key].append(job)
    fold(job, event)


def forget(
    jobs: dict[str, JobRecord], event: ReceivedEvent, same: Mapping[object, list[JobRecord]] = MappingProxyType({})
) -> None:
    """Remove the job of a deletion from `jobs`, if it has ended."""
    job = jobs.get(event.subject)
    if job is not None and job.state in END_STATES:
        del jobs[event.subject]
        candidates = same.get(job.unique_key, [])
        if job in candidates:
            candidates.remove(job)


def is_foldable(event: ReceivedEvent) -> bool:
    """Return whether an event is about a job and every store can store it.

    Anyone with write access to the exchange can publish events, so each field may have any value of its JSON type.
    """
    if not event.type.startswith("job."):
        return False
    subject, time = event.subject, event.time
    if not 0 < len(subject) <= MAX_ID_LENGTH or len(time) > MAX_TIME_LENGTH or "\0" in subject or "\0" in time:
        return False
    return event.type != "job.reserved" or (unique_key_of(event) is not None and _is_time(time))


def unique_key_of(event: ReceivedEvent) -> str | None:
    """Return the fingerprint that an event names. A foreign producer's long one is replaced by its own fingerprint."""
    key = event.data.get("unique_key")
    if not isinstance(key, str):
        return None
    if len(key) > MAX_KEY_LENGTH or "\0" in key:
        return hashlib.sha256(key.encode()).hexdigest()
    return key


def _is_time(text: str) -> bool:
    try:
        parse_timestamp(text, "time")
    except InvalidJob:
        return False
    return True


def fold(job: JobRecord, event: ReceivedEvent) -> None:
    """Apply an event to its job."""
    kind, data = event.type, event.data
    if "run" in data:
        run = min(_number(data["run"]), MAX_RUN)
        if run < run_of(job):
            return
        if run > run_of(job):
            _begin_anew(job, run)
    if kind in ENDS:
        _end(job, event)
    elif kind in _PHASES:
        _advance(job, event)
    elif kind == "job.heartbeat":
        _keep_hold(job, event)
    elif kind == "job.scheduled":
        _postpone(job, event)
    elif kind == "job.released":
        if job.state == State.PENDING.value:
            job.state, job.ended_at, job.unique_key = State.CANCELLED.value, event.time, None
    elif kind == "job.progress":
        _note_progress(job, event)
    elif kind == "job.staged":
        _stage(job, event)
    elif kind == "job.failed" and not _is_over(job):
        job.error = _failure(data.get("error"))
        _add_failure(job, event)


def run_of(job: JobRecord) -> int:
    """Return how often a job was a dead letter that was retried."""
    return (job.rank + 1) // _RUN_RANK


def _is_over(job: JobRecord) -> bool:
    """Whether the present run of a job has ended."""
    return job.rank >= run_of(job) * _RUN_RANK + _END_RANK


def _stage(job: JobRecord, event: ReceivedEvent) -> None:
    """Record a staged job, unless more is known of it."""
    if job.rank < 0 and job.ended_at is None and job.envelope is None:
        job.state = State.PENDING.value
        job.envelope = _object(event.data.get("job"))
        job.owner = _text(event.user)
        # A place in this state is normally lost if the job is never enqueued; a staged job may wait as long as it
        # likes.
        job.visible_until = _FOR_EVER


def reserve(job: JobRecord, event: ReceivedEvent) -> None:
    """Give a new job the place that it has reserved."""
    job.state = State.PENDING.value
    job.unique_key = unique_key_of(event)
    job.created_at = event.time
    job.owner = _text(event.data.get("reserved_by"))
    job.visible_until = _text(event.data.get("reserved_until"))


def in_the_way(candidates: Sequence[JobRecord], event: ReceivedEvent) -> JobRecord | None:
    """Return the job that makes the job of `event` a duplicate."""
    data = event.data
    for job in candidates:
        if job.id != event.subject and stands_in_the_way(
            job,
            job.created_at or job.enqueued_at,
            states=data.get("states"),
            period=data.get("period"),
            now=event.time,
        ):
            return job
    return None


_values_of: Final = attrgetter(*JobInfo.__struct_fields__)


def info_of(job: JobRecord) -> JobInfo:
    """Return the public part of a job."""
    info = JobInfo(*_values_of(job))
    if info.result_expires_at is not None and info.result_expires_at <= format_timestamp(datetime.now(UTC)):
        text = f"the result was kept until {info.result_expires_at}"
        info.result, info.error = None, {"code": "RESULT_PRUNED", "message": text}
    return info


def has_ended(job: JobInfo) -> bool:
    """Return whether a job is in a terminal state."""
    return job.state in END_STATES


def _advance(job: JobRecord, event: ReceivedEvent) -> None:
    data = event.data
    phase, state = _PHASES[event.type]
    attempt = _number(data.get("attempt"))
    rank = run_of(job) * _RUN_RANK + attempt * _PHASES_PER_ATTEMPT + phase
    # A coordinator may push a job twice, but the second copy does not run: see `claims`.
    is_copy = event.type == ENQUEUED and (job.enqueued_at or job.ended_at) and event.id == push_event_id(job.id)
    if is_copy and job.enqueued_at is not None:
        return
    # A first push whose event is late begins nothing: it has no earlier one.
    is_unnumbered = event.type in {ENQUEUED, "job.started"} and not is_copy and "run" not in data
    is_again = is_unnumbered and (event.type != ENQUEUED or job.enqueued_at is not None)
    if is_again and job.ended_at is not None and job.ended_at < event.time:
        # It was pushed again. The event of its start may arrive first.
        _begin_anew(job, run_of(job))
    if event.type == ENQUEUED:
        # The first event counts: no other program knows the id before.
        job.owner = job.owner or _text(event.user)
        if job.enqueued_at is None or job.enqueued_at <= event.time:
            # It may have moved to another queue.
            job.queue = _name(data.get("queue")) or job.queue
        job.enqueued_at = event.time
        job.scheduled_at = _text(data.get("scheduled_at"))
        job.unique_key = unique_key_of(event) or job.unique_key
        job.envelope = _object(data.get("job")) or job.envelope
        if job.scheduled_at is not None:
            state = State.SCHEDULED.value
    elif event.type == "job.started" and job.attempt <= attempt:
        job.started_at = event.time
        job.worker_id = _text(data.get("worker_id"))
        job.progress = job.progress_message = job.progress_data = job.progress_at = None
    if job.rank < rank:
        job.state = state
        job.attempt = attempt
        job.next_retry_at = _text(data.get("next_retry_at"))
        job.rank = rank
        _let_go(job)


def _keep_hold(job: JobRecord, event: ReceivedEvent) -> None:
    """Extend the lease of the current attempt; a replaced attempt has none."""
    data = event.data
    if job.state != _ACTIVE or job.attempt != _number(data.get("attempt")):
        return
    job.visible_until = _text(data.get("visible_until"))
    job.message = _object(data.get("message")) or job.message
    job.visibility_ms = _number(data.get("visibility_ms")) or job.visibility_ms


def _let_go(job: JobRecord) -> None:
    job.visible_until = job.visibility_ms = job.message = None


def _postpone(job: JobRecord, event: ReceivedEvent) -> None:
    """Let an attempt begin later: undo its start, unless it has started again since, or it has not started yet."""
    later, undoes = _text(event.data.get("scheduled_at")), event.data.get("undoes")
    is_known = isinstance(undoes, str)
    if is_known and job.state == _ACTIVE and job.started_at != undoes:
        # The attempt has begun again elsewhere.
        return
    is_begun = job.state == _ACTIVE and job.started_at is not None
    if is_begun and (is_known or (job.started_at or "") <= event.time):
        job.state = State.SCHEDULED.value
        job.scheduled_at = later
        job.rank = run_of(job) * _RUN_RANK + job.attempt * _PHASES_PER_ATTEMPT
    elif later is None or job.enqueued_at is None or (job.enqueued_at > event.time and not is_known):
        return
    elif job.state in _WAITING:
        job.state = State.SCHEDULED.value
        job.scheduled_at = later
    elif job.state == State.RETRYABLE.value and job.next_retry_at is not None and job.next_retry_at <= event.time:
        job.next_retry_at = later


def _begin_anew(job: JobRecord, run: int) -> None:
    if job.state != State.DISCARDED.value:
        # A dead letter keeps its failures (ojs-dead-letter section 6.1).
        job.errors = None
    job.rank = run * _RUN_RANK - 1
    job.attempt = 0
    job.ended_at = job.started_at = job.next_retry_at = None
    _let_go(job)
    job.error = job.result = job.result_expires_at = job.worker_id = None
    job.progress = job.progress_message = job.progress_data = job.progress_at = job.checkpoint = None


def _note_progress(job: JobRecord, event: ReceivedEvent) -> None:
    """Record progress of the current attempt; that of a replaced attempt is ignored."""
    data = event.data
    if job.state != _ACTIVE or job.attempt != _number(data.get("attempt")):
        return
    percent = data.get("progress_percent", 0)
    if isinstance(percent, int | float):
        job.progress = max(job.progress or 0.0, min(percent, 100) / 100)
    job.progress_message = _text(data.get("progress_message")) or job.progress_message
    job.progress_data = _object(data.get("progress_data")) or job.progress_data
    job.progress_at = event.time
    if data.get("checkpoint_removed") is True:
        job.checkpoint = None
    job.checkpoint = read_checkpoint(data.get("checkpoint")) or job.checkpoint


def _add_failure(job: JobRecord, event: ReceivedEvent) -> None:
    """Add a failed attempt to the history, once: events may arrive twice."""
    when: dict[str, object] = {"attempt": _number(event.data.get("attempt")), "occurred_at": event.time}
    if run := run_of(job):
        when["run"] = run
    errors = job.errors or []
    if job.error is not None and not any(_is_same_failure(job, one, when) for one in errors):
        failure = {**job.error, **when}
        failure.pop("stack_trace", None)
        job.errors = [*errors, failure][-MAX_ERRORS:]


def _is_same_failure(job: JobRecord, known: dict[str, object], failure: dict[str, object]) -> bool:
    """Whether a failure is known: of the same attempt of the same run.

    A run begins when a dead letter is enqueued again or started again: either event may arrive first.
    """
    if known.get("run") != failure.get("run"):
        return False
    time = str(known.get("occurred_at", ""))
    begin = max(job.enqueued_at or "", job.started_at or "" if job.attempt == failure["attempt"] else "")
    return known.get("attempt") == failure["attempt"] and (time == failure["occurred_at"] or time >= begin)


def _end(job: JobRecord, event: ReceivedEvent) -> None:
    data = event.data
    run_rank = run_of(job) * _RUN_RANK
    if job.rank >= run_rank + _bound(event):
        return
    job.state = ENDS[event.type]
    job.ended_at = event.time
    job.rank = run_rank + _END_RANK
    job.attempt = max(job.attempt, _number(data.get("attempt", data.get("total_attempts"))))
    job.next_retry_at = job.checkpoint = None
    _let_go(job)
    job.result = data.get("result")
    job.result_expires_at = _text(data.get("result_expires_at"))
    job.error = _with_trace(_error(data), job.error)
    if event.type == "job.completed" and job.progress is not None:
        job.progress = 1.0


def _error(data: dict[str, object]) -> dict[str, object] | None:
    """Return the error in a job's final event, and whether the job is kept as a dead letter."""
    if "last_error" not in data and "result_error" not in data:
        return None
    error = _failure(data.get("last_error")) or _failure(data.get("result_error"))
    if error is not None and data.get("dead_letter") is True:
        error["dead_letter"] = True
    return error


def _failure(value: object) -> dict[str, object] | None:
    """Return an error with texts where texts belong, and at most a bounded stack trace."""
    error = _object(value)
    if error is None:
        return None
    for name in _TEXTS_OF_ERRORS:
        if not isinstance(error.get(name, ""), str):
            error[name] = clean_text(str(error[name]), MAX_KEY_LENGTH)
    if "stack_trace" in error:
        trace = error.pop("stack_trace")
        if isinstance(trace, str) and trace:
            error["stack_trace"] = clean_text(trace[-MAX_TRACE:], MAX_TRACE)
    return error


def _with_trace(error: dict[str, object] | None, before: dict[str, object] | None) -> dict[str, object] | None:
    """Return the last error of a job, with the stack trace from the event of its failure."""
    if error is None or before is None:
        return error or before
    if "stack_trace" in before and error.get("message") == before.get("message"):
        error.setdefault("stack_trace", before["stack_trace"])
    return error


def _bound(event: ReceivedEvent) -> int:
    """Return the rank below which an end counts.

    A late result of a replaced attempt does not count, as the next attempt has one too. But a unique job that leaves
    its place, and a job whose claim ends, have no next attempt.
    """
    attempt = _number(event.data.get("attempt"))
    if event.type == "job.completed" and attempt and event.data.get("no_more_attempts") is not True:
        return attempt * _PHASES_PER_ATTEMPT + _PHASES["job.retrying"][0]
    return _END_RANK


def _number(value: object) -> int:
    """Return a number that fits a column of 32 bits."""
    if type(value) is int and 0 <= value <= MAX_NUMBER:
        return value
    return min(max(value, 0), MAX_NUMBER) if isinstance(value, int) and not isinstance(value, bool) else 0


def _text(value: object, most: int = MAX_KEY_LENGTH) -> str | None:
    """Return a text that fits a database column and an index."""
    if not isinstance(value, str):
        return None
    return value if len(value) <= most and "\0" not in value else clean_text(value, most)


def _name(value: object) -> str | None:
    """Return a text that fits an index with other columns."""
    return _text(value, MAX_NAME_LENGTH)


def _object(value: object) -> dict[str, object] | None:
    return msgspec.convert(value, dict[str, object]) if isinstance(value, dict) else None
