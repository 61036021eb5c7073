"""Folds the event stream into the rows of workflows.

Anyone with write access to the events exchange can push workflows, as they can push jobs. Each field of an event may
have any value; invalid ones are ignored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from waybill.ojs.coordinator import claims
from waybill.ojs.coordinator.claims import DROPPED, Claim, claim
from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import MAX_ID_LENGTH
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import derived_id, is_uuid7
from waybill.ojs.spec.nesting import clean_text, shown
from waybill.ojs.spec.timestamps import format_timestamp, parse_timestamp
from waybill.ojs.workflow.definition import MAX_NAME_LENGTH, read_definition
from waybill.ojs.workflow.flow import MAX_QUEUES, Flow
from waybill.ojs.workflow.members import MEMBERS_PER_PIECE, Members, Piece
from waybill.ojs.workflow.numbering import (
    is_workflow_id,
    may_be_numbered,
    nodes_prefix,
    read_member_id,
    read_node_id,
)
from waybill.ojs.workflow.plan import Plan
from waybill.ojs.workflow.progress import Progress, StepError, WorkflowState
from waybill.ojs.workflow.rows import (
    DUE,
    ENDED,
    FOLLOWING,
    TO_DO,
    UNSEALED,
    DefinitionRow,
    MomentRow,
    NodesRow,
    ResultsRow,
    definition_key,
    due_key,
    ended_key,
    following_key,
    members_key,
    nodes_key,
    progress_key,
    results_key,
    unsealed_key,
)
from waybill.ojs.workflow.values import Plans, read_flow

MAX_OVER: Final = 10_000
MAX_CODE: Final = 255
MAX_MESSAGE: Final = 2000
MAX_OFFSET_MS: Final = 2**53

_JOB_EVENTS: Final = frozenset(
    {"job.enqueued", "job.started", "job.completed", "job.discarded", "job.cancelled", "claim.pushed", DROPPED}
)
_ENDS: Final = frozenset({"job.completed", "job.discarded", "job.cancelled"})

_log = logging.getLogger("waybill.ojs.workflow")


class WorkflowFold(FeatureFold):
    """The fold of workflows."""

    def __init__(self, plans: Plans, is_trusted: Callable[[str | None], bool]) -> None:
        """`plans` is that of all readers of the same store; `is_trusted` is for the users of coordinators."""
        self._is_trusted = is_trusted
        self.over: deque[str] = deque(maxlen=MAX_OVER)
        """Workflows that have ended, for requests that wait for them. An aborted fold may leave some here."""
        self._plans = plans
        self._rows: Rows | None = None
        self._flows: dict[str, Flow] = {}
        self._events: dict[str, Callable[[Rows, Flow, ReceivedEvent], None]] = {
            "workflow.sealed": self._sealed,
            "workflow.pushing": self._pushing,
            "workflow.abandoned": self._abandoned,
            "workflow.cancelled": lambda _, flow, event: self._cancel(flow, event.time),
            "workflow.expired": lambda _, flow, event: self._expire(flow, event.time),
            "workflow.retried": self._retried,
            "workflow.stopped": self._stopped,
            "workflow.revived": self._revived,
            "workflow.followed": self._followed,
            "workflow.started": self._told_start,
            "workflow.callback_fired": self._told_step,
            "workflow.step_completed": self._told_step,
            "workflow.step_failed": self._told_step,
            "workflow.job_completed": self._told_step,
            "workflow.job_failed": self._told_step,
            "workflow.completed": self._told_end,
            "workflow.failed": self._told_end,
            "workflow.compensated": self._told_end,
        }

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the row of the workflow that an event is about, or the row that leads to it."""
        kind, subject = event.type, event.subject
        if kind in _JOB_EVENTS:
            if not may_be_numbered(subject):
                return ()
            node = read_node_id(subject)
            if node is not None:
                return (nodes_key(node[0]),) if kind != DROPPED or self._is_trusted(event.user) else ()
            member = read_member_id(subject)
            return () if member is None else (progress_key(member[0]),)
        if kind.startswith("workflow.") and is_workflow_id(subject) and _is_time(event.time):
            return (progress_key(subject),)
        return ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Change the rows of a workflow."""
        if rows is not self._rows:
            self._rows, self._flows = rows, {}
        if event.type in _JOB_EVENTS:
            self._fold_job(rows, event)
        elif event.type == "workflow.created":
            self._created(rows, event)
        elif event.type == "workflow.forgotten":
            self._forgotten(rows, event.subject)
        else:
            flow, change = self._flow(rows, event.subject), self._events.get(event.type)
            if flow is not None and change is not None:
                was_over = flow.is_over
                change(rows, flow, event)
                self._keep(rows, flow, event.time, was_over=was_over)

    # --- jobs ---

    def _fold_job(self, rows: Rows, event: ReceivedEvent) -> None:
        node, member = read_node_id(event.subject), read_member_id(event.subject)
        retry = _retry_of(event)
        if node is not None:
            owner = rows.get(nodes_key(node[0]), NodesRow)
            flow = None if owner is None else self._flow(rows, owner.id)
            if flow is None or owner is None or (flow.is_idle and not retry):
                return
            was_over, ended_at = flow.is_over, flow.progress.ended_at
            if retry is None or flow.job_retried(node[1], owner.run, retry, event.time):
                _fold_node(flow, node[1], owner.run, event)
        elif member is not None:
            flow = self._flow(rows, member[0])
            if flow is None or (flow.is_over and not retry):
                return
            was_over, ended_at = flow.is_over, flow.progress.ended_at
            if retry is not None and not flow.member_retried(member[1], retry, event.time):
                return
            if event.type in _ENDS:
                flow.member_ended(member[1], event.time, _outcome(event.type, event.subject, event.data))
            elif event.type == "job.started":
                flow.member_started(event.time)
            elif event.type == "job.enqueued":
                flow.member_enqueued(member[1], _text(event.data.get("queue"), "", MAX_CODE))
        else:
            return
        if was_over and not flow.is_over:
            self._reopened(rows, flow, ended_at, event.time)
        self._keep(rows, flow, event.time, was_over=was_over)

    def _reopened(self, rows: Rows, flow: Flow, ended_at: str | None, time: str) -> None:
        """Keep a workflow that goes on after its end; the step that has spawned it waits for it again."""
        rows.delete(ended_key(ended_at or "", flow.progress.id))
        found = self._parent(rows, flow)
        if found is not None:
            parent, number, _ = found
            was_over, ended_at = parent.is_over, parent.progress.ended_at
            parent.child_reopened(number, flow.progress.id, time)
            if was_over and not parent.is_over:
                self._reopened(rows, parent, ended_at, time)
            self._put(rows, parent)

    # --- workflows ---

    def _created(self, rows: Rows, event: ReceivedEvent) -> None:
        workflow_id, data = event.subject, event.data
        known = self._flow(rows, workflow_id)
        if known is not None:
            # It was pushed again.
            known.heard(event.time)
            self._note_pushing(rows, known)
            self._put(rows, known)
            return
        try:
            definition = read_definition(data.get("definition"))
        except InvalidJob as error:
            _log.warning("workflow %s is invalid and is skipped: %s", workflow_id, shown(str(error)))
            return
        name, parent = data.get("workflow_name"), data.get("parent_job")
        progress = Progress(
            workflow_id, clean_text(name, MAX_NAME_LENGTH) if isinstance(name, str) else "", event.time, event.id
        )
        progress.owner = event.user
        progress.expires_at = _time_of(data.get("expires_at"))
        rows.put(definition_key(workflow_id), DefinitionRow(definition))
        rows.put(nodes_key(nodes_prefix(workflow_id, 0)), NodesRow(workflow_id, 0))
        if progress.expires_at is not None:
            rows.put(due_key(progress.expires_at, workflow_id), MomentRow(workflow_id), DUE)
        flow = self._flows[workflow_id] = Flow(Plan(definition), progress, self._members(rows, progress))
        flow.heard(event.time)
        self._note_pushing(rows, flow)
        if isinstance(parent, str) and is_uuid7(parent):
            progress.parent_job = parent
            found = self._parent(rows, flow)
            if found is not None:
                found[0].child_opened(found[1], found[2], workflow_id)
                self._put(rows, found[0])
        self._keep(rows, flow, event.time, was_over=False)

    @staticmethod
    def _note_pushing(rows: Rows, flow: Flow) -> None:
        """Mark a workflow while its pusher must be watched."""
        if flow.is_pushed:
            rows.put(unsealed_key(flow.progress.id), MomentRow(flow.progress.id), UNSEALED)
        elif flow.plan.streamed is not None:
            rows.delete(unsealed_key(flow.progress.id))

    def _pushing(self, rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        pushed = event.data.get("pushed")
        flow.heard(event.time, pushed if isinstance(pushed, int) else 0)
        self._note_pushing(rows, flow)

    def _abandoned(self, rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        flow.abandon(_text(event.data.get("heard_at"), "", MAX_CODE), event.time)
        self._note_pushing(rows, flow)

    def _sealed(self, rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        total, queues = event.data.get("total"), event.data.get("queues")
        if isinstance(total, int):
            named = [one for one in queues if isinstance(one, str)] if isinstance(queues, list) else []
            flow.seal(total, event.time, [one[:MAX_CODE] for one in named[:MAX_QUEUES]])
            self._note_pushing(rows, flow)

    @staticmethod
    def _cancel(flow: Flow, time: str) -> None:
        flow.cancel(time)
        flow.progress.told_ended = flow.progress.told_ended or flow.progress.state == WorkflowState.CANCELLED

    @staticmethod
    def _expire(flow: Flow, time: str) -> None:
        flow.expire(time)

    def _retried(self, rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        run = event.data.get("run")
        ended_at = flow.progress.ended_at
        if isinstance(run, int) and self._retry(rows, flow, run, event.time):
            self._reopened(rows, flow, ended_at, event.time)

    def _retry(self, rows: Rows, flow: Flow, run: int, time: str) -> bool:
        progress, failed = flow.progress, list(flow.children(failed_only=True))
        due, ended = progress.expires_at, progress.ended_at
        if not flow.retry(run, time):
            return False
        rows.put(nodes_key(nodes_prefix(progress.id, run)), NodesRow(progress.id, run))
        if due is not None:
            rows.delete(due_key(due, progress.id))
        rows.delete(ended_key(ended or "", progress.id))
        for child_id in failed:
            child = self._flow(rows, child_id)
            if child is not None:
                self._retry(rows, child, child.progress.run + 1, time)
                self._put(rows, child)
        return True

    @staticmethod
    def _stopped(_rows: Rows, flow: Flow, _event: ReceivedEvent) -> None:
        flow.progress.cancels = False
        flow.progress.dropped.clear()

    @staticmethod
    def _revived(_rows: Rows, flow: Flow, _event: ReceivedEvent) -> None:
        flow.progress.revives = False
        flow.progress.revived.clear()

    def _followed(self, rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        data = event.data
        number, run, job_id = data.get("number"), data.get("run", 0), _text(data.get("job_id"), "", MAX_ID_LENGTH)
        if not (self._is_trusted(event.user) and isinstance(number, int) and isinstance(run, int)):
            return
        if flow.progress.followed.get(number) != job_id:
            return
        ended = data.get("ended")
        if ended in _ENDS:
            offset_ms = _offset_ms(flow.progress.created_at, event.time)
            flow.ended(number, run, event.time, offset_ms, _outcome(str(ended), job_id, data))
        else:
            flow.unfollow(number, run)
        if not flow.is_following:
            rows.delete(following_key(flow.progress.id))

    @staticmethod
    def _told_start(_rows: Rows, flow: Flow, _event: ReceivedEvent) -> None:
        flow.progress.told_started = True

    @staticmethod
    def _told_end(_rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        if event.type == f"workflow.{flow.progress.state}":
            flow.progress.told_ended = True

    @staticmethod
    def _told_step(_rows: Rows, flow: Flow, event: ReceivedEvent) -> None:
        # The first run is 0, and events omit default values.
        number, run = event.data.get("number"), event.data.get("run", 0)
        if isinstance(number, int) and isinstance(run, int):
            flow.tell(number, run, 1 if event.type == "workflow.callback_fired" else 2)

    def _forgotten(self, rows: Rows, workflow_id: str) -> None:
        flow = self._flow(rows, workflow_id)
        if flow is None or not flow.is_over:
            return
        progress = flow.progress
        self._flows.pop(workflow_id, None)
        for run in range(progress.run + 1):
            rows.delete(nodes_key(nodes_prefix(workflow_id, run)))
        for index in range(0, progress.members.size, MEMBERS_PER_PIECE):
            rows.delete(members_key(workflow_id, index // MEMBERS_PER_PIECE))
        keys = {results_key(workflow_id, node.number, streamed=False) for node in flow.plan.nodes}
        keys |= {results_key(workflow_id, index, streamed=True) for index in range(progress.members.size)}
        for key in keys:
            rows.delete(key)
        if progress.expires_at is not None:
            rows.delete(due_key(progress.expires_at, workflow_id))
        rows.delete(ended_key(progress.ended_at or "", workflow_id))
        rows.delete(definition_key(workflow_id))
        rows.delete(progress_key(workflow_id))

    # --- rows ---

    def _flow(self, rows: Rows, workflow_id: str) -> Flow | None:
        flow = self._flows.get(workflow_id)
        if flow is None:
            flow = read_flow(rows.get, self._plans, workflow_id)
            if flow is not None:
                self._flows[workflow_id] = flow
        return flow

    @staticmethod
    def _members(rows: Rows, progress: Progress) -> Members:
        return Members(progress.members, lambda piece: rows.get(members_key(progress.id, piece), Piece))

    def _parent(self, rows: Rows, flow: Flow) -> tuple[Flow, int, int] | None:
        """Return the workflow whose job spawned this one, with the number of that job and its run."""
        node = read_node_id(flow.progress.parent_job or "")
        owner = None if node is None else rows.get(nodes_key(node[0]), NodesRow)
        parent = None if owner is None else self._flow(rows, owner.id)
        return None if parent is None or node is None or owner is None else (parent, node[1], owner.run)

    def _keep(self, rows: Rows, flow: Flow, time: str, *, was_over: bool) -> None:
        """Store changes; the end of a workflow affects its parent's job and its children."""
        if flow.is_over and not was_over:
            progress = flow.progress
            if progress.followed:
                rows.delete(following_key(progress.id))
            self.over.append(progress.id)
            if progress.expires_at is not None:
                rows.delete(due_key(progress.expires_at, progress.id))
            self._note_pushing(rows, flow)
            rows.put(ended_key(progress.ended_at or "", progress.id), MomentRow(progress.id), ENDED)
            if progress.cancels:
                for child_id in list(flow.children()):
                    child = self._flow(rows, child_id)
                    if child is not None and child.cancel(time):
                        self._keep(rows, child, time, was_over=False)
            found = self._parent(rows, flow)
            if found is not None:
                parent, number, _ = found
                was_over = parent.is_over
                is_done = progress.state == WorkflowState.COMPLETED
                parent.child_ended(number, progress.id, time, is_done=is_done)
                self._keep(rows, parent, time, was_over=was_over)
        self._put(rows, flow)

    def _put(self, rows: Rows, flow: Flow) -> None:
        workflow_id = flow.progress.id
        for number, piece in flow.members.changed.items():
            rows.put(members_key(workflow_id, number), piece)
        flow.members.changed.clear()
        for (streamed, place), result in flow.results.items():
            key = results_key(workflow_id, place, streamed=streamed)
            row = rows.get(key, ResultsRow) or ResultsRow()
            row.values[place] = msgspec.Raw(result)
            rows.put(key, row)
        flow.results.clear()
        if flow.is_following:
            rows.put(following_key(workflow_id), MomentRow(workflow_id), FOLLOWING)
        self._claim(rows, flow)
        rows.put(progress_key(workflow_id), flow.progress, TO_DO if flow.has_work else None)

    @staticmethod
    def _claim(rows: Rows, flow: Flow) -> None:
        """Claim the next jobs, and delete the claims of cancelled ones; see `claims`."""
        progress = flow.progress
        fresh = [flow.job_id(number) for number in flow.fresh]
        dropped = [(number, claims.key_of(flow.job_id(number))) for number in flow.dropped]
        rows.expect([*map(claims.key_of, fresh), *(key for _, key in dropped)])
        for job_id in fresh:
            # If a coordinator has pushed for this workflow, it knows whether it has pushed this job.
            copies = [derived_id(0, "workflow", job_id)] if progress.by else []
            claim(rows, job_id, Claim(progress_key(progress.id), {"id": job_id}, progress.by, copies))
        flow.fresh.clear()
        for number, key in dropped:
            found = rows.get(key, Claim)
            if found is not None and not found.copy:
                # No worker has been admitted to it, and none will be.
                rows.delete(key)
                progress.dropped.append(number)
        flow.dropped.clear()


