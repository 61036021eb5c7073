"""Answers the requests about workflows, in the coordinator that reads their queue (ojs-workflows section 11).

A workflow belongs to the user who pushed it, like a job: the coordinator's policy decides who else may see and change
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from typing import Final

import msgspec

from waybill.client import ClientError
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.spec.control_message import STOP_WORKFLOW, ControlRequest
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.workflow_events import WorkflowCancelled, WorkflowRetried
from waybill.ojs.workflow.describe import describe
from waybill.ojs.workflow.flow import Flow
from waybill.ojs.workflow.fold import WorkflowFold
from waybill.ojs.workflow.numbering import is_workflow_id
from waybill.ojs.workflow.plan import ROOT
from waybill.ojs.workflow.progress import WORKFLOW_ENDS, Progress, WorkflowState
from waybill.ojs.workflow.requests import (
    CANCEL,
    INFO,
    LIST,
    RESULTS,
    RETRY,
    WAIT,
    WorkflowInfo,
    WorkflowReply,
    WorkflowRequest,
)
from waybill.ojs.workflow.rows import progress_key
from waybill.ojs.workflow.values import Plans, Reader, Values, read_flow

MAX_LISTED: Final = 1000
MAX_WAIT_SECONDS: Final = 60.0
PAGE_BYTES: Final = 1024 * 1024
KNOWN_SECONDS: Final = 1.0
"""How long the first event of a workflow may take to arrive."""
PAGE_ROWS: Final = 1000
POLL_SECONDS: Final = 1.0

_log = logging.getLogger("waybill.ojs.workflow")
_decode = msgspec.json.Decoder(WorkflowRequest).decode


class WorkflowAnswers:
    """Answers these requests."""

    def __init__(self, responder: Responder, fold: WorkflowFold, plans: Plans) -> None:
        """`fold` knows which workflows have ended."""
        self._fold = fold
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        """Requests that wait for the end of a workflow."""
        self._responder = responder
        self._view = responder.view
        self._plans = plans
        self._folded = asyncio.Event()
        responder.view.on_feature.append(self._folds)

    def answers(self) -> dict[str, Answer]:
        """Return the handlers by kind of request."""
        return {
            INFO: self._spawned(self._info),
            WAIT: self._spawned(self._wait),
            LIST: self._spawned(self._list),
            RESULTS: self._spawned(self._results),
            CANCEL: self._spawned(self._cancel),
            RETRY: self._spawned(self._retry),
        }

    def _folds(self) -> None:
        self._folded.set()
        self._folded = asyncio.Event()
        while self._fold.over:
            for waiting in self._waiting.get(self._fold.over.popleft(), ()):
                waiting.set()

    def _spawned(self, answer: Answer) -> Answer:
        """Answer requests concurrently; a client without a reply repeats its request."""

        async def begin(request: Request) -> None:
            request.delivery.ack()
            self._responder.spawn(answer(request))

        return begin

    async def _info(self, request: Request) -> None:
        await self._responder.reply(request, WorkflowReply(_listed(await self._known(request, KNOWN_SECONDS))))

    async def _wait(self, request: Request) -> None:
        """Answer when the workflow has ended, or at the timeout."""
        asked = _body(request)
        over = asyncio.Event()
        self._waiting[asked.job_id].add(over)
        try:
            async with asyncio.timeout(min(max(asked.wait_seconds, 0.0), MAX_WAIT_SECONDS)):
                while not await self._is_over(asked.job_id):
                    # If coordinators share a database, another one may fold the end.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(POLL_SECONDS):
                            await over.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting[asked.job_id].discard(over)
            if not self._waiting[asked.job_id]:
                del self._waiting[asked.job_id]
        await self._responder.reply(request, WorkflowReply(_listed(await self._find(request))))

    async def _is_over(self, workflow_id: str) -> bool:
        progress = await self._view.row(progress_key(workflow_id), Progress) if is_workflow_id(workflow_id) else None
        return progress is not None and progress.state in WORKFLOW_ENDS

    async def _list(self, request: Request) -> None:
        asked = _body(request)
        limit = min(max(asked.limit, 0), MAX_LISTED)
        owners = None if self._responder.is_trusted(request) else {None, request.user}

        def read(store: JobStore) -> list[WorkflowInfo]:
            return [
                describe(flow, steps=False)
                for progress in _newest(store, asked.state, limit, owners)
                if (flow := read_flow(store.row, self._plans, progress.id)) is not None
            ]

        await self._responder.reply(request, WorkflowReply(await self._view.read(read)))

    async def _results(self, request: Request) -> None:
        asked = _body(request)

        def page(flow: Flow, read: Reader) -> WorkflowReply:
            node = flow.plan[asked.step] if flow.plan.has(asked.step) else flow.plan[ROOT]
            results, rest = Values(flow, read).page(node, max(asked.first, 0), PAGE_BYTES)
            return WorkflowReply(results=results, next=rest)

        def read(store: JobStore) -> WorkflowReply | None:
            flow = read_flow(store.row, self._plans, asked.job_id)
            if flow is None or not self._may_see(request, flow.progress):
                return None
            return page(flow, store.row)

        reply = await self._view.read(read)
        await self._responder.reply(request, reply or WorkflowReply())

    async def _cancel(self, request: Request) -> None:
        found = await self._known(request, KNOWN_SECONDS)
        reply = WorkflowReply(_listed(found))
        if found is not None and await self._may_change(request):
            if found.is_over or found.state == WorkflowState.COMPENSATING:
                reply.refused = f"it is already {found.state}"
            else:
                data = WorkflowCancelled(workflow_id=found.id, workflow_name=found.name)
                reply = await self._done(request, found.id, data)
                if reply.workflows and reply.workflows[0].state != "cancelled":
                    reply.refused = f"it is already {reply.workflows[0].state}"
                else:
                    await self._tell_workers(found)
        await self._responder.reply(request, reply)

    async def _tell_workers(self, cancelled: WorkflowInfo) -> None:
        """Tell workers not to start its jobs before the request is answered: the leader may do it later."""
        request = ControlRequest(cancelled.id, attempt=cancelled.run)
        try:
            await self._responder.broker.tell_workers(STOP_WORKFLOW, request)
        except ClientError as error:
            _log.warning("workers hear later that workflow %s was cancelled: %r", cancelled.id, error)

    async def _retry(self, request: Request) -> None:
        found = await self._known(request, KNOWN_SECONDS)
        reply = WorkflowReply(_listed(found))
        if found is not None and await self._may_change(request):
            if found.state != "failed":
                reply.refused = f"it is {found.state}"
            else:
                data = WorkflowRetried(workflow_id=found.id, workflow_name=found.name, run=found.run + 1)
                reply = await self._done(request, found.id, data)
        await self._responder.reply(request, reply)

    async def _done(self, request: Request, workflow_id: str, data: EventData) -> WorkflowReply:
        """Write an event, and return the workflow as it is once the event is folded."""
        event_id = f"evt_{new_id()}"
        record = self._responder.broker.events.record
        await self._view.folded(event_id, lambda: record(workflow_id, data, event_id=event_id))
        return WorkflowReply(_listed(await self._find(request)))

    async def _known(self, request: Request, seconds: float) -> WorkflowInfo | None:
        """Return a workflow, giving its first event a moment to arrive."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            # Only the wait has a timeout: a busy store takes longer to answer, but it knows the workflow.
            folded = self._folded
            if (found := await self._find(request)) is not None:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await folded.wait()
            except TimeoutError:
                return None

    async def _find(self, request: Request) -> WorkflowInfo | None:
        workflow_id = _body(request).job_id
        if not is_workflow_id(workflow_id):
            return None

        def read(store: JobStore) -> WorkflowInfo | None:
            flow = read_flow(store.row, self._plans, workflow_id)
            if flow is None or not self._may_see(request, flow.progress):
                return None
            return describe(flow, Values(flow, store.row))

        return await self._view.read(read)

    def _may_see(self, request: Request, progress: Progress) -> bool:
        return self._responder.is_trusted(request) or progress.owner in {None, request.user}

    async def _may_change(self, request: Request) -> bool:
        workflow_id = _body(request).job_id
        progress = await self._view.row(progress_key(workflow_id), Progress)
        owner = None if progress is None else progress.owner
        if self._responder.may_change(request, owner):
            return True
        self._responder.refuse(request, workflow_id, owner)
        return False


def _body(request: Request) -> WorkflowRequest:
    return _decode(request.delivery.body)


def _listed(info: WorkflowInfo | None) -> list[WorkflowInfo]:
    return [] if info is None else [info]


def _newest(store: JobStore, state: str | None, limit: int, owners: set[str | None] | None) -> list[Progress]:
    """Return the newest workflows: ids sort by time."""
    found: list[Progress] = []
    after = ""
    while rows := store.listed("workflow/", Progress, PAGE_ROWS, after):
        after = rows[-1][0]
        found += [
            progress
            for _, progress in rows
            if state in {None, progress.state} and (owners is None or progress.owner in owners)
        ]
        del found[: max(len(found) - limit, 0)]
    return found[::-1]
