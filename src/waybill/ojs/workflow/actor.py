"""The leader's work on workflows: creates the jobs of steps, writes events, and ends workflows.

Pending work is stored in rows, and removed when its event returns through the stream. So the next leader continues it.
Events that two leaders write have the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from waybill.client import ClientError
from waybill.ojs.bounded_dict import BoundedDict
from waybill.ojs.client import Jobs
from waybill.ojs.coordinator.claims import Claim
from waybill.ojs.coordinator.leader import Leader
from waybill.ojs.coordinator.leader_loop import POLL_SECONDS, LeaderLoop
from waybill.ojs.coordinator.marked_rows import MarkedRows
from waybill.ojs.coordinator.responder import Responder
from waybill.ojs.dead_letters import DeadLetters
from waybill.ojs.errors import JobsError
from waybill.ojs.job_context import CALLBACK
from waybill.ojs.spec.control_message import STOP_WORKFLOW, ControlRequest
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import JobCancellation
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.spec.workflow_events import WorkflowExpired, WorkflowForgotten, WorkflowRevived, WorkflowStopped
from waybill.ojs.worker.cancellations import cancelled_event_id
from waybill.ojs.workflow.announce import Announcement, announcements
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.following import FollowedJobs
from waybill.ojs.workflow.numbering import event_id_of, member_job_id, read_node_id
from waybill.ojs.workflow.progress import Progress
from waybill.ojs.workflow.pushers import PusherWatch
from waybill.ojs.workflow.rows import DUE, ENDED, TO_DO, MomentRow, progress_key
from waybill.ojs.workflow.shapes import DELAY
from waybill.ojs.workflow.values import Plans, Reader, Values, read_flow

AT_A_TIME: Final = 200
STOPPED_AT_A_TIME: Final = 100
FOLD_SECONDS: Final = 5.0
REMEMBERED_EVENTS: Final = 50_000
AGAIN_SECONDS: Final = 30.0
"""How long to wait for an event to return through the stream before it is written again."""
RETENTION_SECONDS: Final = 7 * 86400.0
"""How long a workflow is kept after its end."""
SWEEP_SECONDS: Final = 60.0

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.workflow")


class WorkflowActor(LeaderLoop):
    """Acts for all workflows while its coordinator leads."""

    def __init__(self, responder: Responder, leader: Leader, jobs: Jobs, plans: Plans) -> None:
        super().__init__(responder.view, leader)
        self._responder = responder
        self._jobs = jobs
        self._plans = plans
        self._reviving: set[str] = set()
        self._stopping: set[str] = set()
        self._written: BoundedDict[str, float] = BoundedDict(REMEMBERED_EVENTS)
        """Events written here, with their times by the loop's clock."""
        self._last_written: BoundedDict[str, tuple[object, ...]] = BoundedDict(REMEMBERED_EVENTS)
        """The pending events of each workflow when they were last written."""
        self._swept_at = float("-inf")
        self._to_do = MarkedRows(responder.view, TO_DO, Progress, AT_A_TIME)
        self._pushers = PusherWatch(responder.view, self._write)
        self._followed = FollowedJobs(responder.view, self._write)

    def forget(self) -> None:
        """Forget which events were written: if this coordinator leads again, it writes them again."""
        self._written.clear()
        self._last_written.clear()
        self._pushers.forget()

    async def make_job(self, job_id: str, claim: Claim) -> dict[str, object]:
        """Return the envelope of the next step. Raises LookupError if it is unknown."""
        workflow_id = claim.owner.partition("/")[2]
        node = read_node_id(job_id)
        made = None if node is None else await self._read(workflow_id, lambda flow, read: _job(flow, read, node[1]))
        if made is None:
            raise LookupError(f"there is no step for job {job_id}")
        job, delay_ms = made
        now = datetime.fromtimestamp(self._leader.now(), UTC)
        job |= {"id": job_id, "workflow_id": workflow_id, "created_at": format_timestamp(now)}
        if delay_ms:
            job["scheduled_at"] = format_timestamp(now + timedelta(milliseconds=delay_ms))
        return job

    async def definer_of(self, key: str) -> str | None:
        """Return the user who has started the workflow of a row."""
        found = await self._view.row(key, Progress)
        return None if found is None else found.owner

    async def look(self) -> None:
        """Write the events that workflows lack, and end the workflows that are due."""
        for _, progress in await self._to_do.next():
            if self._has_new_events(progress):
                await self._write_pending(progress)
            if progress.cancels and progress.id not in self._stopping:
                self._stopping.add(progress.id)
                self._responder.spawn(self._stop(progress))
            if progress.revives and progress.id not in self._reviving:
                self._reviving.add(progress.id)
                self._responder.spawn(self._revive(progress))
        await self._pushers.look()
        await self._followed.look()
        now = self._leader.now()
        await self._at(DUE, now, self._expire)
        if asyncio.get_running_loop().time() - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = asyncio.get_running_loop().time()
            await self._at(ENDED, now - RETENTION_SECONDS, self._forget)

    def _has_new_events(self, progress: Progress) -> bool:
        """Return whether a workflow has pending events that were not just written here."""
        untold, turn = list(progress.untold), int(asyncio.get_running_loop().time() / AGAIN_SECONDS)
        last = untold[-1] if untold else 0
        retries = sum(progress.retried.values())
        news = (progress.run, retries, progress.state, progress.started_at is None, len(untold), last, turn)
        if self._last_written.get(progress.id) == news:
            return False
        self._last_written[progress.id] = news
        return True

    async def _write_pending(self, progress: Progress) -> None:
        found = await self._read(progress.id, lambda flow, _: announcements(flow))
        for one in found or []:
            self._announce(progress.id, one)

    def _announce(self, workflow_id: str, one: Announcement) -> None:
        self._write(workflow_id, one.data, one.what, one.time)

    def _write(self, workflow_id: str, data: EventData, what: str, time: str | None = None) -> None:
        """Write an event, unless it is in flight."""
        event_id = event_id_of(workflow_id, what)
        now = asyncio.get_running_loop().time()
        if now - self._written.get(event_id, float("-inf")) >= AGAIN_SECONDS:
            self._written[event_id] = now
            self._responder.broker.events.record(workflow_id, data, time, event_id=event_id)

    async def _stop(self, progress: Progress) -> None:
        """Tell workers not to start jobs of a workflow, then record this."""
        what = f"stopped {progress.run}"
        now = asyncio.get_running_loop().time()
        try:
            if now - self._written.get(event_id_of(progress.id, what), float("-inf")) < AGAIN_SECONDS:
                return
            await self._responder.broker.tell_workers(STOP_WORKFLOW, ControlRequest(progress.id, attempt=progress.run))
            jobs = await self._read(progress.id, lambda flow, _: _dropped(flow)) or []
            for start in range(0, len(jobs), STOPPED_AT_A_TIME):
                await self._record_stopped(jobs[start : start + STOPPED_AT_A_TIME])
            self._write(progress.id, WorkflowStopped(workflow_id=progress.id, workflow_name=progress.name), what)
        except ClientError as error:
            _log.warning("workers could not be told that workflow %s is over, trying again: %r", progress.id, error)
        finally:
            self._stopping.discard(progress.id)

    async def _record_stopped(self, jobs: Sequence[tuple[str, str, str]]) -> None:
        """Record that jobs are cancelled. Returns when that is folded: events of others must not wait for many jobs."""
        last = self._view.expect("job.cancelled", jobs[-1][0])
        for job_id, job_type, queue in jobs:
            data = JobCancellation(job_type=job_type, queue=queue, reason="workflow")
            self._responder.broker.events.record(job_id, data, event_id=cancelled_event_id(job_id))
        await asyncio.wait([last], timeout=FOLD_SECONDS)
        if not last.done():
            self._view.forget("job.cancelled", jobs[-1][0])

    async def _revive(self, progress: Progress) -> None:
        """Move the dead letters of failed streamed jobs back to their queues, then record this."""
        ids = {member_job_id(progress.id, index) for index in progress.revived}
        found = 0
        try:
            for queue in progress.queues:
                async with DeadLetters(self._jobs, queue) as dead:
                    found += await dead.retry(ids)
            if found < len(ids):
                text = "%d of %d failed jobs of workflow %s are not in a dead letter queue and cannot be retried"
                _log.error(text, len(ids) - found, len(ids), progress.id)
            what = f"revived {progress.run}"
            self._write(progress.id, WorkflowRevived(workflow_id=progress.id, workflow_name=progress.name), what)
        except (ClientError, JobsError, TimeoutError) as error:
            _log.warning("the dead letters of workflow %s could not be retried, trying again: %r", progress.id, error)
            await asyncio.sleep(POLL_SECONDS)
        finally:
            self._reviving.discard(progress.id)

    async def _at(self, mark: str, now: float, act: Callable[[Progress], None]) -> None:
        """Handle workflows that are due."""
        until = format_timestamp(datetime.fromtimestamp(now, UTC))
        for key, row in await self._view.marked(mark, MomentRow, AT_A_TIME):
            if key.split("/")[1] > until:
                break
            progress = await self._view.row(progress_key(row.id), Progress)
            if progress is not None:
                act(progress)

    def _expire(self, progress: Progress) -> None:
        data = WorkflowExpired(workflow_id=progress.id, workflow_name=progress.name)
        self._write(progress.id, data, f"expired {progress.run}")

    def _forget(self, progress: Progress) -> None:
        data = WorkflowForgotten(workflow_id=progress.id, workflow_name=progress.name)
        self._write(progress.id, data, "forgotten")

    async def _read(self, workflow_id: str, call: Callable[[Flow, Reader], T]) -> T | None:
        """Read a workflow; None if it is unknown."""
        return await self._view.look(lambda store: look_at(store.row, self._plans, workflow_id, call))