def _fold_node(flow: Flow, number: int, run: int, event: ReceivedEvent) -> None:
    if event.type == "job.enqueued":
        flow.enqueued(number, run)
        return
    if event.type == "claim.pushed":
        by = event.data.get("by")
        flow.progress.by = clean_text(by, MAX_CODE) if isinstance(by, str) else ""
        return
    offset_ms = _offset_ms(flow.progress.created_at, event.time)
    if event.type == "job.started":
        flow.started(number, run, event.time, offset_ms)
    elif event.type != DROPPED:
        flow.ended(number, run, event.time, offset_ms, _outcome(event.type, event.subject, event.data))
    else:
        # It is unique, and another job has its place.
        existing = _text(event.data.get("existing_job_id"), "", MAX_ID_LENGTH)
        unique = (flow.plan[number].job or {}).get("unique") if flow.plan.has(number) else None
        if isinstance(unique, dict) and unique.get("on_conflict") == "ignore":
            flow.follow(number, run, existing)
        else:
            refused = StepError(event.subject, "DUPLICATE", f"it is a duplicate of job {existing}")
            flow.ended(number, run, event.time, offset_ms, refused)


def _retry_of(event: ReceivedEvent) -> int | None:
    """Return how often its job was a dead letter that was retried, None if the event does not say."""
    retry = event.data.get("run")
    return retry if isinstance(retry, int) else None


