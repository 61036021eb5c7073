"""The events of a workflow's progress (ojs-events section 4.4, ojs-workflows appendix B)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.event_data import ErrorSummary, EventData
from waybill.ojs.spec.timestamps import parse_timestamp
from waybill.ojs.spec.workflow_events import (
    WorkflowCallbackFired,
    WorkflowCancelled,
    WorkflowCompensated,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowJobCompleted,
    WorkflowJobFailed,
    WorkflowStarted,
    WorkflowStepCompleted,
    WorkflowStepFailed,
)
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.plan import ROOT, Node
from waybill.ojs.workflow.progress import Progress, StepState, WorkflowState

MAX_AT_A_TIME = 1000


class Announcement(NamedTuple):
    """An event to be written; `what` distinguishes it from all other events about this workflow."""

    what: str
    data: EventData
    time: str | None = None


def announcements(flow: Flow) -> list[Announcement]:
    """Return the events about a workflow that the stream does not have yet, in order."""
    progress = flow.progress
    found = []
    named = {"workflow_id": progress.id, "workflow_name": progress.name}
    if progress.started_at is not None and not progress.told_started:
        data = WorkflowStarted(**named, total_steps=flow.counts()[0])
        found.append(Announcement("started", data, progress.started_at))
    job_count, completed_count, _ = flow.counts() if flow.untold else (0, 0, 0)
    for number in list(flow.untold)[:MAX_AT_A_TIME]:
        found += _about_step(flow, flow.plan[number], job_count - completed_count)
    if flow.is_over and not progress.told_ended:
        found.append(Announcement(f"{progress.state} {_turn(flow, ROOT, progress.run)}", _end(flow), progress.ended_at))
    return found


def _about_step(flow: Flow, node: Node, remaining: int) -> list[Announcement]:
    progress, state = flow.progress, flow.state(node)
    number, run = node.number, progress.runs.get(node.number, 0)
    told = progress.told[number]
    named = {"workflow_id": progress.id, "workflow_name": progress.name}
    job_id = flow.shown_job_id(number) if node.kind == "job" else None
    found = []
    if node.callback and not told & 1 and job_id is not None and state != StepState.READY:
        fired = WorkflowCallbackFired(
            **named, callback=node.callback, step_id=node.path, job_id=job_id, number=number, run=run
        )
        found.append(Announcement(f"fired {number} {run}", fired))
    if state < StepState.COMPLETED or told & 2:
        return found
    in_group = node.parent is not None and node.parent.kind in {"group", "batch"} and not node.callback
    times = progress.times(number) or (0, 0)
    if state == StepState.COMPLETED:
        done = WorkflowJobCompleted if in_group else WorkflowStepCompleted
        data: EventData = done(
            **named,
            step_id=node.path,
            step_type=node.job_type,
            duration_ms=max(times[1] - times[0], 0),
            steps_remaining=remaining,
            job_id=job_id,
            number=number,
            run=run,
        )
    else:
        failed = WorkflowJobFailed if in_group else WorkflowStepFailed
        data = failed(
            **named,
            step_id=node.path,
            step_type=node.job_type,
            job_id=job_id,
            error=_error(flow, number),
            number=number,
            run=run,
        )
    found.append(Announcement(f"ended {number} {_turn(flow, number, run)}", data))
    return found


def _turn(flow: Flow, number: int, run: int) -> str:
    """Tell the ends of a node apart."""
    retried = flow.progress.retried.get(number, 0)
    return f"{run}.{retried}" if retried else str(run)


def _end(flow: Flow) -> EventData:
    progress = flow.progress
    named = {"workflow_id": progress.id, "workflow_name": progress.name}
    if progress.state == WorkflowState.CANCELLED:
        return WorkflowCancelled(**named)
    if progress.state == WorkflowState.COMPLETED:
        return WorkflowCompleted(**named, total_steps=flow.counts()[0], duration_ms=_duration_ms(progress))
    first = next(iter(progress.errors), None)
    node = flow.plan[first.number] if first is not None and flow.plan.has(first.number) else flow.plan.root
    kind = WorkflowCompensated if progress.state == WorkflowState.COMPENSATED else WorkflowFailed
    return kind(
        **named, failed_step_id=node.path or "workflow", failed_step_type=node.job_type, error=_error(flow, node.number)
    )


def _error(flow: Flow, number: int) -> ErrorSummary:
    found = next((one for one in flow.progress.errors if one.number == number), None)
    if found is None:
        return ErrorSummary(code="HANDLER_ERROR", message="a job failed")
    return ErrorSummary(code=found.code, message=found.message, type=found.type)


def _duration_ms(progress: Progress) -> int:
    try:
        passed = parse_timestamp(progress.ended_at or "", "time") - parse_timestamp(
            progress.started_at or progress.created_at, "time"
        )
    except InvalidJob:
        return 0
    return max(passed // timedelta(milliseconds=1), 0)
