"""Decides whether a copy of a claimed job may run: see `claims`."""

from __future__ import annotations

import msgspec

from waybill.ojs.coordinator.claims import Claim, key_of
from waybill.ojs.coordinator.responder import Answer, Request, Responder
from waybill.ojs.coordinator.stream_identity import StreamReplaced
from waybill.ojs.spec.control_message import ADMIT, Admission, AdmissionRequest
from waybill.ojs.spec.cron_events import ClaimAdmitted
from waybill.ojs.spec.envelope import MAX_ID_LENGTH
from waybill.ojs.spec.identifiers import is_uuid7, new_id


class Admissions:
    """Answers admission requests of workers."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def answers(self) -> dict[str, Answer]:
        """Return the handlers by kind of request."""
        return {ADMIT: self._answer}

    async def _answer(self, request: Request) -> None:
        try:
            asked = msgspec.json.decode(request.delivery.body, type=AdmissionRequest)
        except msgspec.DecodeError:
            self._responder.drop_invalid(request)
            return
        if not 0 < len(asked.job_id) <= MAX_ID_LENGTH or "\0" in asked.job_id or not is_uuid7(asked.copy):
            self._responder.drop_invalid(request)
            return
        # The stream takes a moment to decide. A worker without an answer asks again.
        request.delivery.ack()
        self._responder.spawn(self._decide(request, asked))

    async def _decide(self, request: Request, asked: AdmissionRequest) -> None:
        responder, key = self._responder, key_of(asked.job_id)
        found = await responder.view.row(key, Claim)
        if found is None or not found.copy:
            # The claim may still be on its way in the stream. Once this event is folded, the claim is known or has
            # ended.
            event_id = f"evt_{new_id()}"
            data = ClaimAdmitted(copy=asked.copy, worker_id=asked.worker_id)
            record = responder.broker.events.record
            await responder.view.folded(event_id, lambda: record(asked.job_id, data, event_id=event_id))
            try:
                # Refused once, a copy is gone for good.
                found = await responder.view.folded_row(key, Claim)
            except StreamReplaced:
                return
        await responder.reply(request, Admission(is_admitted=found is not None and found.copy == asked.copy))
