"""Sagas: chains whose completed steps are undone, the last one first, when a step fails (ojs-workflows section 14)."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.ojs.workflow.definition import COMPENSATION
from waybill.ojs.workflow.plan import Node
from waybill.ojs.workflow.progress import StepState


def may_pass(parent: Node, state: int) -> bool:
    """Return whether steps after one in this state may start."""
    if state == StepState.COMPLETED:
        return True
    return parent.kind == "saga" and parent.policy == "skip" and state == StepState.FAILED


def next_compensation(saga: Node, states: Sequence[int]) -> Node | None:
    """Return the job that undoes the last completed step that is not undone, None if there is none."""
    for step in reversed(saga.steps):
        undo = saga.callbacks.get(f"{COMPENSATION}{step.name}")
        is_done = undo is None or states[undo.number] == StepState.COMPLETED
        if not is_done and states[step.number] == StepState.COMPLETED:
            return undo
    return None
