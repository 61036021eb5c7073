"""The form of a job in responses: the pushed job with its state from the events.

The end of a delay has no event: a scheduled or retryable job becomes available at its time, when its message arrives in
its queue. An expired job never starts.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.envelope import Envelope, ttl_end
from waybill.ojs.spec.retry import DEFAULT_RETRY
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_duration, parse_timestamp
from waybill.ojs.worker.attempt_ends import expiry_record

EXPIRED: Final = "JOB_EXPIRED"
TERMINAL: Final = frozenset({State.COMPLETED.value, State.CANCELLED.value, State.DISCARDED.value})
UNFINISHED: Final = frozenset(state.value for state in State) - TERMINAL
_AVAILABLE: Final = State.AVAILABLE.value
_DISCARDED: Final = State.DISCARDED.value
_UNSTARTED: Final = frozenset({State.AVAILABLE.value, State.SCHEDULED.value, State.PENDING.value})
_ERROR_FIELDS: Final = ("type", "message", "code")
_LIMIT_FIELDS: Final = ("timeout_kind", "limit_seconds", "elapsed_seconds")
_TIMES: Final = (
    "created_at",
    "enqueued_at",
    "started_at",
    "scheduled_at",
    "completed_at",
    "cancelled_at",
    "discarded_at",
)

Form = dict[str, object]

DEFAULT_POLICY: Final[Form] = {
    name: format_duration(value) if isinstance(value, timedelta) else msgspec.to_builtins(value)
    for name, value in msgspec.structs.asdict(DEFAULT_RETRY).items()
}
"""The retry policy of jobs that have none."""


def form_of_push(envelope: Envelope, body: Form) -> Form:
    """Return the form of a job that was just enqueued; `body` is its envelope as JSON."""
    return {
        **body,
        "state": envelope.state,
        "priority": envelope.priority,
        "attempt": 0,
        "max_attempts": envelope.policy.max_attempts,
    }


def form_of(detail: JobDetail, now: datetime) -> Form:
    """Return the current form of a job.

    Events of jobs pushed over AMQP contain no arguments: these jobs have no `args`, and `args_known` is false.
    """
    info = detail.info
    form: Form = dict(detail.envelope or {})
    form.setdefault("id", info.id)
    form |= {"type": info.type or form.get("type", ""), "queue": info.queue or form.get("queue", "")}
    form["attempt"] = info.attempt
    form["state"] = state = state_of(info, form, now)
    form.setdefault("priority", 0)
    if "args" not in form:
        form |= {"args": [], "args_known": False}
    for name in ("enqueued_at", "scheduled_at", "started_at", "worker_id", "progress", "progress_message"):
        value = getattr(info, name)
        if value is not None and name not in form:
            form[name] = value
    form["enqueued_at"] = info.enqueued_at
    form.setdefault("created_at", info.enqueued_at)
    if state == State.RETRYABLE.value:
        form["next_attempt_at"] = info.next_retry_at
    if state == _DISCARDED != info.state:
        error = expiry_record(_waiting(form, info), now)
        names = _ERROR_FIELDS if error.timeout_kind is None else _ERROR_FIELDS + _LIMIT_FIELDS
        form["error"] = {name: getattr(error, name) for name in names}
    elif info.error is not None and (state != State.COMPLETED.value or _is_of_result(info.error)):
        form["error"] = info.error
    if detail.errors:
        form["errors"] = _traced(detail.errors, info.error)
    if info.result is not None:
        form["result"] = info.result
    _add_end(form, info, state)
    list_parents(form)
    return {name: value for name, value in form.items() if value is not None}


def times_of(form: Form) -> Form:
    """Return the times of a job, None for those that have not come (ojs-admin-api section 7.2)."""
    return {name: form.get(name) for name in _TIMES}


def about_result(info: JobInfo) -> Form:
    """Return what is told of a result besides its value (ojs-results section 6.2)."""
    if info.result is None:
        return {}
    form: Form = {"result_stored_at": info.ended_at, "result_size_bytes": len(msgspec.json.encode(info.result))}
    return form if info.result_expires_at is None else form | {"result_expires_at": info.result_expires_at}


def list_parents(form: Form) -> None:
    """Return the results of earlier steps as a list, which the binding's clients expect, and also by step."""
    parents = form.get("parent_results")
    if isinstance(parents, dict):
        form |= {"parent_results": list(parents.values()), "parent_results_by_step": parents}


def state_of(info: JobInfo, envelope: Form, now: datetime) -> str:
    """Return the state of a job at a moment."""
    state = info.state
    if (state == State.SCHEDULED.value and _is_over(info.scheduled_at, now)) or (
        state == State.RETRYABLE.value and _is_over(info.next_retry_at, now)
    ):
        state = _AVAILABLE
    if state == _AVAILABLE and _is_over(envelope.get("expires_at"), now):
        return _DISCARDED
    if state in _UNSTARTED and "enqueue_ttl" in envelope:
        end = ttl_end(_waiting(envelope, info))
        return _DISCARDED if end is not None and end <= now else state
    return state


def _waiting(form: Form, info: JobInfo) -> Envelope:
    """Return a waiting job with what says by when it must start."""
    created_at, expires_at = form.get("created_at"), form.get("expires_at")
    return Envelope(
        id=info.id,
        type=info.type,
        attempt=info.attempt,
        created_at=created_at if isinstance(created_at, str) else info.enqueued_at,
        expires_at=expires_at if isinstance(expires_at, str) else None,
        enqueue_ttl=form.get("enqueue_ttl"),
        total_timeout=form.get("total_timeout"),
    )


def _add_end(form: Form, info: JobInfo, state: str) -> None:
    """Add the times of the end: `completed_at` is set if the last attempt ended, successfully or not."""
    if state not in TERMINAL or info.ended_at is None:
        return
    form[f"{state}_at"] = info.ended_at
    if state == _DISCARDED and (info.error or {}).get("code") != EXPIRED:
        form["completed_at"] = info.ended_at


def _traced(errors: list[Form], last: Form | None) -> list[Form]:
    """Return the history of errors, the last one with its stack trace."""
    trace = (last or {}).get("stack_trace")
    if trace is None or errors[-1].get("message") != (last or {}).get("message"):
        return errors
    return [*errors[:-1], {**errors[-1], "stack_trace": trace}]


def _is_of_result(error: dict[str, object]) -> bool:
    """Whether an error is the outcome: errors of attempts before a success are history."""
    return str(error.get("code", "")).startswith("RESULT_")


def _is_over(time: object, now: datetime) -> bool:
    if not isinstance(time, str):
        return False
    try:
        return parse_timestamp(time, "time") <= now
    except InvalidJob:
        return False
