"""Acknowledges jobs without a task for each; answers when the view has applied the end.

Acks that arrive together share one event message, one confirm and one wait. Others, such as those for an unknown job or
from the wrong worker, are left to the handler.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.errors import ended_since
from waybill.backend.job_form import form_of
from waybill.backend.job_text import WHEN_COMPLETED, open_text, with_fields
from waybill.backend.leases import Lease
from waybill.backend.message import Request, Response
from waybill.backend.peer import address_of
from waybill.backend.shortcut import Asker, FutureAsker, HeadLines, Take, is_usual
from waybill.backend.usual_bodies import Ack
from waybill.ojs.coordinator.expectations import Key
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper
from waybill.ojs.spec.states import State
from waybill.ojs.worker.attempt_ends import result_limit
from waybill.ojs.worker.execution import Execution

POLL_SECONDS: Final = 1.0
_STATE: Final = State.COMPLETED.value
_COMPLETED: Final = "job.completed"

_decode = msgspec.json.Decoder(Ack).decode
_encode = msgspec.json.Encoder().encode


class _Waiting:
    """An unanswered ack."""

    def __init__(
        self, acks: QuickAcks, lease: Lease, asker: Asker, lines: HeadLines | None, ends_at: float, key: Key
    ) -> None:
        self._acks = acks
        self.lease = lease
        self.asker = asker
        self.lines = lines
        """The head of its answer; None for one that the application finishes."""
        self.ends_at = ends_at
        self.key = key
        """The awaited event."""

    def tell(self, job: JobRecord | None) -> None:
        """Answer: the view has applied the end."""
        self._acks.tell(self, job)


class QuickAcks:
    """The acks of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._waiting: dict[_Waiting, None] = {}
        """Unanswered acks, oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def ack(self, request: Request) -> asyncio.Future[Response] | None:
        """Complete the job of a request, if it has the common form."""
        if not is_usual(request):
            return None
        asker = FutureAsker(address_of(request.peer))
        return asker.future if self._take(request.body, asker, None) else None

    def shorten(self, request: Request) -> Take | None:
        """Return the shortcut of `ack` for requests with a head."""
        if not is_usual(request):
            return None
        lines = HeadLines(request, 200)

        def take(body: bytes, asker: Asker) -> bool:
            return self._take(body, asker, lines)

        return take

    def _take(self, body: bytes, asker: Asker, lines: HeadLines | None) -> bool:
        try:
            ack = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        backend = self._backend
        job_id = ack.job_id
        lease = backend.leases.get(job_id)
        if lease is None:
            return False
        view, execution = backend.view, lease.execution
        envelope = execution.envelope
        if (
            len(body) > result_limit(envelope)
            or (ack.worker_id and lease.worker_id and ack.worker_id != lease.worker_id)
            or ack.attempt not in {0, execution.attempt}
            or envelope.workflow_id is not None
            or envelope.unique is not None
            or is_nested_deeper(body, MAX_CARRIED_NESTING)
        ):
            return False
        backend.leases.end(job_id)
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting = _Waiting(self, lease, asker, lines, now + FOLD_SECONDS, (_COMPLETED, job_id))
        self._waiting[waiting] = None
        if self._timer is None:
            self._timer = loop.call_later(POLL_SECONDS, self._look)
        view.expectations.tell(waiting.key, waiting.tell)
        backend.settlement.completed(execution, ack.result, now - execution.started)
        return True

    def tell(self, waiting: _Waiting, job: JobRecord | None) -> None:
        """Answer an ack: the view has applied the end of its job."""
        if waiting not in self._waiting:
            return
        del self._waiting[waiting]
        lease = waiting.lease
        execution = lease.execution
        text = None if job is None else _text_of(lease, job)
        if job is not None and text is not None:
            waiting.asker.told(_answer(execution, job.ended_at, text, waiting.lines))
            return
        detail = self._backend.view.detail_now(execution.envelope.id)
        if detail is not None:
            self._tell_detail(waiting, detail)
            return
        task = asyncio.get_running_loop().create_task(self._tell_later(waiting))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell_later(self, waiting: _Waiting) -> None:
        """Answer when the store is free."""
        try:
            detail = await self._backend.view.detail(waiting.lease.execution.envelope.id)
        except Exception as error:  # noqa: BLE001 - the client must get an answer
            waiting.asker.failed(error)
        else:
            self._tell_detail(waiting, detail)

    def _tell_detail(self, waiting: _Waiting, detail: JobDetail | None) -> None:
        execution = waiting.lease.execution
        form = {"id": execution.envelope.id} if detail is None else form_of(detail, datetime.now(UTC))
        if form.get("state") == State.CANCELLED.value:
            waiting.asker.failed(ended_since(execution.envelope.id, form["state"]))
            return
        completed_at = form.get("completed_at") or self._backend.now()
        waiting.asker.told(_answer(execution, completed_at, form, waiting.lines))

    def _look(self) -> None:
        """Time out old acks."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(POLL_SECONDS, self._look) if self._waiting else None
        now = loop.time()
        for waiting in list(self._waiting):
            if waiting.ends_at > now:
                break
            del self._waiting[waiting]
            self._backend.view.expectations.tell_no_more(waiting.key, waiting.tell)
            waiting.asker.failed(TimeoutError())


def _answer(execution: Execution, completed_at: object, job: object, lines: HeadLines | None) -> Response:
    job_id = execution.envelope.id
    told = {"acknowledged": True, "id": job_id, "job_id": job_id, "state": _STATE, "attempt": execution.attempt}
    body = _encode({**told, "completed_at": completed_at, "job": job})
    return Response(200, body, lines=b"" if lines is None else lines.encode())


def _text_of(lease: Lease, job: JobRecord) -> msgspec.Raw | None:
    """Return the text of `form_of` for a job without decoding its arguments, if its history is simple."""
    envelope, body = lease.execution.envelope, lease.execution.delivery.body
    if (
        not isinstance(job.envelope, msgspec.Raw)
        # The body from the queue was checked: it is the envelope of this job.
        or bytes(job.envelope) != body
        or body.find(b":null") >= 0
        or not envelope.created_at
        or (job.state, job.type, job.queue) != (_STATE, envelope.type, envelope.queue)
        or job.enqueued_at != envelope.enqueued_at
        or envelope.parent_results is not None
        or job.error is not None
        or job.errors is not None
        or job.scheduled_at is not None
        or job.progress is not None
        or job.progress_message is not None
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
