"""Requests about one job, or about the jobs of one queue (binding sections 5.6 to 5.8).

A cancellation is safe before it is acknowledged: it is relayed to the workers, in a stream that keeps it, and
confirmed. For a waiting job, job.cancelled is written here; for a running one, its worker writes it. Both may write it
in a race, so the event id is derived from the job id: readers that drop repeated ids count it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.ojs.coordinator.certainty import Certainty
from waybill.ojs.coordinator.job_fold import ENDS, has_ended
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.replacement import Replacement
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.coordinator.staged import Staged, staged_key
from waybill.ojs.spec import control_message
from waybill.ojs.spec.control_message import (
    MAX_LEASE_SECONDS,
    MAX_LISTED,
    ControlReply,
    ControlRequest,
    JobInfo,
    Reservation,
)
from waybill.ojs.spec.envelope import DEFAULT_VISIBILITY_SECONDS
from waybill.ojs.spec.events import JobCancellation, JobHeartbeat, JobReleased, JobReserved
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.stage_events import JobUnstaged
from waybill.ojs.spec.states import State
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.cancellations import cancelled_event_id

LEAVE_SECONDS: Final = 2.0
"""How long a running job may take to end after its cancellation, before its worker is expected to run it on."""
LEFT: Final = (*ENDS, "job.retrying", "job.scheduled", "job.enqueued")
"""Events after which a job may not be running any more."""
MAX_REPLACEMENTS: Final = 3
"""How many jobs a replacing job may cancel before its request fails."""

_log = logging.getLogger("waybill.ojs.coordinator")


class JobRequests:
    """Answers these requests."""

    def __init__(self, responder: Responder, replacement: Replacement) -> None:
        self._responder = responder
        self._broker = responder.broker
        self._view = responder.view
        self._replacement = replacement
        self._certainty = Certainty(responder.broker, responder.view)

    def answers(self) -> dict[str, Answer]:
        """Return the handlers by kind of request."""
        return {
            control_message.CANCEL: self._cancel_when_known,
            control_message.HEARTBEAT: self._beat,
            control_message.LOOK: self._look,
            control_message.INFO: self._tell,
            control_message.LIST: self._tell,
            control_message.RESERVE: self._reserve,
            control_message.RELEASE: self._release,
        }

    # --- cancel ---

    async def _cancel_when_known(self, request: Request) -> None:
        job = await self._view.get(request.body.job_id)
        if job is None or job.state in {State.ACTIVE.value, State.PENDING.value}:
            # Events of the job may be on their way: other requests need not wait for them.
            self._responder.spawn(self._responder.attempt(request, self._cancel_for))
        else:
            await self._cancel_for(request)

    async def _cancel_for(self, request: Request) -> None:
        """Cancel a job if the requester may do so."""
        job_id = request.body.job_id
        await self._view.settled(job_id, lambda found: found is not None)
        owner = await self._view.owner(job_id)
        if self._responder.may_change(request, owner):
            await self.cancel(job_id, request.queue)
        else:
            self._responder.refuse(request, job_id, owner)
        request.delivery.ack()

    async def cancel(self, job_id: str, queue: str) -> None:
        """Cancel a job: a waiting one finally, a running one if its handler cooperates."""
        if not job_id:
            return
        broker = self._broker
        job = await self._view.settled(job_id, lambda found: found is not None)
        if job is not None and has_ended(job):
            _log.info("job %s cannot be cancelled: it is already %s", job_id, job.state)
            return
        await broker.tell_workers(control_message.CANCEL, ControlRequest(job_id))
        if job is not None and job.state == State.ACTIVE.value:
            # The worker that has the job writes what became of it, but not if it has just given the job back.
            job = await self._no_longer_active(job_id)
        elif job is not None and job.state == State.PENDING.value:
            job = await self._unstage(job)
        if job is None or job.state == State.ACTIVE.value or has_ended(job):
            return
        data = JobCancellation(job_type=job.type, queue=job.queue or queue)
        broker.events.record(job_id, data, event_id=cancelled_event_id(job_id))
        confirmed = asyncio.Event()
        broker.events.after(confirmed.set)
        await confirmed.wait()
        await self._view.settled(job_id, lambda found: found is not None and has_ended(found))

    async def _no_longer_active(self, job_id: str) -> JobInfo | None:
        """Return what is known of a job once its attempt has ended, or after LEAVE_SECONDS."""
        expectations = self._view.expectations
        keys = [(kind, job_id) for kind in LEFT]
        left = asyncio.Event()

        def tell(_: JobRecord | None) -> None:
            left.set()

        job: JobInfo | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                while True:
                    left.clear()
                    for key in keys:
                        expectations.tell(key, tell)
                    try:
                        job = await self._view.get(job_id)
                        if job is None or job.state != State.ACTIVE.value:
                            return job
                        await left.wait()
                    finally:
                        for key in keys:
                            expectations.tell_no_more(key, tell)
        return job

    async def _unstage(self, job: JobInfo) -> JobInfo | None:
        """Forget a job that waits for its activation. Return one that is being activated once it is in its queue."""
        view, key = self._view, staged_key(job.id)
        if await view.row(key, Staged) is None:
            return job
        event_id = f"evt_{new_id()}"
        data = JobUnstaged(job_type=job.type, queue=job.queue, cancelled=True)
        await view.folded(event_id, lambda: self._broker.events.record(job.id, data, event_id=event_id))
        if await view.row(key, Staged) is None:
            return job
        return await view.settled(
            job.id, lambda found: found is not None and found.state != State.PENDING.value, LEAVE_SECONDS
        )

    # --- unique jobs ---

    async def _reserve(self, request: Request) -> None:
        reservation = request.body.reservation
        if reservation is None:
            self._responder.drop_invalid(request)
            return
        request.delivery.ack()
        self._responder.spawn(self._give_place(request, reservation))

    async def _give_place(self, request: Request, reservation: Reservation) -> None:
        """Reserve the place of a unique job, or reply with the conflicting job; the stream decides."""
        reply = ControlReply()
        for _ in range(MAX_REPLACEMENTS):
            obstacle = await self._obstacle(request, reservation)
            reply.jobs = [] if obstacle is None else [obstacle]
            if obstacle is None or not reservation.on_conflict.startswith("replace"):
                break
            if obstacle.state in {State.ACTIVE.value, State.PENDING.value}:
                # A running job is not replaced: its work so far stays done (section 5.2).
                break
            owner = await self._view.owner(obstacle.id)
            if not self._responder.may_change(request, owner):
                self._responder.refuse(request, obstacle.id, owner)
                break
            definer = reservation.definer
            if definer is not None and not self._responder.may_act_for(definer, owner):
                self._responder.refuse(request, obstacle.id, owner, definer)
                break
            await self.cancel(obstacle.id, obstacle.queue or request.queue)
            reply.replaced = obstacle
        await self._reply(request, reply)

    async def _obstacle(self, request: Request, reservation: Reservation) -> JobInfo | None:
        event_id = f"evt_{new_id()}"
        lease_seconds = min(max(reservation.lease_seconds, 0.0), MAX_LEASE_SECONDS)
        data = JobReserved(
            job_type=reservation.job_type,
            queue=request.queue,
            unique_key=reservation.unique_key,
            states=reservation.states,
            period=reservation.period,
            reserved_until=format_timestamp(datetime.now(UTC) + timedelta(seconds=lease_seconds)),
            reserved_by=request.user,
        )
        record = self._broker.events.record
        return await self._view.verdict(event_id, lambda: record(request.body.job_id, data, event_id=event_id))

    async def _release(self, request: Request) -> None:
        """Free a place before the next reservation is decided; an unknown place, as soon as it is known."""
        job = await self._view.get(request.body.job_id)
        if job is None:
            self._responder.spawn(self._release_later(request))
        else:
            await self._release_known(request, job)
        request.delivery.ack()

    async def _release_later(self, request: Request) -> None:
        job = await self._view.settled(request.body.job_id, lambda found: found is not None)
        if job is not None:
            await self._release_known(request, job)

    async def _release_known(self, request: Request, job: JobInfo) -> None:
        owner = await self._view.owner(job.id)
        if self._responder.may_change(request, owner):
            self._broker.events.record(job.id, JobReleased(job_type=job.type, queue=request.queue or job.queue))
        else:
            self._responder.refuse(request, job.id, owner)

    # --- heartbeats ---

    async def _look(self, request: Request) -> None:
        request.delivery.ack()
        self._responder.spawn(self._replacement.look(request.queue))

    async def _beat(self, request: Request) -> None:
        await self._extend(request)
        request.delivery.ack()

    async def _extend(self, request: Request) -> None:
        """Extend an attempt. The reply says whether it still belongs to the requester: it is empty if not."""
        body = request.body
        if self._replacement.has_replaced(body.job_id, body.attempt):
            await self._reply(request, ControlReply())
            return
        job = await self._view.get(body.job_id)
        if job is not None and not body.worker_id:
            # A requester that does not know which worker runs someone else's job may not extend its lease.
            owner = await self._view.owner(job.id)
            if not self._responder.may_change(request, owner):
                self._responder.refuse(request, job.id, owner)
                return
        if job is not None and body.worker_id in {"", job.worker_id}:
            self._replacement.heard(job.id)
        await self._reply(request, ControlReply([JobInfo(body.job_id, attempt=body.attempt)]))
        if job is None or job.state != State.ACTIVE.value or body.worker_id not in {"", job.worker_id}:
            return
        lasts_ms = job.visibility_ms or DEFAULT_VISIBILITY_SECONDS * 1000
        until = format_timestamp(datetime.now(UTC) + timedelta(milliseconds=lasts_ms))
        worker_id = body.worker_id or job.worker_id or ""
        self._broker.events.record(
            job.id,
            JobHeartbeat(
                job_type=job.type, queue=job.queue, worker_id=worker_id, attempt=job.attempt, visible_until=until
            ),
        )

    # --- queries ---

    async def _tell(self, request: Request) -> None:
        request.delivery.ack()
        self._responder.spawn(self._answer(request))

    async def _answer(self, request: Request) -> None:
        if not request.delivery.properties.reply_to:
            return
        body = request.body
        if request.kind == control_message.LIST:
            owners = None if self._responder.is_trusted(request) else {None, request.user}
            limit = min(max(body.limit, 0), MAX_LISTED)
            jobs = await self._view.newest(request.queue or None, body.state, limit, owners)
        else:
            job = await self._view.settled(body.job_id, lambda found: found is not None)
            jobs = [] if job is None else [job]
        await self._reply(request, ControlReply(await self._certainty.mark(jobs)))

    async def _reply(self, request: Request, reply: ControlReply) -> None:
        """Reply. If the reply is too large, the results and checkpoints of its jobs are left out."""
        jobs = [msgspec.structs.replace(job, result=None, checkpoint=None, error=None) for job in reply.jobs]
        await self._responder.reply(request, reply, smaller=ControlReply(jobs, reply.replaced))
