r"""The state machine of a workflow: the effect of an event of one of its jobs, and which jobs may start next.

    waiting -> ready -> pending -> active -> completed       a job whose turn comes, is enqueued, starts, ends
                                     |  \-> failed
                                     \-> held -> completed   its job is done, the workflows that it spawned are not

It uses no clock, no broker and no store. Coordinators apply the events of one stream in order, so all of them compute
the same state. Events may arrive twice and late: each only moves a step forward, and an ended step does not change
until a retry. Only events change the state: a ready job stays ready until the stream says that it is enqueued, so the
next leader knows what is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from waybill.ojs.workflow.members import Members
from waybill.ojs.workflow.numbering import MAX_MEMBERS, member_job_id
from waybill.ojs.workflow.plan import ROOT, Node, Plan
from waybill.ojs.workflow.progress import (
    FIRST_END,
    Progress,
    StepError,
    StepState,
    WorkflowState,
)
from waybill.ojs.workflow.reopening import EXPIRED, Reopening
from waybill.ojs.workflow.saga import may_pass, next_compensation

PUSHER_LOST: Final = "PUSHER_LOST"
MAX_QUEUES: Final = 1000
MAX_REVIVED: Final = 100_000
"""The maximum number of streamed jobs that a retry restarts."""
WAITING, READY, PENDING, ACTIVE, HELD, COMPLETED, FAILED, CANCELLED = StepState


class Flow(Reopening):
    """One workflow. Times are RFC 3339."""

    def __init__(self, plan: Plan, progress: Progress, members: Members | None = None) -> None:
        """`progress` is new, or loaded from a store; `members` has its counts."""
        is_new = not progress.states
        super().__init__(plan, progress, members)
        if is_new:
            self._resume(self.plan.root)

    # --- events from the stream ---

    def enqueued(self, number: int, run: int) -> None:
        """Record that a job is in its queue."""
        if self._is_current(number, run) and self.progress.states[number] == READY:
            self._set(self.plan[number], PENDING)

    def follow(self, number: int, run: int, job_id: str) -> None:
        """Record that a job is not enqueued, and that its step takes the outcome of another job."""
        if self._is_current(number, run) and self.progress.states[number] == READY:
            self.progress.followed[number] = job_id
            self._set(self.plan[number], PENDING)

    def unfollow(self, number: int, run: int) -> None:
        """Enqueue a job after all: the one that its step has followed is gone without an outcome."""
        if self._is_current(number, run) and self.progress.states[number] == PENDING:
            del self.progress.followed[number]
            self._set(self.plan[number], READY)

    def started(self, number: int, run: int, time: str, offset_ms: int) -> None:
        """Record that a worker has started a job."""
        if not self.is_over and self.progress.state == WorkflowState.PENDING:
            self.progress.state, self.progress.started_at = WorkflowState.RUNNING.value, time
        if self._is_current(number, run) and self.progress.states[number] in {READY, PENDING}:
            self._set(self.plan[number], ACTIVE)
            self.progress.set_times(number, offset_ms, offset_ms)

    def ended(self, number: int, run: int, time: str, offset_ms: int, outcome: bytes | StepError | None) -> None:
        """Record that a job has ended: with a result, JSON or None, or with an error."""
        self._time = time
        if not self._is_current(number, run) or not READY <= self.progress.states[number] <= ACTIVE:
            return
        self.started(number, run, time, offset_ms)
        began_ms, _ = self.progress.times(number) or (offset_ms, offset_ms)
        self.progress.set_times(number, began_ms, offset_ms)
        node = self.plan[number]
        if isinstance(outcome, StepError):
            self._note_error(outcome, node)
            # A job that was cancelled individually fails the steps that wait for it.
            self._end(node, FAILED)
            return
        if outcome is not None:
            self._keep_result((False, number), self.shown_job_id(number), outcome)
        if any(done is None for done in self.progress.children.get(number, {}).values()):
            self._set(node, HELD)
        else:
            self._end_spawning(node)

    def member_started(self, time: str) -> None:
        """Record that a worker has started a streamed job."""
        if self.plan.streamed is not None and self.progress.state == WorkflowState.PENDING:
            self.progress.state, self.progress.started_at = WorkflowState.RUNNING.value, time

    def member_ended(self, index: int, time: str, outcome: bytes | StepError | None) -> None:
        """Record that a streamed job has ended."""
        self._time = time
        if self.plan.streamed is None or self.is_over:
            return
        self.member_started(time)
        if not self.members.end(index, is_done=not isinstance(outcome, StepError)):
            return
        if isinstance(outcome, StepError):
            self._note_error(outcome, self.plan.streamed)
        elif outcome is not None:
            self._keep_result((True, index), member_job_id(self.progress.id, index), outcome)
        self._check_members()

    def child_opened(self, number: int, run: int, child_id: str) -> None:
        """Record that a job has spawned a workflow: the step is not completed before that workflow is."""
        if self._is_current(number, run) and self.progress.states[number] < FIRST_END:
            self.progress.children.setdefault(number, {}).setdefault(child_id, None)

    def child_ended(self, number: int, child_id: str, time: str, *, is_done: bool) -> None:
        """Record that a spawned workflow has ended."""
        self._time = time
        children = self.progress.children.get(number, {})
        if child_id not in children or not self.plan.has(number):
            return
        children[child_id] = is_done
        if self.progress.states[number] == HELD and None not in children.values():
            self._end_spawning(self.plan[number])

    def seal(self, total: int, time: str, queues: Sequence[str] = ()) -> None:
        """Record how many members were streamed: all of them are there now."""
        self._time = time
        if self.plan.streamed is not None and total >= 0 and not self.is_over:
            self.members.seal(total)
            self.progress.queues = list(queues) or self.progress.queues
            self._check_members()

    @property
    def is_pushed(self) -> bool:
        """Whether a program may still be pushing its jobs."""
        counts = self.members.counts
        return self.plan.streamed is not None and not self.is_over and counts.total is None and not counts.abandoned

    def heard(self, time: str, pushed: int = 0) -> None:
        """Record that a program still pushes jobs of its group, which is then not abandoned."""
        counts = self.members.counts
        if self.plan.streamed is not None and not self.is_over and counts.total is None:
            self.progress.heard_at, counts.abandoned = time, False
            counts.pushed = max(counts.pushed, min(pushed, MAX_MEMBERS))

    def member_enqueued(self, index: int, queue: str) -> None:
        """Record that a streamed job is in its queue."""
        counts, queues = self.members.counts, self.progress.queues
        if self.is_pushed and 0 <= index < MAX_MEMBERS:
            counts.pushed = max(counts.pushed, index + 1)
            if queue not in queues and len(queues) < MAX_QUEUES:
                queues.append(queue)

    def abandon(self, heard_at: str, time: str) -> None:
        """Give up jobs that were not pushed; the group fails when the pushed jobs have ended."""
        if self.is_pushed and self.progress.heard_at == heard_at:
            self._time = time
            self.members.counts.abandoned = True
            self._check_members()

    def cancel(self, time: str) -> bool:
        """End the workflow: running jobs finish, nothing else starts. False if it has ended, or is undone."""
        if self.is_over or self.progress.state == WorkflowState.COMPENSATING:
            return False
        self._time = time
        self._stop(WorkflowState.CANCELLED)
        return True

    def expire(self, time: str) -> bool:
        """Fail the workflow because its time limit has passed; False if it has ended, or is undone."""
        if self.is_over or self.progress.state == WorkflowState.COMPENSATING:
            return False
        self._time = time
        text = f"the workflow was not done at {self.progress.expires_at}"
        self.progress.errors.append(StepError("", EXPIRED, text, number=ROOT))
        self._stop(WorkflowState.FAILED)
        return True

    def retry(self, run: int, time: str) -> bool:
        """Restart failed steps and those after them, and keep completed ones; False if nothing has failed.

        A saga goes on with what undoes its steps.
        `run` is the number of the new run, so of two equal requests only one counts.
        """
        progress = self.progress
        if progress.state != WorkflowState.FAILED or run != progress.run + 1:
            return False
        if self.members.counts.failed > MAX_REVIVED or (progress.cancels and self.plan.streamed is not None):
            return False
        self._time = time
        progress.run = run
        progress.state, progress.ended_at, progress.expires_at = WorkflowState.RUNNING.value, None, None
        progress.told_ended, progress.cancels = False, False
        root = self.plan.root
        if root.kind == "saga":
            self._undo_again(root)
            return True
        progress.errors.clear()
        for node in reversed(self.plan.nodes):
            self._reset(node)
        if self.members.counts.failed:
            progress.revived = list(self.members.failed())
            progress.revives = True
            self.members.forget_failures()
        self._open.clear()
        self._resume(self.plan.root)
        return True

    def children(self, *, failed_only: bool = False) -> Iterator[str]:
        """Yield the workflows that its jobs have spawned: those that run, or those that have failed."""
        for spawned in self.progress.children.values():
            yield from (child for child, done in spawned.items() if done is (False if failed_only else None))

    # --- next steps ---

    def _end_spawning(self, node: Node) -> None:
        spawned = self.progress.children.get(node.number, {})
        failed = [child for child, done in spawned.items() if done is False]
        if failed:
            text = f"the workflow {failed[0]}, which it spawned, was not completed"
            self._note_error(StepError(self.job_id(node.number), "WORKFLOW_FAILED", text), node)
        self._end(node, FAILED if failed else COMPLETED)

    def _end(self, node: Node, state: StepState) -> None:
        """End a node, and continue with nodes that wait for it."""
        self._set(node, state)
        if self.is_over:
            # The workflow was cancelled while this job ran.
            return
        parent = node.parent
        if parent is None:
            self._finish(WorkflowState.COMPLETED if state == COMPLETED else WorkflowState.FAILED)
        elif parent.kind == "saga":
            self._end_in_saga(parent, node, state)
        elif state != COMPLETED and parent.kind in {"chain", "dag"}:
            self._cancel_followers(node)
            self._settle(parent)
        else:
            for follower in node.before:
                self._resume_step(follower)
            self._settle(parent)

    # --- sagas (ojs-workflows section 14) ---

    def _end_in_saga(self, saga: Node, node: Node, state: StepState) -> None:
        """Continue a saga after the end of a step, or of a job that undoes one."""
        if node.callback:
            if state == COMPLETED:
                self._undo(saga)
            else:
                self._end(saga, FAILED)
        elif may_pass(saga, state):
            for follower in node.before:
                self._resume_step(follower)
            self._settle(saga)
        else:
            self._cancel_followers(node)
            self._undo(saga)

    def _undo(self, saga: Node) -> None:
        """Undo the last completed step that is not undone yet; when all are, the saga ends."""
        states = self.progress.states
        undo = next_compensation(saga, states)
        if undo is not None:
            self.progress.state = WorkflowState.COMPENSATING.value
            if states[undo.number] == WAITING:
                self._resume(undo)
            return
        self._drop_callbacks(saga)
        self._set(saga, FAILED)
        self._finish(WorkflowState.COMPENSATED)

    def _undo_again(self, saga: Node) -> None:
        """Continue undoing where that has failed."""
        states, errors = self.progress.states, self.progress.errors
        for undo in saga.callbacks.values():
            if states[undo.number] == FAILED:
                errors[:] = [one for one in errors if one.number != undo.number]
                self._forget(undo)
        states[saga.number] = ACTIVE
        self._undo(saga)

    def _drop_callbacks(self, saga: Node) -> None:
        for undo in saga.callbacks.values():
            if self.progress.states[undo.number] == WAITING:
                self._set(undo, CANCELLED)

    def _cancel_followers(self, node: Node) -> None:
        waiting = list(node.before)
        while waiting:
            follower = waiting.pop()
            if self.progress.states[follower.number] == WAITING:
                for one in self.plan.below(follower):
                    self._set(one, CANCELLED)
                waiting += follower.before

    def _settle(self, node: Node) -> None:
        """End a composite node when all of its parts have ended; a batch first fires its callbacks."""
        states = self.progress.states
        if states[node.number] >= FIRST_END or self._is_open(node):
            return
        if node.streamed and not self.members.is_over:
            return
        failed = self._has_members_missing(node) or self.members.counts.failed > 0 if node.streamed else False
        failed = failed or any(not may_pass(node, states[step.number]) for step in node.steps)
        if node.kind == "saga":
            self._drop_callbacks(node)
        if node.kind == "batch":
            self._call_back(node, failed=failed)
        else:
            self._end(node, FAILED if failed else COMPLETED)

    def _has_members_missing(self, node: Node) -> bool:
        """Return whether jobs of a streamed group were never pushed, and record that as its error."""
        if not self.members.is_incomplete:
            return False
        if not any(error.code == PUSHER_LOST for error in self.progress.errors):
            text = f"only {self.members.counts.known} jobs were pushed before the program that pushed them disappeared"
            self._note_error(StepError("", PUSHER_LOST, text), node)
        return True

    def _call_back(self, node: Node, *, failed: bool) -> None:
        """Fire the callbacks of a batch whose jobs have all ended, and end it when they have ended (section 6.4)."""
        states = self.progress.states
        for kind, callback in node.callbacks.items():
            if states[callback.number] == WAITING:
                fires = kind == "on_complete" or (kind == "on_failure") == failed
                self._set(callback, READY if fires else CANCELLED)
                if fires and self.progress.run:
                    self.progress.runs[callback.number] = self.progress.run
        if any(states[callback.number] < FIRST_END for callback in node.callbacks.values()):
            return
        fired = [one for one in node.callbacks.values() if states[one.number] != CANCELLED]
        if any(states[one.number] == FAILED for one in fired):
            self._end(node, FAILED)
        else:
            # A failure that no callback handles fails the batch.
            self._end(node, COMPLETED if fired or not failed else FAILED)

    def _resume_step(self, node: Node) -> None:
        """Start a waiting step if all of its dependencies are completed."""
        states = self.progress.states
        if states[node.number] != WAITING or node.parent is None:
            return
        if all(may_pass(node.parent, states[one.number]) for one in node.after):
            self._resume(node)

    def _resume(self, node: Node) -> None:
        """Start the next node, or continue a partly completed one."""
        if node.kind == "job":
            self._set(node, READY)
            if self.progress.run:
                self.progress.runs[node.number] = self.progress.run
            return
        self._set(node, ACTIVE)
        for step in node.steps:
            if self.progress.states[step.number] == ACTIVE and step.kind != "job":
                self._resume(step)
            else:
                self._resume_step(step)
        self._settle(node)

    def _reset(self, node: Node) -> None:
        """Reset a node that has not succeeded to waiting, for a retry."""
        states, number = self.progress.states, node.number
        if node.kind == "batch" and self._has_open_jobs(node):
            # Its callbacks were fired for an outcome that no longer holds.
            for callback in node.callbacks.values():
                self._forget(callback)
        if states[number] < FAILED:
            return
        spawned = self.progress.children.get(number, {})
        if node.kind == "job" and spawned and self.progress.times(number) and False in spawned.values():
            states[number] = HELD
            self.progress.told[number] = 0
            self.progress.untold.pop(number, None)
            for child, done in spawned.items():
                if done is False:
                    spawned[child] = None
        elif not (node.callback and states[number] == CANCELLED):
            self._forget(node)

    def _has_open_jobs(self, batch: Node) -> bool:
        states = self.progress.states
        return any(states[step.number] != COMPLETED for step in batch.steps) or (
            batch.streamed and self.members.counts.failed > 0
        )

    def _check_members(self) -> None:
        if self.members.is_over and self.plan.streamed is not None and not self.is_over:
            self._settle(self.plan.streamed)

    def _stop(self, state: WorkflowState) -> None:
        """End the workflow from outside."""
        self._finish(state)
        self.progress.cancels = True
        for node in self.plan.nodes:
            is_job = node.kind == "job"
            if self.progress.states[node.number] < (ACTIVE if is_job else FIRST_END):
                self._set(node, CANCELLED)
