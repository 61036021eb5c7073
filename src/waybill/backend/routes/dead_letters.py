"""Dead letters: list, show, retry and discard them (ojs-http-binding section 12).

They are what is in the dead letter queues. One request at a time looks there: what one holds, another would not see.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from waybill.backend.backend import Backend
from waybill.backend.errors import RequestRefused, not_found
from waybill.backend.job_form import Form, form_of
from waybill.backend.message import Request, Response, answer
from waybill.backend.router import OPERATE, READ, Route
from waybill.client import Inspector
from waybill.ojs.dead_letters import DeadJob, DeadLetters
from waybill.ojs.spec.states import State

LIMIT: Final = 50
MOST: Final = 1000


class DeadLetterRoutes:
    """Answers them."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._looking = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        return [
            Route("GET", "/ojs/v1/dead-letter", self._list, READ),
            Route("GET", "/ojs/v1/dead-letter/{id}", self._get, READ),
            Route("POST", "/ojs/v1/dead-letter/{id}/retry", self._retry, OPERATE),
            Route("DELETE", "/ojs/v1/dead-letter/{id}", self._discard, OPERATE),
        ]

    async def _list(self, request: Request) -> Response:
        limit = request.number("limit", LIMIT, 1, MOST)
        offset = request.number("offset", 0, 0, 10**6)
        named = request.query.get("queue")
        forms: list[Form] = []
        total = 0
        async with self._looking:
            for queue in [named] if named else await self._backend.queues():
                count = await self._count(queue)
                skipped = max(0, offset - total)
                total += count
                wanted = min(count, skipped + limit - len(forms))
                if wanted > skipped:
                    async with DeadLetters(self._backend.jobs, queue) as dead:
                        forms += await self._forms(queue, (await dead.peek(wanted))[skipped:])
        pagination = {"total": total, "limit": limit, "offset": offset, "has_more": offset + len(forms) < total}
        return answer({"jobs": forms, "items": forms, "pagination": pagination})

    async def _get(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        queue = await self._queue_of(job_id)
        async with self._looking, DeadLetters(self._backend.jobs, queue) as dead:
            found = [one for one in await dead.peek() if one.id == job_id]
        if not found:
            raise not_found("dead letter", job_id)
        form = (await self._forms(queue, found))[0]
        return answer({**form, "job": form})

    async def _retry(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        queue = await self._queue_of(job_id)
        folded = self._backend.folded([("job.enqueued", job_id)])
        async with self._looking, DeadLetters(self._backend.jobs, queue) as dead, folded:
            if not await dead.retry([job_id]):
                raise not_found("dead letter", job_id)
        found = await self._backend.detail(job_id)
        form: Form = {"id": job_id} if found is None else form_of(found, datetime.now(UTC))
        return answer({**form, "job": form})

    async def _discard(self, request: Request) -> Response:
        job_id = request.parameters["id"]
        queue = await self._queue_of(job_id)
        async with self._looking, DeadLetters(self._backend.jobs, queue) as dead:
            if not await dead.discard([job_id]):
                raise not_found("dead letter", job_id)
        return answer({"deleted": True, "id": job_id, "job_id": job_id})

    async def _count(self, queue: str) -> int:
        broker = self._backend.broker
        found = await Inspector(broker.connection).queue(broker.declarer.topology.dead_letter_queue(queue))
        return 0 if found is None else found.message_count

    async def _queue_of(self, job_id: str) -> str:
        """Return the queue of a job. Raises RequestRefused for one that is no dead letter."""
        found = await self._backend.detail(job_id)
        if found is None:
            raise not_found("dead letter", job_id)
        state = form_of(found, datetime.now(UTC))["state"]
        if state != State.DISCARDED.value:
            details: Form = {"job_id": job_id, "current_state": state}
            raise RequestRefused("not_found", f"Job {job_id} is no dead letter: it is {state}.", details=details)
        return found.info.queue

    async def _forms(self, queue: str, dead: list[DeadJob]) -> list[Form]:
        """Return dead letters as jobs: with what the events say, or as the message is where they say nothing."""
        now = datetime.now(UTC)
        known = {one.info.id: one for one in await self._backend.view.details([one.id for one in dead])}
        forms = []
        for one in dead:
            form: Form = {"id": one.id, "type": one.type, "queue": queue, **(one.envelope or {})}
            found = known.get(one.id)
            if found is not None:
                form |= form_of(found, now)
            form |= {"state": State.DISCARDED.value, "reason": one.reason, "died_at": one.died_at}
            forms.append({name: value for name, value in form.items() if value is not None})
        return forms
