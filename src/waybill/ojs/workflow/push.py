"""Pushes workflows: the definition goes to the event stream in one event, then streamed jobs go to their queues.

    workflow.created, confirmed -> the workflow is safe: a coordinator starts its steps
    jobs of a streamed group, as any jobs are pushed, each under the id that its place gives it
    workflow.pushing, now and then -> the pusher lives
    workflow.sealed, confirmed  -> so many they were: the group can end

If the number of jobs is known in advance, the definition has it, and the group ends with the last job. If the pusher
stays silent for too long (see `pushers`), the group fails when the pushed jobs have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from waybill.client import ClientError
from waybill.ojs.errors import ControlFailed, InvalidJob, JobsError, PushFailed
from waybill.ojs.handler import NewJob, Options
from waybill.ojs.job_context import current_job
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.pushing_events import WorkflowPushing
from waybill.ojs.spec.timestamps import resolve_moment
from waybill.ojs.spec.workflow_events import WorkflowCreated, WorkflowSealed
from waybill.ojs.workflow.definition import MAX_DEFINITION_BYTES, Definition, check_definition
from waybill.ojs.workflow.flow import MAX_QUEUES
from waybill.ojs.workflow.handle import WorkflowHandle
from waybill.ojs.workflow.jobs_port import JobsPort
from waybill.ojs.workflow.numbering import (
    MAX_MEMBERS,
    event_id_of,
    is_workflow_id,
    member_job_id,
    new_workflow_id,
    spawned_id,
)
from waybill.ojs.workflow.plan import Plan

AT_A_TIME: Final = 2000
CONFIRM_SECONDS: Final = 60.0
PUSHING_SECONDS: Final = 30.0
"""How often the pusher reports that it still pushes jobs of a group."""

Stream = Iterator[NewJob[Any]] | AsyncIterator[NewJob[Any]]
"""The number of jobs that are pushed as one batch."""


async def push_workflow(
    definition: Definition,
    stream: Stream | None,
    jobs: JobsPort,
    *,
    expires: datetime | timedelta | None,
    workflow_id: str | None,
) -> str:
    """Push a workflow, and return its id; see `Shape.push`."""
    if workflow_id is not None and not is_workflow_id(workflow_id):
        raise InvalidJob("id", f"{workflow_id!r} is not one of new_workflow_id", code="INVALID_WORKFLOW")
    return await _push(definition, stream, jobs, workflow_id or new_workflow_id(), expires=expires)


async def spawn_workflow(definition: Definition, stream: Stream | None, jobs: JobsPort) -> str:
    """Start a workflow as part of the current job, and return its id; see `Shape.spawn`."""
    job = current_job()
    job.spawned_count += 1
    workflow_id = spawned_id(job.id, job.spawned_count)
    if job.attempt > 1:
        try:
            known = await WorkflowHandle[object](jobs, workflow_id).info()
            if known.is_over or known.is_sealed:
                return workflow_id
        except (ControlFailed, LookupError):
            # The previous attempt may not have got this far. Jobs that are pushed again count once.
            pass
    return await _push(definition, stream, jobs, workflow_id, parent_job=job.id)


async def _push(
    definition: Definition,
    stream: Stream | None,
    jobs: JobsPort,
    workflow_id: str,
    *,
    expires: datetime | timedelta | None = None,
    parent_job: str | None = None,
) -> str:
    check_definition(definition)
    encoded = msgspec.json.encode(definition)
    if len(encoded) > MAX_DEFINITION_BYTES:
        text = f"is {len(encoded)} bytes long, {MAX_DEFINITION_BYTES} are allowed: stream the jobs, or spawn them"
        raise InvalidJob("workflow", text, code="PAYLOAD_TOO_LARGE")
    name = definition.name or definition.type
    created = WorkflowCreated(
        workflow_id=workflow_id,
        workflow_name=name,
        workflow_type=definition.type,
        total_steps=Plan(definition).job_count,
        definition=msgspec.Raw(encoded),
        expires_at=None if expires is None else resolve_moment(expires, "expires_at", datetime.now(UTC)),
        parent_job=parent_job,
    )
    await _record(jobs, workflow_id, created, "created")
    if stream is not None:
        async with _telling(jobs, workflow_id, name) as told:
            total, queues = await _push_members(jobs, workflow_id, stream, told)
        sealed = WorkflowSealed(workflow_id=workflow_id, workflow_name=name, total=total, queues=queues)
        await _record(jobs, workflow_id, sealed, "sealed")
    return workflow_id


async def _record(jobs: JobsPort, workflow_id: str, data: EventData, what: str) -> None:
    """Write an event, and return when the broker has confirmed it."""
    broker = await jobs.broker_connection()
    await broker.declarer.ensure_shared()
    confirmed = asyncio.Event()
    broker.events.record(workflow_id, data, event_id=event_id_of(workflow_id, what))
    broker.events.after(confirmed.set)
    try:
        async with asyncio.timeout(CONFIRM_SECONDS):
            await confirmed.wait()
    except TimeoutError:
        raise PushFailed(workflow_id, "BACKEND_UNAVAILABLE", "the broker accepts no events") from None


class _Told:
    """The number of jobs that are in their queues."""

    pushed = 0


@contextlib.asynccontextmanager
async def _telling(jobs: JobsPort, workflow_id: str, name: str) -> AsyncIterator[_Told]:
    """Report regularly that jobs are being pushed."""
    told = _Told()

    async def tell() -> None:
        while True:
            await asyncio.sleep(PUSHING_SECONDS)
            data = WorkflowPushing(workflow_id=workflow_id, workflow_name=name, pushed=told.pushed)
            with contextlib.suppress(ClientError, JobsError):
                (await jobs.broker_connection()).events.record(workflow_id, data)

    task = asyncio.get_running_loop().create_task(tell())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _push_members(jobs: JobsPort, workflow_id: str, stream: Stream, told: _Told) -> tuple[int, list[str]]:
    """Push the jobs of a streamed group in batches; returns their number and their queues."""
    queues: dict[str, None] = {}
    options: dict[int, tuple[Options, Options]] = {}
    count = 0
    gathered: list[NewJob] = []

    async def flush() -> None:
        nonlocal gathered
        await jobs.push_many(gathered)
        told.pushed += len(gathered)
        gathered = []

    async for job in _each(stream):
        if count == MAX_MEMBERS:
            raise InvalidJob("workflow", f"has more than {MAX_MEMBERS} jobs in a group", code="INVALID_WORKFLOW")
        _, own = options.get(id(job.options), (None, None))
        if own is None:
            if "unique" in job.options:
                text = "cannot be given for the jobs of a group that is streamed"
                raise InvalidJob("unique", text, code="INVALID_WORKFLOW")
            own = {**job.options, "workflow_id": workflow_id}
            # Keep both alive: the first so that its id is not reused, the second so that all of its jobs share a
            # template.
            options[id(job.options)] = job.options, own
            queues[own.get("queue", "default")] = None
        gathered.append(NewJob(job.type, job.args, own, member_job_id(workflow_id, count), job.unique_key))
        count += 1
        if len(gathered) == AT_A_TIME:
            await flush()
            if len(options) > AT_A_TIME:
                options.clear()
    if gathered:
        await flush()
    return count, list(queues)[:MAX_QUEUES]


async def _each(stream: Stream) -> AsyncIterator[NewJob[Any]]:
    if isinstance(stream, Iterator):
        for job in stream:
            yield job
    else:
        async for job in stream:
            yield job