def _outcome(kind: str, job_id: str, data: Mapping[str, object]) -> bytes | StepError | None:
    """Return the outcome in the data of an event that ends a job."""
    if kind == "job.completed":
        result = data.get("result")
        return None if result is None else msgspec.json.encode(result)
    error, attempt = data.get("last_error"), data.get("total_attempts")
    found = error if isinstance(error, dict) else {}
    cancelled = kind == "job.cancelled"
    return StepError(
        job_id,
        _text(found.get("code"), "JOB_CANCELLED" if cancelled else "HANDLER_ERROR", MAX_CODE),
        _text(found.get("message"), "the job was cancelled" if cancelled else "the job failed", MAX_MESSAGE),
        attempt if isinstance(attempt, int) else 0,
        type=_text(found.get("type"), "", MAX_CODE) or None,
    )


def _text(value: object, default: str, limit: int) -> str:
    return clean_text(value, limit) if isinstance(value, str) else default


def _offset_ms(first: str, second: str) -> int:
    """Return how much later a time is; 0 for an invalid time, or one from a wrong clock."""
    try:
        passed = parse_timestamp(second, "time") - parse_timestamp(first, "time")
    except InvalidJob:
        return 0
    return min(max(passed // timedelta(milliseconds=1), 0), MAX_OFFSET_MS)


def _is_time(text: str) -> bool:
    return _time_of(text) is not None


def _time_of(value: object) -> str | None:
    """Return a time in our form, so that texts sort by time; None if it is invalid."""
    try:
        return format_timestamp(parse_timestamp(value, "time")) if isinstance(value, str) else None
    except InvalidJob:
        return None
