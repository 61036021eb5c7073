"""What a workflow does when the dead letter of one of its jobs is retried: it goes on from that job.

Its earlier failure is taken back: the parts that failed with it are open again, and what was cancelled because of it
waits again. That is impossible if the failure had effects of its own: a callback of its batch was fired, or a saga has
begun to undo its steps. Then the job runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from waybill.ojs.workflow.flow_state import FlowState
from waybill.ojs.workflow.numbering import member_job_id
from waybill.ojs.workflow.plan import Node
from waybill.ojs.workflow.progress import StepState, WorkflowState

EXPIRED: Final = "WORKFLOW_EXPIRED"
MAX_RETRIED_MEMBERS: Final = 1000
"""The number of streamed jobs of which it is known how often they were retried."""
WAITING, READY, PENDING, ACTIVE, HELD, COMPLETED, FAILED, CANCELLED = StepState


class Reopening(FlowState):
    """A workflow that can go on after a failure."""

    def job_retried(self, number: int, run: int, retry: int, time: str) -> bool:
        """Record that a job was a dead letter, and was retried: the workflow goes on from there.

        Any event of the retried job may be the first; `retry` numbers the retries. False for an event of an older one.
        """
        known = self.progress.retried.get(number, 0)
        if retry <= known or not self._is_current(number, run):
            return retry == known
        node = self.plan[number]
        if self.progress.states[number] == FAILED and self._may_reopen(node):
            self._time = time
            self._reopen(node, PENDING)
            self.progress.retried[number] = retry
        return True

    def member_retried(self, index: int, retry: int, time: str) -> bool:
        """Do the same for a streamed job."""
        node, known = self.plan.streamed, self.progress.retried_members
        if node is None or retry <= known.get(index, 0) or not self._may_reopen(node, has_members=True):
            return retry == known.get(index, 0)
        if self.members.restart(index):
            self._time = time
            known[index] = retry
            if len(known) > MAX_RETRIED_MEMBERS:
                del known[next(iter(known))]
            self._forget_errors(member_job_id(self.progress.id, index))
            if self.progress.states[node.number] == FAILED:
                self._reopen(node, ACTIVE)
        return True

    def child_reopened(self, number: int, child_id: str, time: str) -> None:
        """Record that a spawned workflow goes on after its end: the step waits for it again."""
        spawned = self.progress.children.get(number, {})
        if spawned.get(child_id) is not False or not self.plan.has(number):
            return
        node = self.plan[number]
        if self.progress.states[number] == FAILED and self._may_reopen(node):
            self._time = time
            self._reopen(node, HELD)
            self.progress.children[number] = spawned
        spawned[child_id] = None

    def _may_reopen(self, node: Node, *, has_members: bool = False) -> bool:
        """Return whether a failed node may go on: not if its failure had effects that cannot be taken back."""
        progress, states = self.progress, self.progress.states
        if self.is_over and progress.state != WorkflowState.FAILED:
            return False
        if any(error.code == EXPIRED for error in progress.errors):
            # Workers do not start its jobs any more.
            return False
        if has_members and (states[node.number] not in {ACTIVE, FAILED} or self._has_called_back(node)):
            return False
        for child, parent in _above(node):
            if states[parent.number] in {COMPLETED, CANCELLED}:
                return False
            if not child.callback and (parent.kind == "saga" or self._has_called_back(parent)):
                return False
        return True

    def _has_called_back(self, batch: Node) -> bool:
        """Return whether callbacks of a batch were fired: they are fired once."""
        return any(self.progress.states[one.number] not in {WAITING, CANCELLED} for one in batch.callbacks.values())

    def _reopen(self, node: Node, state: StepState) -> None:
        """Put a failed node into an earlier state, and undo what its failure has done to others."""
        progress, states = self.progress, self.progress.states
        self._forget_errors(self.job_id(node.number))
        self._forget_end(node, state)
        self._reset_callbacks(node)
        for child, parent in _above(node):
            if states[parent.number] == FAILED:
                self._forget_end(parent, ACTIVE)
            if parent.kind == "saga":
                progress.state = WorkflowState.COMPENSATING.value
            elif not child.callback:
                self._reset_callbacks(parent)
                self._restore_followers(child)
        if self.is_over:
            progress.state, progress.ended_at, progress.expires_at = WorkflowState.RUNNING.value, None, None
        progress.told_ended = False
        self._open.clear()

    def _forget_end(self, node: Node, state: StepState) -> None:
        """Put an ended node into an earlier state. That a callback was fired need not be told again."""
        number, told = node.number, self.progress.told[node.number]
        self._forget(node)
        self.progress.states[number], self.progress.told[number] = state, told & 1
        self.progress.retried[number] = self.progress.retried.get(number, 0) + 1

    def _reset_callbacks(self, batch: Node) -> None:
        for callback in batch.callbacks.values():
            if self.progress.states[callback.number] == CANCELLED:
                self._forget(callback)

    def _restore_followers(self, node: Node) -> None:
        """Let the steps wait again that were cancelled because of a failure, and of that one only."""
        states, reached = self.progress.states, [node]
        while reached:
            for follower in reached.pop().before:
                if states[follower.number] == CANCELLED and all(
                    states[one.number] not in {FAILED, CANCELLED} for one in follower.after
                ):
                    for one in self.plan.below(follower):
                        self._forget(one)
                    reached.append(follower)

    def _forget_errors(self, job_id: str) -> None:
        errors = self.progress.errors
        errors[:] = [error for error in errors if error.job_id != job_id]


def _above(node: Node) -> Iterator[tuple[Node, Node]]:
    """Yield each node from a node up, with its parent."""
    while (parent := node.parent) is not None:
        yield node, parent
        node = parent
