"""Requests and replies about workflows, over the request queue (ojs-workflows section 11)."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.ojs.workflow.progress import WORKFLOW_ENDS, StepError

INFO: Final = "ojs.control.workflow.info"
LIST: Final = "ojs.control.workflow.list"
WAIT: Final = "ojs.control.workflow.wait"
RESULTS: Final = "ojs.control.workflow.results"
CANCEL: Final = "ojs.control.workflow.cancel"
RETRY: Final = "ojs.control.workflow.retry"


class WorkflowRequest(msgspec.Struct, omit_defaults=True):
    """A request. `job_id` has the workflow's id: every kind of request has its subject in that field."""

    job_id: str = ""
    queue: str = ""
    state: str | None = None
    limit: int = 100
    step: int = 0
    """The node whose results are wanted, and the index to start at."""
    first: int = 0
    wait_seconds: float = 0.0


class StepInfo(msgspec.Struct, omit_defaults=True):
    """A step, a job of a group, a callback, or a workflow within. Times are RFC 3339."""

    id: str
    type: str
    index: int = 0
    state: str = ""
    job_id: str | None = None
    callback: str | None = None
    depends_on: list[str] = msgspec.field(default_factory=list)
    started_at: str | None = None
    completed_at: str | None = None
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    spawned: list[str] = msgspec.field(default_factory=list)
    job_count: int | None = None
    completed_count: int | None = None
    failed_count: int | None = None
    omitted_count: int = 0
    """The number of steps that are left out, because there are too many."""


class WorkflowMetadata(msgspec.Struct, omit_defaults=True):
    """Times and counts (section 3.3)."""

    created_at: str
    job_count: int
    completed_count: int
    failed_count: int
    started_at: str | None = None
    completed_at: str | None = None
    cancelled_at: str | None = None
    expires_at: str | None = None


class WorkflowInfo(msgspec.Struct, omit_defaults=True):
    """What a coordinator knows about a workflow (section 11.2)."""

    id: str
    type: str
    state: str
    metadata: WorkflowMetadata
    name: str = ""
    run: int = 0
    steps: list[StepInfo] = msgspec.field(default_factory=list)
    errors: list[StepError] = msgspec.field(default_factory=list)
    failed_step_index: int | None = None
    failed_job_ids: list[str] = msgspec.field(default_factory=list)
    parent_job: str | None = None
    result: object = None
    result_omitted: bool = False
    """Whether the result is too large to be included: RESULTS returns it page by page."""
    is_sealed: bool = True
    """Whether all jobs of a streamed group are in their queues."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.state in WORKFLOW_ENDS


class WorkflowReply(msgspec.Struct, omit_defaults=True):
    """A reply: workflows, none if it is unknown, or results."""

    workflows: list[WorkflowInfo] = msgspec.field(default_factory=list)
    results: dict[int, msgspec.Raw] = msgspec.field(default_factory=dict)
    next: int | None = None
    """The index at which further results start."""
    refused: str | None = None
