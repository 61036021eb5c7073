"""Events about workflows (ojs-events section 4.4), and those by which coordinators agree on them."""

from __future__ import annotations

from collections.abc import Sequence

from waybill.ojs.spec.event_data import ErrorSummary, EventData


class WorkflowEventData(EventData, frozen=True, kw_only=True):
    """What every workflow event says."""

    workflow_id: str
    workflow_name: str


class WorkflowCreated(WorkflowEventData, frozen=True, kw_only=True):
    """A workflow was pushed: the definition of all its jobs is here (ojs-workflows appendix B)."""

    workflow_type: str
    total_steps: int
    definition: object
    expires_at: str | None = None
    parent_job: str | None = None


class WorkflowSealed(WorkflowEventData, frozen=True, kw_only=True):
    """All jobs of a streamed group, this many, are in these queues. Not a standard event."""

    total: int
    queues: Sequence[str] = ()


class WorkflowStarted(WorkflowEventData, frozen=True, kw_only=True):
    """The first step of a workflow begins."""

    total_steps: int


class WorkflowStepCompleted(WorkflowEventData, frozen=True, kw_only=True):
    """One step of a workflow is done. `number` and `run` are ours."""

    step_id: str
    step_type: str
    duration_ms: int
    steps_remaining: int
    job_id: str | None = None
    number: int = 0
    run: int = 0


class WorkflowStepFailed(WorkflowEventData, frozen=True, kw_only=True):
    """One step of a workflow has failed."""

    step_id: str
    step_type: str
    job_id: str | None = None
    error: ErrorSummary
    number: int = 0
    run: int = 0


class WorkflowJobCompleted(WorkflowStepCompleted, frozen=True, kw_only=True):
    """A job of a group is done."""


class WorkflowJobFailed(WorkflowStepFailed, frozen=True, kw_only=True):
    """A job of a group has failed."""


class WorkflowCallbackFired(WorkflowEventData, frozen=True, kw_only=True):
    """A callback of a batch was enqueued."""

    callback: str
    step_id: str
    job_id: str
    number: int = 0
    run: int = 0


class WorkflowCompleted(WorkflowEventData, frozen=True, kw_only=True):
    """All steps of a workflow are done."""

    total_steps: int
    duration_ms: int


class WorkflowFailed(WorkflowEventData, frozen=True, kw_only=True):
    """A step has finally failed, and so has the workflow."""

    failed_step_id: str
    failed_step_type: str
    error: ErrorSummary


class WorkflowCancelled(WorkflowEventData, frozen=True, kw_only=True):
    """A workflow was cancelled."""

    reason: str | None = None


class WorkflowExpired(WorkflowEventData, frozen=True, kw_only=True):
    """The time of a workflow is over: it fails. An event of ours."""


class WorkflowRetried(WorkflowEventData, frozen=True, kw_only=True):
    """A failed workflow continues with its failed steps; runs count from 0. Not a standard event."""

    run: int


class WorkflowStopped(WorkflowEventData, frozen=True, kw_only=True):
    """Workers know that the jobs of a cancelled workflow are not to start. An event of ours."""


class WorkflowRevived(WorkflowEventData, frozen=True, kw_only=True):
    """The dead letters of a workflow that is retried are back in their queues. An event of ours."""


class WorkflowFollowed(WorkflowEventData, frozen=True, kw_only=True):
    """A step takes the outcome of another job, because its own is unique. An event of ours.

    `ended` is the event of its end, empty if the job is gone without one; what follows is of that event.
    """

    number: int
    run: int
    job_id: str
    ended: str
    result: object = None
    last_error: dict[str, object] | None = None
    total_attempts: int = 0


class WorkflowForgotten(WorkflowEventData, frozen=True, kw_only=True):
    """A workflow has ended long ago: coordinators need not keep it any more. An event of ours."""


class WorkflowCompensated(WorkflowEventData, frozen=True, kw_only=True):
    """A step of a saga has failed, and what the steps before it did is undone (ojs-workflows section 14)."""

    failed_step_id: str
    failed_step_type: str
    error: ErrorSummary
