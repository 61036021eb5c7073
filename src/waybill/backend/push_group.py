"""Groups enqueues that arrive at the same time: one flush, one wait for confirms, one wait for the view.

Requests that arrive in one turn of the loop, or while other groups are in progress, become one group. Each job gets its
own response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec

from waybill.backend.backend import FOLD_SECONDS, Backend
from waybill.backend.errors import partly
from waybill.backend.message import ACCEPTED, MEDIA_TYPE, Request, Response
from waybill.backend.request_template import RequestedJob, RequestedJobs, RequestTemplate, RequestTemplates
from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.push.outgoing import Outgoing
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper

MAX_GROUPS: Final = 2
"""The maximum number of groups in progress."""
LARGE: Final = 200
"""A group of this size starts while others are in progress. Smaller ones wait: a group costs as much as ten jobs."""
PAUSE_SECONDS: Final = 0.001
"""How long a group waits for the next requests of clients that were just answered."""
PAUSES_SKIPPED: Final = 50
"""How many groups start without a pause after a pause that brought too few requests."""
MAX_JOBS: Final = 5000
MAX_BATCH: Final = 1000
MAX_OPTIONS_NESTING: Final = MAX_CARRIED_NESTING // 2

_log = logging.getLogger("waybill.backend")
_decode_job = msgspec.json.Decoder(RequestedJob).decode
_decode_jobs = msgspec.json.Decoder(RequestedJobs).decode


class _Entry(NamedTuple):
    """A request that waits for its jobs."""

    jobs: list[Outgoing]
    templates: list[RequestTemplate]
    answer: asyncio.Future[Response]
    is_batch: bool


class PushGroups:
    """The groups of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._templates = RequestTemplates()
        self._gathering: deque[_Entry] = deque()
        self._count = 0
        """The number of jobs in the next group."""
        self._is_due = False
        self._running: set[asyncio.Task[int]] = set()
        self._pause: asyncio.TimerHandle | None = None
        """The timer of a pause."""
        self._expected = 0
        """The expected number of requests after a pause."""
        self._pauses_skipped = 0
        """How many groups start without a pause."""

    def push(self, request: Request) -> asyncio.Future[Response] | None:
        """Enqueue the job of a request, if it has the common form."""
        if not self._is_usual(request):
            return None
        try:
            job = _decode_job(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return None if is_nested_deeper(request.body, MAX_CARRIED_NESTING) else self._add([job], is_batch=False)

    def push_many(self, request: Request) -> asyncio.Future[Response] | None:
        """Enqueue the jobs of a batch, if they have the common form."""
        if not self._is_usual(request):
            return None
        try:
            jobs = _decode_jobs(request.body).jobs
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # Arguments and metadata are checked for depth; batches that may be nested too deeply take the slow path.
        options = (bytes(job.options) for job in jobs if job.options)
        if not 0 < len(jobs) <= MAX_BATCH or any(is_nested_deeper(one, MAX_OPTIONS_NESTING) for one in options):
            return None
        return self._add(jobs, is_batch=True)

    def _is_usual(self, request: Request) -> bool:
        headers, jobs = request.headers, self._backend.jobs
        return (
            headers.get("content-type", MEDIA_TYPE) in ACCEPTED
            and "idempotency-key" not in headers
            and not jobs.enqueue_middleware
            and not request.is_too_heavy
        )

    def _add(self, jobs: list[RequestedJob], *, is_batch: bool) -> asyncio.Future[Response] | None:
        backend = self._backend
        time = backend.broker.events.timestamp()
        made: list[Outgoing] = []
        templates: list[RequestTemplate] = []
        for job in jobs:
            template = self._templates.find(job)
            if template is None or not backend.knows_queue(template.queue):
                return None
            try:
                made.append(template.outgoing(job, time))
            except InvalidJob:
                return None
            templates.append(template)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Response] = loop.create_future()
        self._gathering.append(_Entry(made, templates, answer, is_batch))
        self._count += len(made)
        if self._pause is not None and (len(self._gathering) >= self._expected or self._count >= LARGE):
            self._pause.cancel()
            self._pause, self._is_due = None, False
        if not self._is_due and self._may_run():
            self._is_due = True
            loop.call_soon(self._flush)
        return answer

    def _may_run(self) -> bool:
        return not self._running or (len(self._running) < MAX_GROUPS and self._count >= LARGE)

    def _flush(self) -> None:
        self._is_due = False
        entries: list[_Entry] = []
        count = 0
        while self._gathering and count < MAX_JOBS:
            entries.append(self._gathering.popleft())
            count += len(entries[-1].jobs)
        self._count -= count
        if entries:
            task = asyncio.get_running_loop().create_task(self._run(entries))
            self._running.add(task)
            task.add_done_callback(partial(self._ended, len(entries)))

    def _ended(self, answered: int, task: asyncio.Task[int]) -> None:
        self._running.discard(task)
        if not self._gathering or self._is_due or not self._may_run():
            return
        before = 0 if task.cancelled() else task.result()
        self._expected = before + answered
        if self._pauses_skipped or self._count >= LARGE or len(self._gathering) >= self._expected:
            self._pauses_skipped = max(0, self._pauses_skipped - 1)
            self._flush()
            return
        # Clients that were just answered send their next jobs now: one large group costs less than two small ones.
        self._is_due = True
        loop = asyncio.get_running_loop()
        self._pause = loop.call_later(PAUSE_SECONDS, self._paused, before + (answered + 1) // 2)

    def _paused(self, enough: int) -> None:
        self._pause = None
        if len(self._gathering) < enough:
            self._pauses_skipped = PAUSES_SKIPPED
        self._flush()

    async def _run(self, entries: list[_Entry]) -> int:
        """Enqueue the jobs of some requests, and answer them; returns how many requests arrived meanwhile."""
        backend = self._backend
        jobs = [one for entry in entries for one in entry.jobs]
        try:
            publisher = await backend.jobs.publisher()
            outcomes = await publisher.enqueue(jobs, datetime.now(UTC))
            known = [one.id for one in outcomes if isinstance(one, Envelope)]
            if known and not await backend.view.knows(known, FOLD_SECONDS):
                _log.warning(
                    "the job view is behind: it lacks some of %d new jobs after %g s", len(known), FOLD_SECONDS
                )
        except BaseException as error:
            for entry in entries:
                if not entry.answer.done():
                    entry.answer.set_exception(error) if isinstance(error, Exception) else entry.answer.cancel()
            if not isinstance(error, Exception):
                raise
            return 0
        before = len(self._gathering)
        failed = {one.job_id: one for one in outcomes if isinstance(one, PushFailed)}
        for entry in entries:
            if not entry.answer.done():
                self._tell(entry, failed)
        return before

    def _tell(self, entry: _Entry, failed: dict[str, PushFailed]) -> None:
        failures = [failed[one.envelope.id] for one in entry.jobs if one.envelope.id in failed] if failed else []
        pushed = [
            (one, template)
            for one, template in zip(entry.jobs, entry.templates, strict=True)
            if not failures or one.envelope.id not in failed
        ]
        for template in set(entry.templates):
            self._backend.limits.note_priority(template.queue, template.prototype.priority)
        if failures:
            entry.answer.set_exception(partly(failures, [one.envelope.id for one, _ in pushed]))
            return
        forms = [template.form(one) for one, template in pushed]
        if entry.is_batch:
            body = b'{"jobs":[%b],"count":%d}' % (b",".join(forms), len(forms))
            entry.answer.set_result(Response(201, body))
            return
        form = forms[0]
        headers = [("Location", f"/ojs/v1/jobs/{entry.jobs[0].envelope.id}")]
        # Clients of the specification read `job`, others the flat fields.
        entry.answer.set_result(Response(201, b'%b,"job":%b}' % (form[:-1], form), headers))
