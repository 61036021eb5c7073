"""The progress of a workflow: its stored state apart from definition, streamed members and results."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from struct import Struct
from typing import Final

import msgspec

from waybill.ojs.workflow.members import MemberCounts


class WorkflowState(StrEnum):
    """The states of a workflow (ojs-workflows section 8.1), and of a saga (section 14.4)."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"


WORKFLOW_ENDS: Final = frozenset(
    {WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELLED, WorkflowState.COMPENSATED}
)


class StepState(IntEnum):
    """The states of a step (section 4.4). Each is one byte of a stored row."""

    WAITING = 0
    READY = 1
    """Must be enqueued by the leader."""
    PENDING = 2
    ACTIVE = 3
    HELD = 4
    """Its job is completed, but the workflows that the job spawned are not."""
    COMPLETED = 5
    FAILED = 6
    CANCELLED = 7


STEP_NAMES: Final = {
    StepState.WAITING: "waiting",
    StepState.READY: "waiting",
    StepState.PENDING: "pending",
    StepState.ACTIVE: "active",
    StepState.HELD: "active",
    StepState.COMPLETED: "completed",
    StepState.FAILED: "failed",
    StepState.CANCELLED: "cancelled",
}
FIRST_END: Final = StepState.COMPLETED
MAX_ERRORS: Final = 100
_MOMENTS: Final = Struct("<qq")
"""Of one node: both times plus one, so that zero means none."""


class StepError(msgspec.Struct, omit_defaults=True):
    """Why a job of a workflow has failed (section 9.6)."""

    job_id: str
    code: str
    message: str
    attempt: int = 0
    step: str = ""
    number: int = 0
    type: str | None = None


class Progress(msgspec.Struct):
    """Times are RFC 3339. `states` and `told` have one byte for each node; numbers are those of nodes."""

    id: str
    name: str
    created_at: str
    origin: str = ""
    """The id of the event that created it."""
    state: str = WorkflowState.PENDING.value
    started_at: str | None = None
    ended_at: str | None = None
    expires_at: str | None = None
    owner: str | None = None
    parent_job: str | None = None
    """The job that spawned it."""
    heard_at: str = ""
    """When its pusher last reported that it still pushes a streamed group."""
    run: int = 0
    states: bytearray = msgspec.field(default_factory=bytearray)
    told: bytearray = msgspec.field(default_factory=bytearray)
    """The events that were written: 1 for fired, 2 for ended."""
    untold: dict[int, None] = msgspec.field(default_factory=dict)
    """The nodes whose events must be written."""
    told_started: bool = False
    told_ended: bool = False
    runs: dict[int, int] = msgspec.field(default_factory=dict)
    """The run in which a node was last started, unless that was the first one."""
    retried: dict[int, int] = msgspec.field(default_factory=dict)
    """How often a node was reopened, because its job or one within it was retried from the dead letters."""
    retried_members: dict[int, int] = msgspec.field(default_factory=dict)
    """The same for the streamed jobs that were retried last."""
    moments: bytearray = msgspec.field(default_factory=bytearray)
    """When jobs started and ended; see `times`. Bytes rather than a dict, because each event reads and writes all of
    it.
    """
    errors: list[StepError] = msgspec.field(default_factory=list)
    followed: dict[int, str] = msgspec.field(default_factory=dict)
    """The jobs whose outcome a node takes, as its own job is unique and theirs has the place."""
    children: dict[int, dict[str, bool | None]] = msgspec.field(default_factory=dict)
    """The workflows that a node's job has spawned: None while they run, then whether they are completed."""
    by: str = ""
    """The coordinator that last enqueued a job of it."""
    dropped: list[int] = msgspec.field(default_factory=list)
    """Cancelled jobs that are in their queues and must not start."""
    cancels: bool = False
    """Workers must be told that it was cancelled."""
    revives: bool = False
    """The dead letters of streamed members must go back to their queues."""
    revived: list[int] = msgspec.field(default_factory=list)
    """Those members."""
    queues: list[str] = msgspec.field(default_factory=list)
    """The queues that streamed members were pushed to."""
    members: MemberCounts = msgspec.field(default_factory=MemberCounts)
    """The number of streamed jobs."""
    results_bytes: int = 0
    """The size of the results that are stored here."""

    def times(self, number: int) -> tuple[int, int] | None:
        """Return when a job started and ended, in milliseconds after the workflow was created.

        Returns None if the job has not started.
        """
        if len(self.moments) < (number + 1) * _MOMENTS.size:
            return None
        began, ended = _MOMENTS.unpack_from(self.moments, number * _MOMENTS.size)
        return (began - 1, ended - 1) if began else None

    def set_times(self, number: int, began: int, ended: int) -> None:
        """Set both times, which are 0 or more."""
        missing = (number + 1) * _MOMENTS.size - len(self.moments)
        if missing > 0:
            self.moments += bytes(missing)
        _MOMENTS.pack_into(self.moments, number * _MOMENTS.size, began + 1, ended + 1)

    def forget_times(self, number: int) -> None:
        """Mark a job as not started."""
        if self.times(number) is not None:
            _MOMENTS.pack_into(self.moments, number * _MOMENTS.size, 0, 0)
