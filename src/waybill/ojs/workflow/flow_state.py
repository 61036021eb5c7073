"""The state of a workflow in memory: what is known of its steps, and what is left to do."""

from __future__ import annotations

from typing import Final

from waybill.ojs.workflow.members import Members
from waybill.ojs.workflow.numbering import node_job_id, nodes_prefix
from waybill.ojs.workflow.plan import ROOT, Node, Plan
from waybill.ojs.workflow.progress import (
    FIRST_END,
    MAX_ERRORS,
    WORKFLOW_ENDS,
    Progress,
    StepError,
    StepState,
    WorkflowState,
)

MAX_RESULT_BYTES: Final = 64 * 1024
MAX_RESULTS_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of the stored results of a workflow, as JSON: of one job, and of all. References replace larger
ones.
"""

WAITING, READY, PENDING, ACTIVE, HELD, COMPLETED, FAILED, CANCELLED = StepState


class FlowState:
    """One workflow; `Flow` has what changes it. Times are RFC 3339."""

    def __init__(self, plan: Plan, progress: Progress, members: Members | None = None) -> None:
        """`progress` is new, or loaded from a store; `members` has its counts."""
        self.plan = plan
        self.progress = progress
        self.members = members or Members(progress.members)
        self.results: dict[tuple[bool, int], bytes] = {}
        """Results to be stored: by whether the job was streamed, and by its node or index."""
        self.fresh: list[int] = []
        """Jobs that have just become ready: they must be enqueued."""
        self.dropped: list[int] = []
        """Jobs that were enqueued, or were about to be, and must not start any more."""
        self._open: dict[int, int] = {}
        """The number of steps of a node that have not ended, computed on first use."""
        self._time = progress.created_at
        if not progress.states:
            count = len(self.plan.nodes) + ROOT
            progress.states, progress.told = bytearray(count), bytearray(count)
            progress.members.expected = None if plan.streamed is None else plan.streamed.expected

    @property
    def untold(self) -> dict[int, None]:
        """The nodes whose events must be written."""
        return self.progress.untold

    @property
    def ready(self) -> list[int]:
        """The jobs that must be enqueued."""
        return [node.number for node in self.plan.nodes if self.progress.states[node.number] == READY]

    @property
    def is_over(self) -> bool:
        """Whether the workflow has ended."""
        return self.progress.state in WORKFLOW_ENDS

    @property
    def is_idle(self) -> bool:
        """Whether events of its jobs can no longer change anything."""
        # A cancelled workflow has no active nodes but jobs.
        states = self.progress.states
        return self.is_over and not (
            self.progress.state == WorkflowState.CANCELLED and (ACTIVE in states or HELD in states)
        )

    @property
    def has_work(self) -> bool:
        """Whether there is work besides enqueueing jobs: events to write, or workers to notify."""
        progress = self.progress
        return bool(
            self.untold
            or progress.cancels
            or progress.revives
            or (progress.started_at is not None and not progress.told_started)
            or (self.is_over and not progress.told_ended)
        )

    def tell(self, number: int, run: int, what: int) -> None:
        """Record that an event about a node was written: 1 that it was fired, 2 that it has ended."""
        if self.plan.has(number) and self.progress.runs.get(number, 0) == run:
            if what == 2 and self.progress.states[number] < FIRST_END:
                # It was retried meanwhile.
                return
            self.progress.told[number] |= what
            if not self._is_untold(self.plan[number]):
                self.untold.pop(number, None)

    def state(self, node: Node) -> StepState:
        return StepState(self.progress.states[node.number])

    def job_id(self, number: int) -> str:
        """Return the id of the job of a node, in the run in which it was last started."""
        return node_job_id(nodes_prefix(self.progress.id, self.progress.runs.get(number, 0)), number)

    def shown_job_id(self, number: int) -> str:
        """Return the id of the job that does the work of a node: its own, or the one that it follows."""
        return self.progress.followed.get(number) or self.job_id(number)

    @property
    def is_following(self) -> bool:
        """Whether a node waits for a job that is not its own."""
        return any(self.progress.states[number] == PENDING for number in self.progress.followed)

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of all, completed and failed jobs, including streamed ones."""
        states = [self.progress.states[node.number] for node in self.plan.nodes if node.kind == "job"]
        members = self.members.counts
        total = members.done + members.failed if members.known is None else members.known
        return (
            len(states) + total,
            states.count(COMPLETED) + members.done,
            states.count(FAILED) + members.failed,
        )

    def _is_current(self, number: int, run: int) -> bool:
        plan = self.plan
        return plan.has(number) and plan[number].kind == "job" and self.progress.runs.get(number, 0) == run

    def _keep_result(self, key: tuple[bool, int], job_id: str, result: bytes) -> None:
        if len(result) > MAX_RESULT_BYTES or self.progress.results_bytes + len(result) > MAX_RESULTS_BYTES:
            # It is stored only with its job (section 7.5).
            result = f'{{"result_ref":"ojs:job/{job_id}","result_size_bytes":{len(result)}}}'.encode()
        self.progress.results_bytes += len(result)
        self.results[key] = result

    def _note_error(self, error: StepError, node: Node) -> None:
        if len(self.progress.errors) < MAX_ERRORS:
            error.step, error.number = node.path, node.number
            self.progress.errors.append(error)

    def _set(self, node: Node, state: StepState) -> None:
        """Change the state of a node, and the counts."""
        number, before = node.number, self.progress.states[node.number]
        self.progress.states[number] = state
        if state == READY:
            self.fresh.append(number)
        elif state == CANCELLED and before in {READY, PENDING}:
            self.dropped.append(number)
        if self._is_untold(node):
            self.untold[number] = None
        parent = node.parent
        if parent is not None and parent.number in self._open and not node.callback:
            self._open[parent.number] += (before >= FIRST_END) - (state >= FIRST_END)

    def _is_untold(self, node: Node) -> bool:
        """Return whether an event must be written about a step, a job of a group or a callback (appendix B)."""
        state, told = self.progress.states[node.number], self.progress.told[node.number]
        if node.parent is None or state in {WAITING, READY, CANCELLED}:
            return False
        if node.callback and not told & 1:
            return True
        return state >= FIRST_END and not told & 2

    def _forget(self, node: Node) -> None:
        self.progress.states[node.number] = WAITING
        self.progress.told[node.number] = 0
        self.progress.untold.pop(node.number, None)
        self.progress.forget_times(node.number)
        self.progress.children.pop(node.number, None)
        self.progress.followed.pop(node.number, None)

    def _finish(self, state: WorkflowState) -> None:
        self.progress.state, self.progress.ended_at = state.value, self._time

    def _is_open(self, node: Node) -> bool:
        """Return whether some step of a node has not ended."""
        states = self.progress.states
        if node.kind == "chain":
            # Steps after a failure are cancelled, so the last step is the last to end.
            return states[node.steps[-1].number] < FIRST_END
        count = self._open.get(node.number)
        if count is None:
            count = self._open[node.number] = sum(states[step.number] < FIRST_END for step in node.steps)
        return count > 0
