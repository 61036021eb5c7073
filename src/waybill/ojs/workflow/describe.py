"""The description of a workflow in replies (ojs-workflows sections 3.3, 9.6 and 11.2)."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.plan import Node
from waybill.ojs.workflow.progress import STEP_NAMES, StepState, WorkflowState
from waybill.ojs.workflow.requests import StepInfo, WorkflowInfo, WorkflowMetadata
from waybill.ojs.workflow.values import TooLarge, Values

MAX_SHOWN: Final = 1000
"""The maximum number of steps in the description of a part; longer chains are cut."""


def describe(flow: Flow, values: Values | None = None, *, steps: bool = True) -> WorkflowInfo:
    """Return the description; with `values`, including the result of a completed workflow."""
    progress, root = flow.progress, flow.plan.root
    job_count, completed_count, failed_count = flow.counts()
    cancelled = progress.state == WorkflowState.CANCELLED
    info = WorkflowInfo(
        id=progress.id,
        type=root.kind,
        state=progress.state,
        name=progress.name,
        run=progress.run,
        parent_job=progress.parent_job,
        errors=progress.errors,
        failed_job_ids=[error.job_id for error in progress.errors if error.job_id],
        is_sealed=flow.plan.streamed is None or progress.members.total is not None,
        metadata=WorkflowMetadata(
            created_at=progress.created_at,
            started_at=progress.started_at,
            completed_at=None if cancelled else progress.ended_at,
            cancelled_at=progress.ended_at if cancelled else None,
            expires_at=progress.expires_at,
            job_count=job_count,
            completed_count=completed_count,
            failed_count=failed_count,
        ),
    )
    if root.kind in {"chain", "saga"}:
        failed = (step.place for step in root.steps if flow.state(step) == StepState.FAILED)
        info.failed_step_index = next(failed, None)
    if steps:
        info.steps = _parts(flow, root)
    if values is not None and progress.state == WorkflowState.COMPLETED:
        try:
            info.result = msgspec.Raw(values.node(root))
        except TooLarge:
            info.result_omitted = True
    return info


def _parts(flow: Flow, node: Node) -> list[StepInfo]:
    shown = [_step(flow, step) for step in node.steps[:MAX_SHOWN]]
    return [*shown, *(_step(flow, one) for one in node.callbacks.values())]


def _step(flow: Flow, node: Node) -> StepInfo:
    state = flow.state(node)
    info = StepInfo(
        id=node.name,
        type=node.job_type,
        index=node.place,
        state=STEP_NAMES[state],
        callback=node.callback or None,
        depends_on=[one.name for one in node.after] if node.parent is not None and node.parent.kind == "dag" else [],
        spawned=list(flow.progress.children.get(node.number, {})),
    )
    if node.kind != "job":
        info.steps = _parts(flow, node)
        info.omitted_count = max(len(node.steps) - MAX_SHOWN, 0)
    elif state >= StepState.PENDING and (state != StepState.CANCELLED or _was_due(flow, node)):
        info.job_id = flow.shown_job_id(node.number)
    if node.streamed:
        counts = flow.progress.members
        info.job_count, info.completed_count, info.failed_count = counts.known, counts.done, counts.failed
    times = flow.progress.times(node.number)
    if times is not None:
        info.started_at = _moment(flow, times[0])
        info.completed_at = _moment(flow, times[1]) if state >= StepState.COMPLETED else None
    return info


def _was_due(flow: Flow, node: Node) -> bool:
    """Return whether a cancelled job was enqueued: it has started, or what it waited for is completed."""
    if flow.progress.times(node.number) is not None or node.parent is None:
        return True
    is_free = not node.callback and all(flow.state(one) == StepState.COMPLETED for one in node.after)
    return is_free and _was_due(flow, node.parent)


def _moment(flow: Flow, offset_ms: int) -> str:
    created = parse_timestamp(flow.progress.created_at, "time")
    try:
        return format_timestamp(created + timedelta(milliseconds=offset_ms))
    except OverflowError:
        # Written by a wrong clock.
        return flow.progress.created_at
