"""Pending jobs, which are stored in the event stream until they are activated. See `coordinator.staged`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused
from waybill.backend.job_form import Form, form_of
from waybill.ojs.coordinator.staged import Staged, staged_key
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.stage_events import JobActivated, JobStaged, JobUnstaged
from waybill.ojs.spec.states import State

STAGED: Final = "job.staged"
ENQUEUED: Final = "job.enqueued"


class Staging:
    """The pending jobs of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def stage(self, job: Form) -> Form:
        """Store a valid job until it is activated; returns it. Raises InvalidJob."""
        backend = self._backend
        envelope = backend.jobs.make(job).envelope
        envelope.max_attempts = envelope.policy.max_attempts
        envelope.created_at = backend.now()
        body = _body_of(envelope)
        data = JobStaged(job_type=envelope.type, queue=envelope.queue, job=msgspec.Raw(msgspec.json.encode(body)))
        async with backend.folded([(STAGED, envelope.id)]):
            backend.broker.events.record(envelope.id, data)
        return {**body, "priority": envelope.priority, "max_attempts": envelope.max_attempts, "attempt": 0}

    async def activate(self, job_id: str) -> str:
        """Push a pending job; returns its state then. Raises RequestRefused, PushFailed."""
        backend = self._backend
        key = staged_key(job_id)
        event_id = f"evt_{new_id()}"
        row = await backend.view.row(key, Staged)
        if row is None:
            raise await self._refused(job_id)
        job = dict(row.job)
        kind, queue = str(job.get("type")), str(job.get("queue"))
        data = JobActivated(job_type=kind, queue=queue)
        events = backend.broker.events
        await backend.view.folded(event_id, lambda: events.record(job_id, data, event_id=event_id))
        row = await backend.view.row(key, Staged)
        if row is None or row.by != event_id:
            raise await self._refused(job_id)
        job.pop("state", None)
        async with backend.folded([(ENQUEUED, job_id)], is_certain=True):
            pushed = await backend.jobs.push_job(job)
            if pushed.id != job_id:
                backend.view.forget(ENQUEUED, job_id)
        events.record(job_id, JobUnstaged(job_type=kind, queue=queue))
        return (pushed.envelope and pushed.envelope.state) or State.AVAILABLE.value

    async def _refused(self, job_id: str) -> RequestRefused:
        """Return the error for a job that another request has activated or cancelled."""
        found = await self._backend.known(job_id)
        state = form_of(found, datetime.now(UTC))["state"]
        details: Form = {"job_id": job_id, "current_state": state}
        what = "being activated" if state == State.PENDING.value else state
        return RequestRefused("conflict", f"Job {job_id} is already {what}.", details=details)


def _body_of(envelope: Envelope) -> Form:
    body: Form = msgspec.json.decode(envelope.encode())
    body["state"] = State.PENDING.value
    return body
