"""Acknowledges jobs without a task for each; answers when the view has applied the end.

Acks that arrive together share one message of events, one confirm and one wait. Unusual ones, of an unknown job or of
another worker's, are left to the handler.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Final

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.job_form import form_of
from waybill.backend.job_text import WHEN_COMPLETED, open_text, with_fields
from waybill.backend.leases import Lease
from waybill.backend.message import ACCEPTED, MEDIA_TYPE, Request, Response, answer
from waybill.ojs.coordinator.expectations import Key, Tell
from waybill.ojs.coordinator.job_fold import JobRecord
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper
from waybill.ojs.spec.states import State
from waybill.ojs.worker.execution import Execution

POLL_SECONDS: Final = 1.0
_STATE: Final = State.COMPLETED.value
_COMPLETED: Final = "job.completed"


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """The common form of an ack."""

    job_id: str
    worker_id: str = ""
    result: object = None
    attempt: int = 0


_decode = msgspec.json.Decoder(Ack).decode


class QuickAcks:
    """The acks of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: dict[asyncio.Future[Response], tuple[Key, Tell, float]] = {}
        """Unanswered acks: the awaited event, the future of the answer, the deadline; oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def ack(self, request: Request) -> asyncio.Future[Response] | None:
        """Complete the job of a request, if it has the common form."""
        headers = request.headers
        if headers.get("content-type", MEDIA_TYPE) not in ACCEPTED or "idempotency-key" in headers:
            return None
        try:
            ack = _decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        backend = self._backend
        lease = backend.leases.get(ack.job_id)
        view = backend.view
        if (
            lease is None
            or not view.is_in_memory
            or (ack.worker_id and lease.worker_id and ack.worker_id != lease.worker_id)
            or ack.attempt not in {0, lease.execution.attempt}
            or lease.execution.envelope.workflow_id is not None
            or lease.execution.envelope.unique is not None
            or is_nested_deeper(request.body, MAX_CARRIED_NESTING)
        ):
            return None
        loop = asyncio.get_running_loop()
        execution = lease.execution
        backend.leases.end(ack.job_id)
        found: asyncio.Future[Response] = loop.create_future()
        now = loop.time()
        key, tell = (_COMPLETED, ack.job_id), partial(self._tell, found, lease)
        self._waiting[found] = key, tell, now + FOLD_SECONDS
        if self._timer is None:
            self._timer = loop.call_later(POLL_SECONDS, self._look)
        view.expectations.tell(key, tell)
        backend.settlement.completed(execution, ack.result, now - execution.started)
        return found

    def _tell(self, found: asyncio.Future[Response], lease: Lease, job: JobRecord | None) -> None:
        """Answer: the view has applied the end."""
        self._waiting.pop(found, None)
        if found.done():
            return
        execution = lease.execution
        text = None if job is None else _text_of(lease, job)
        if job is not None and text is not None:
            found.set_result(_told(execution, job.ended_at, text))
            return
        detail = self._backend.view.detail_now(execution.envelope.id)
        if detail is not None:
            found.set_result(self._answer(execution, detail))
            return
        task = asyncio.get_running_loop().create_task(self._tell_later(found, execution))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_later(self, found: asyncio.Future[Response], execution: Execution) -> None:
        """Answer when the store is free."""
        detail = await self._backend.view.detail(execution.envelope.id)
        if not found.done():
            found.set_result(self._answer(execution, detail))

    def _answer(self, execution: Execution, detail: JobDetail | None) -> Response:
        form = {"id": execution.envelope.id} if detail is None else form_of(detail, datetime.now(UTC))
        return _told(execution, form.get("completed_at") or self._backend.now(), form)

    def _look(self) -> None:
        """Time out old acks."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(POLL_SECONDS, self._look) if self._waiting else None
        now = loop.time()
        for found, (key, tell, ends_at) in list(self._waiting.items()):
            if ends_at > now:
                break
            self._waiting.pop(found)
            self._backend.view.expectations.tell_no_more(key, tell)
            if not found.done():
                found.set_exception(TimeoutError())


def _told(execution: Execution, completed_at: object, job: object) -> Response:
    job_id = execution.envelope.id
    told = {"acknowledged": True, "id": job_id, "job_id": job_id, "state": _STATE, "attempt": execution.attempt}
    return answer({**told, "completed_at": completed_at, "job": job})


def _text_of(lease: Lease, job: JobRecord) -> msgspec.Raw | None:
    """Return the text of `form_of` for a job without decoding its arguments, if its history is simple."""
    envelope, body = lease.execution.envelope, lease.execution.delivery.body
    if (
        not isinstance(job.envelope, msgspec.Raw)
        # The body from the queue was checked: it is the envelope of this job.
        or bytes(job.envelope) != body
        or b":null" in body
        or not envelope.created_at
        or (job.state, job.type, job.queue) != (_STATE, envelope.type, envelope.queue)
        or job.enqueued_at != envelope.enqueued_at
        or envelope.parent_results is not None
        or not (job.error is job.errors is job.scheduled_at is job.progress is job.progress_message is None)
    ):
        return None
    fields: dict[str, object] = {"attempt": job.attempt, "state": _STATE, "completed_at": job.ended_at}
    if not envelope.priority:
        fields["priority"] = 0
    if job.started_at is not None:
        fields["started_at"] = job.started_at
    if job.worker_id is not None:
        fields["worker_id"] = job.worker_id
    if job.result is not None:
        fields["result"] = job.result
    opened = lease.opened or open_text(envelope, body, WHEN_COMPLETED)
    return None if opened is None else with_fields(opened, fields)