def look_at(read: Reader, plans: Plans, workflow_id: str, call: Callable[[Flow, Reader], T]) -> T | None:
    """Call a function with a stored workflow; None if it is unknown."""
    flow = read_flow(read, plans, workflow_id)
    return None if flow is None else call(flow, read)


def _job(flow: Flow, read: Reader, number: int) -> tuple[dict[str, object], int] | None:
    """Return the envelope of a step without its own fields, and its delay in milliseconds."""
    node = flow.plan[number] if flow.plan.has(number) else None
    if node is None or node.job is None:
        return None
    job = dict(node.job)
    delay_ms = job.pop(DELAY, 0)
    parents = Values(flow, read).parents(node)
    if parents:
        job["parent_results"] = {key: msgspec.json.decode(value) for key, value in parents.items()}
    if node.callback:
        meta = job.get("meta")
        job["meta"] = {**(meta if isinstance(meta, dict) else {}), CALLBACK: node.callback}
    return job, delay_ms if isinstance(delay_ms, int) else 0


def _dropped(flow: Flow) -> list[tuple[str, str, str]]:
    """Return the id, type and queue of queued jobs that will not start."""
    nodes = [flow.plan[number] for number in flow.progress.dropped if flow.plan.has(number)]
    return [(flow.job_id(node.number), node.job_type, str((node.job or {}).get("queue", ""))) for node in nodes]
