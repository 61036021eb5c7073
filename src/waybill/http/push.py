"""Pushes over HTTP: with ids of our own, so that a push that got no answer can be sent again and arrives once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from waybill.client import ReconnectPolicy
from waybill.http.answer import ANSWER_SECONDS
from waybill.http.errors import TRY_AGAIN, NoAnswer, json_of, push_error, refusal_of
from waybill.http.exchange import Exchange
from waybill.http.job_form import job_in, request_of, taken
from waybill.ojs.errors import DuplicateJob, InvalidJob, PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.envelope_size import check_pushed

BATCH: Final = 500
BATCH_BYTES: Final = 8 * 1024 * 1024
AT_A_TIME: Final = 16
"""How many jobs that are pushed one by one are on their way at a time."""
AGAIN: Final = ReconnectPolicy(first_delay_s=0.1, max_delay_s=5.0)
REPEATED: Final = "X-Waybill-Repeated"
"""Whether a push has perhaps arrived before, as it got no answer; if it says no, its ids are new."""

_log: Final = logging.getLogger("waybill.http")
_TAKEN: Final = frozenset({200, 201, 202})
_JOBS: Final = "/ojs/v1/jobs"
_BATCH: Final = "/ojs/v1/jobs/batch"


class HttpPush:
    """One push of some jobs, which is retried after lost connections until its timeout."""

    def __init__(self, exchange: Exchange, timeout_seconds: float, again: ReconnectPolicy | None) -> None:
        """`again` says how long to wait before each further attempt."""
        self._exchange = exchange
        self._deadline = time.monotonic() + timeout_seconds
        self._again = again or AGAIN

    async def run(self, jobs: list[Outgoing]) -> list[Envelope | PushFailed]:
        """Return each job, or why it was not enqueued. Raises InvalidJob for a single job."""
        if len(jobs) == 1:
            return [await self._one(jobs[0], _encoded(jobs[0]))]
        outcomes: dict[str, Envelope | PushFailed] = {}
        limit = asyncio.Semaphore(AT_A_TIME)

        async def push(one: Outgoing, body: bytes, *, may_be_there: bool) -> None:
            async with limit:
                try:
                    outcomes[one.envelope.id] = await self._one(one, body, may_be_there=may_be_there)
                except InvalidJob as error:
                    outcomes[one.envelope.id] = PushFailed(one.envelope.id, error.code, str(error))

        encoded = [(one, _encoded(one)) for one in jobs]
        alone = [pair for pair in encoded if pair[0].idempotency_key is not None or pair[0].envelope.unique is not None]
        together = [pair for pair in encoded if pair not in alone] if alone else encoded
        await asyncio.gather(*(push(one, body, may_be_there=False) for one, body in alone))
        for chunk in _chunks(together):
            may_be_there = await self._many(chunk, outcomes)
            if may_be_there is not None:
                await asyncio.gather(*(push(one, body, may_be_there=may_be_there) for one, body in chunk))
        return [outcomes[one.envelope.id] for one in jobs]

    async def _one(self, one: Outgoing, body: bytes, *, may_be_there: bool = False) -> Envelope | PushFailed:
        """Push a single job; `may_be_there`: an earlier try may have arrived."""
        envelope = one.envelope
        may_be_there = may_be_there or one.may_be_there
        headers = {} if one.idempotency_key is None else {"Idempotency-Key": one.idempotency_key}
        attempt = 0
        while True:
            attempt += 1
            retry_after = None
            if may_be_there or one.has_new_id:
                headers[REPEATED] = "true" if may_be_there else "false"
            try:
                answer = await self._exchange.send("POST", _JOBS, body, headers=headers, timeout_seconds=self._left())
                if answer.status in _TAKEN:
                    return taken(envelope, job_in(json_of(answer)))
                refusal = refusal_of(answer)
                error = push_error(refusal, envelope.id)
                if isinstance(error, DuplicateJob) and error.existing_id == envelope.id and may_be_there:
                    return envelope
                if not refusal.is_retryable or refusal.code == "queue_full":
                    if isinstance(error, PushFailed):
                        return error
                    raise error
                reason, retry_after = refusal.message, answer.retry_after
            except NoAnswer as error:
                reason = str(error)
                if attempt == 1:
                    _log.warning("cannot push, trying again: %s", reason)
            may_be_there = True
            if not await self._pause(attempt, retry_after):
                return PushFailed(envelope.id, "BACKEND_UNAVAILABLE", reason)

    async def _many(
        self, chunk: Sequence[tuple[Outgoing, bytes]], outcomes: dict[str, Envelope | PushFailed]
    ) -> bool | None:
        """Push a batch; None if all is done. Otherwise it has to go job by job: True if some may be there."""
        body = b'{"jobs":[%b]}' % b",".join(body for _, body in chunk)
        headers = {REPEATED: "false"} if all(one.has_new_id for one, _ in chunk) else {}
        attempt = 0
        try:
            while True:
                answer = await self._exchange.send("POST", _BATCH, body, headers=headers, timeout_seconds=self._left())
                if answer.status in _TAKEN:
                    break
                refusal = refusal_of(answer)
                if refusal.code != "rate_limited":
                    return answer.status in TRY_AGAIN
                attempt += 1
                if not await self._pause(attempt, answer.retry_after):
                    # One by one, they would be even more requests.
                    ids = [one.envelope.id for one, _ in chunk]
                    outcomes.update({job_id: PushFailed(job_id, "RATE_LIMITED", refusal.message) for job_id in ids})
                    return None
            found = json_of(answer).get("jobs")
            jobs = {job["id"]: job for job in map(job_in, found if isinstance(found, list) else [])}
        except NoAnswer:
            return True
        if not all(one.envelope.id in jobs for one, _ in chunk):
            return True
        for one, _ in chunk:
            outcomes[one.envelope.id] = taken(one.envelope, jobs[one.envelope.id])
        return None

    async def _pause(self, attempt: int, retry_after: float | None) -> bool:
        """Wait before the next attempt; False if there is no time for one."""
        delay = self._again.delay_s(attempt) if retry_after is None else retry_after
        if time.monotonic() + delay >= self._deadline:
            return False
        await asyncio.sleep(delay)
        return True

    def _left(self) -> float:
        return min(ANSWER_SECONDS, max(0.1, self._deadline - time.monotonic()))


def _encoded(one: Outgoing) -> bytes:
    body = msgspec.json.encode(request_of(one.envelope))
    check_pushed(body)
    return body


def _chunks(jobs: Sequence[tuple[Outgoing, bytes]]) -> list[list[tuple[Outgoing, bytes]]]:
    """Divide jobs into batches of a size that servers take."""
    chunks: list[list[tuple[Outgoing, bytes]]] = []
    size = 0
    for one, body in jobs:
        if not chunks or len(chunks[-1]) >= BATCH or size + len(body) > BATCH_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append((one, body))
        size += len(body)
    return chunks
