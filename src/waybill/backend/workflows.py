"""The workflows of one backend: started, read and cancelled through its own view of the events."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import UNKNOWN_SECONDS, Backend
from waybill.backend.job_form import Form
from waybill.backend.workflow_form import form_of_workflow
from waybill.ojs.coordinator.job_fold import has_ended
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.spec.workflow_events import WorkflowCancelled, WorkflowRetried
from waybill.ojs.workflow.definition import Definition
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.numbering import is_workflow_id, new_workflow_id
from waybill.ojs.workflow.plan import Plan
from waybill.ojs.workflow.progress import Progress
from waybill.ojs.workflow.push import push_workflow
from waybill.ojs.workflow.values import Plans, Values, read_flow

MOST_AWAITED: Final = 1000
"""The maximum number of steps to wait for when a workflow starts or continues."""
NEXT_SECONDS: Final = 2.0
"""How long the answer to an ack waits for the next steps."""
STOP_SECONDS: Final = 2.0
PAGE_ROWS: Final = 1000
MAX_SEARCHED: Final = 10_000
"""The number of newest workflows to search for those of a tenant."""
ENQUEUED: Final = "job.enqueued"


class Workflows:
    """The workflows of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def _plans(self) -> Plans:
        return self._backend.coordinator.plans

    async def begin(self, definition: Definition) -> str:
        """Start a workflow; returns its id after the first jobs are enqueued. Raises InvalidJob, PushFailed."""
        workflow_id = new_workflow_id()
        backend = self._backend
        plan = Plan(definition)
        for queue in {str((node.job or {}).get("queue")) for node in plan.nodes if node.job is not None}:
            await backend.coordinate_queue(queue)
        first = Flow(plan, Progress(workflow_id, "", format_timestamp(datetime.now(UTC))))
        keys = [(ENQUEUED, first.job_id(number)) for number in first.ready[:MOST_AWAITED]]
        async with backend.folded(keys, is_certain=True):
            await push_workflow(definition, None, backend.jobs, expires=None, workflow_id=workflow_id)
        return workflow_id

    async def form(self, workflow_id: str) -> Form | None:
        """Return a workflow, None if it is unknown. Waits a moment for the events of other backends."""
        if not is_workflow_id(workflow_id):
            return None
        found = await self._form(workflow_id)
        if found is None:
            await asyncio.sleep(UNKNOWN_SECONDS)
            found = await self._form(workflow_id)
        return found

    async def newest(
        self, after: str, limit: int, state: str, name: str, prefix: str = "", skipped: int = 0
    ) -> tuple[list[Form], int | None]:
        """Return up to `limit` workflows that are older than `after`, newest first, and the number of all.

        `prefix` selects those whose jobs are all in queues with this prefix; these are not counted. The first
        `skipped` are left out.
        """

        def read(store: JobStore) -> tuple[list[Form], int | None]:
            found: list[Form] = []
            older, total = _older(store, after, MAX_SEARCHED if prefix else skipped + limit, state, name)
            left_out = skipped if prefix else 0
            for progress in older if prefix else older[skipped:]:
                flow = read_flow(store.row, self._plans, progress.id)
                if flow is None or not _is_within(flow, prefix):
                    continue
                if left_out:
                    left_out -= 1
                elif len(found) < limit:
                    found.append(form_of_workflow(flow))
            return found, None if prefix else total

        return await self._backend.view.read(read)

    async def is_within(self, workflow_id: str, prefix: str) -> bool:
        """Whether a workflow is known, and its jobs are all in queues whose names begin with `prefix`."""
        if not is_workflow_id(workflow_id):
            return False
        flow = await self._flow(workflow_id)
        return flow is not None and _is_within(flow, prefix)

    async def cancel(self, workflow_id: str) -> None:
        """Cancel a workflow; returns when no more of its jobs can start."""
        found = await self._flow(workflow_id)
        name = "" if found is None else found.progress.name
        await self._record(workflow_id, WorkflowCancelled(workflow_id=workflow_id, workflow_name=name))
        found = await self._flow(workflow_id)
        if found is not None and found.progress.dropped:
            last = found.job_id(found.progress.dropped[-1])
            await self._backend.view.settled(last, lambda job: job is not None and has_ended(job), STOP_SECONDS)

    async def retry(self, workflow_id: str) -> None:
        """Retry the failed jobs of a failed workflow."""
        found = await self._flow(workflow_id)
        if found is not None:
            name, run = found.progress.name, found.progress.run + 1
            await self._record(workflow_id, WorkflowRetried(workflow_id=workflow_id, workflow_name=name, run=run))
            await self.wait_for_next_jobs(workflow_id)

    async def wait_for_next_jobs(self, workflow_id: str) -> None:
        """Wait until the next jobs are enqueued, at most NEXT_SECONDS."""
        found = await self._flow(workflow_id)
        if found is None or not found.ready:
            return
        view = self._backend.view
        ids = [found.job_id(number) for number in found.ready[:MOST_AWAITED]]
        expected = {job_id: view.expect(ENQUEUED, job_id) for job_id in ids}
        for job in await view.many(ids):
            view.forget(ENQUEUED, job.id)
            del expected[job.id]
        if expected:
            await asyncio.wait(expected.values(), timeout=NEXT_SECONDS)
            for job_id, future in expected.items():
                if not future.done():
                    view.forget(ENQUEUED, job_id)

    async def _flow(self, workflow_id: str) -> Flow | None:
        return await self._backend.view.read(lambda store: read_flow(store.row, self._plans, workflow_id))

    async def _form(self, workflow_id: str) -> Form | None:
        def read(store: JobStore) -> Form | None:
            flow = read_flow(store.row, self._plans, workflow_id)
            return None if flow is None else form_of_workflow(flow, Values(flow, store.row))

        return await self._backend.view.read(read)

    async def _record(self, workflow_id: str, data: EventData) -> None:
        event_id = f"evt_{new_id()}"
        events = self._backend.broker.events
        await self._backend.view.folded(event_id, lambda: events.record(workflow_id, data, event_id=event_id))


def _is_within(flow: Flow, prefix: str) -> bool:
    queues = (str((node.job or {}).get("queue", "default")) for node in flow.plan.nodes if node.job is not None)
    return all(queue.startswith(prefix) for queue in queues)


def _older(store: JobStore, after: str, limit: int, state: str, name: str) -> tuple[list[Progress], int]:
    """Return workflows that were created before `after`, newest first, and the number of those of any time.

    Their ids are in the order of time.
    """
    found: list[Progress] = []
    key, total = "", 0
    states = {"pending", "running"} if state in {"running", "active"} else {state}
    while rows := store.listed("workflow/", Progress, PAGE_ROWS, key):
        key = rows[-1][0]
        fitting = [one for _, one in rows if (not state or one.state in states) and (not name or one.name == name)]
        total += len(fitting)
        found += [one for one in fitting if not after or one.id < after]
        del found[: max(len(found) - limit, 0)]
    return found[::-1], total
