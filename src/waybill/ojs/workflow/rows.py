"""Where a store keeps workflows: the keys of their rows, and the rows that are no state of their own.

workflow/ID                    Progress, marked while something is to be done
workflow-definition/ID         Kept, as it came
workflow-nodes/PREFIX          whose the jobs are whose ids begin so
workflow-members/ID/PIECE      the bits of some streamed jobs
workflow-results/ID/PIECE      the results of some jobs
workflow-due/TIME/ID           when a workflow expires, marked
workflow-ended/TIME/ID         when it ended, marked: it will be forgotten
workflow-unsealed/ID           its jobs are still being pushed, marked
workflow-following/ID          its steps wait for jobs that are not its own, marked
"""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.ojs.workflow.definition import Definition

WORKFLOW: Final = "workflow"
TO_DO: Final = "workflow"
DUE: Final = "workflow-due"
ENDED: Final = "workflow-ended"
UNSEALED: Final = "workflow-unsealed"
FOLLOWING: Final = "workflow-following"
RESULTS_PER_ROW: Final = 256


class DefinitionRow(msgspec.Struct):
    """A definition."""

    definition: Definition


class NodesRow(msgspec.Struct):
    """The workflow and the run that a prefix of job ids belongs to."""

    id: str
    run: int


class MomentRow(msgspec.Struct):
    """A workflow that must be handled later."""

    id: str


class ResultsRow(msgspec.Struct):
    """Results as JSON, by node number or member index."""

    values: dict[int, msgspec.Raw] = msgspec.field(default_factory=dict)


def progress_key(workflow_id: str) -> str:
    return f"workflow/{workflow_id}"


def definition_key(workflow_id: str) -> str:
    return f"workflow-definition/{workflow_id}"


def nodes_key(prefix: str) -> str:
    return f"workflow-nodes/{prefix}"


def members_key(workflow_id: str, piece: int) -> str:
    return f"workflow-members/{workflow_id}/{piece:04}"


def results_key(workflow_id: str, place: int, *, streamed: bool) -> str:
    """Return the key of the row with the result of a node or a member; rows have several adjacent ones."""
    return f"workflow-results/{workflow_id}/{'m' if streamed else 'n'}{place // RESULTS_PER_ROW:06}"


def due_key(time: str, workflow_id: str) -> str:
    return f"{DUE}/{time}/{workflow_id}"


def unsealed_key(workflow_id: str) -> str:
    return f"{UNSEALED}/{workflow_id}"


def following_key(workflow_id: str) -> str:
    return f"{FOLLOWING}/{workflow_id}"


def ended_key(time: str, workflow_id: str) -> str:
    return f"{ENDED}/{time}/{workflow_id}"
