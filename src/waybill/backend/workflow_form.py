"""The form of a workflow in responses (ojs-workflows section 11, ojs-http-binding section 14).

The two specifications name the states of steps differently. Graphs come from the binding, so their steps are `pending`
until they are enqueued, then `available`; steps of chains, groups and batches are `waiting`, then `pending`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from waybill.backend.job_form import Form
from waybill.ojs.workflow.definition import COMPENSATION
from waybill.ojs.workflow.describe import describe
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.plan import Node
from waybill.ojs.workflow.progress import StepState, WorkflowState
from waybill.ojs.workflow.requests import StepInfo, WorkflowInfo
from waybill.ojs.workflow.values import Values

MAX_RESULTS: Final = 200
"""The maximum number of steps whose results are shown."""
MAX_RESULT_BYTES: Final = 64 * 1024
RUNNING: Final = "running"

_GRAPH_STATES: Final = {"waiting": "pending", "pending": "available"}


def form_of_workflow(flow: Flow, values: Values | None = None) -> Form:
    """Return the full form. `values` has the results of steps; without it they are omitted."""
    info = describe(flow, values)
    root = _shown_root(flow)
    is_graph = root.kind == "dag"
    form: Form = {
        "id": info.id,
        "name": info.name,
        "type": _kind(flow.plan.root, root),
        # An enqueued workflow counts as running.
        "state": RUNNING if info.state == WorkflowState.PENDING else info.state,
        "steps": _steps(flow, root, info, values, is_graph=is_graph),
        **_counts(flow, root),
        "failure_policy": root.policy if root.kind == "saga" else None,
        "callbacks": {
            name: _callback(flow, node) for name, node in flow.plan.root.callbacks.items() if root.kind != "saga"
        },
        "metadata": msgspec.to_builtins(info.metadata) | _job_counts(flow),
        "errors": msgspec.to_builtins(info.errors),
        "failed_step_index": info.failed_step_index,
        "failed_job_ids": info.failed_job_ids,
        "parent_job": info.parent_job,
        "result": info.result,
        "created_at": info.metadata.created_at,
        "started_at": info.metadata.started_at,
        "cancelled_at": info.metadata.cancelled_at,
        "completed_at": info.metadata.completed_at,
        "expires_at": info.metadata.expires_at,
    }
    if not form["callbacks"]:
        del form["callbacks"]
    if root.kind in {"group", "batch"}:
        form["jobs"] = form["steps"]
    if info.state == WorkflowState.COMPENSATED:
        form["compensated_at"] = info.metadata.completed_at
    if info.state == WorkflowState.FAILED:
        form["failed_at"] = info.metadata.completed_at
    return {name: value for name, value in form.items() if value is not None}


def _shown_root(flow: Flow) -> Node:
    """Return the node with the steps of the workflow: the graph of a batch, if it has one."""
    root = flow.plan.root
    return root.steps[0] if root.kind == "batch" and len(root.steps) == 1 and root.steps[0].kind == "dag" else root


def _kind(top: Node, shown: Node) -> str:
    """Return the kind of a workflow: a graph may be equivalent to a chain or a group."""
    if top.kind != "dag":
        return top.kind
    if not any(step.after for step in shown.steps):
        return "group"
    in_a_row = all(second.after == [first] for first, second in zip(shown.steps, shown.steps[1:], strict=False))
    return "chain" if in_a_row and not shown.steps[0].after else "dag"


def _counts(flow: Flow, root: Node) -> Form:
    total = len(root.steps)
    done = sum(flow.state(step) == StepState.COMPLETED for step in root.steps)
    what = "jobs" if _kind(flow.plan.root, root) in {"group", "batch"} else "steps"
    return {f"{what}_total": total, f"{what}_completed": done}


def _job_counts(flow: Flow) -> Form:
    """Return the counts of the jobs without callbacks, some of which are never enqueued (ojs-workflows section 3.3)."""
    called = [flow.state(node) for node in flow.plan.nodes if node.callback and node.kind == "job"]
    total, completed, failed = flow.counts()
    return {
        "job_count": total - len(called),
        "completed_count": completed - called.count(StepState.COMPLETED),
        "failed_count": failed - called.count(StepState.FAILED),
    }


def _steps(flow: Flow, root: Node, info: WorkflowInfo, values: Values | None, *, is_graph: bool) -> list[Form]:
    listed = info.steps if root is flow.plan.root else info.steps[0].steps
    return [
        _step(flow, node, step, values, is_graph=is_graph)
        for node, step in zip(root.steps, (one for one in listed if one.callback is None), strict=False)
    ]


def _step(flow: Flow, node: Node, info: StepInfo, values: Values | None, *, is_graph: bool) -> Form:
    form: Form = {
        "id": info.id,
        "name": info.id,
        "index": info.index,
        "type": info.type,
        "state": _GRAPH_STATES.get(info.state, info.state) if is_graph else info.state,
        "job_id": info.job_id,
        "depends_on": info.depends_on,
    }
    if info.started_at is not None:
        form["started_at"] = info.started_at
    if info.completed_at is not None:
        form["completed_at"] = info.completed_at
    parent = node.parent
    undo = None if parent is None else parent.callbacks.get(f"{COMPENSATION}{node.name}")
    if parent is not None and parent.kind == "saga":
        form["job_type"] = info.type
    if undo is not None:
        compensation = _callback(flow, undo)
        form |= {"compensate_type": compensation["type"], "compensate_args": compensation["args"]}
        form["compensation"] = compensation
    if node.kind != "job":
        form["steps"] = [
            _step(flow, child, one, values, is_graph=node.kind == "dag")
            for child, one in zip(_children(node), info.steps, strict=False)
        ]
    elif values is not None and info.index < MAX_RESULTS:
        state = flow.state(node)
        if state == StepState.COMPLETED:
            result = values.job(node.number, streamed=False)
            if result is not None and len(result) <= MAX_RESULT_BYTES:
                form["result"] = msgspec.Raw(result)
        elif state == StepState.FAILED:
            form["error"] = next(
                (msgspec.to_builtins(one) for one in flow.progress.errors if one.number == node.number), None
            )
    return form


def _children(node: Node) -> Iterator[Node]:
    yield from node.steps
    yield from node.callbacks.values()


def _callback(flow: Flow, node: Node) -> Form:
    state = flow.state(node)
    job = node.job or {}
    return {
        "type": job.get("type"),
        "args": job.get("args", []),
        "state": "waiting" if state < StepState.PENDING else StepState(state).name.lower(),
        "job_id": flow.shown_job_id(node.number) if StepState.PENDING <= state < StepState.CANCELLED else None,
    }
