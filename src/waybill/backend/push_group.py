"""Groups enqueues that arrive at the same time: one flush, one wait for confirms, one wait for the view.

Requests that arrive in one turn of the loop, or while other groups are in progress, become one group. Each job gets its
own response.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

import msgspec

from waybill.backend.backend import Backend
from waybill.backend.errors import partial_failure
from waybill.backend.fair_line import FairLine
from waybill.backend.message import Request, Response
from waybill.backend.peer import address_of
from waybill.backend.push_flight import Failures, PushFlight
from waybill.backend.request_template import JobMessage, RequestTemplates
from waybill.backend.shortcut import Asker, FutureAsker, HeadLines, Take, is_usual
from waybill.backend.usual_bodies import PlainJob, PlainJobs, RequestedJob, RequestedJobs
from waybill.ojs.errors import InvalidJob, PushFailed
from waybill.ojs.spec.envelope import Envelope
from waybill.ojs.spec.nesting import MAX_CARRIED_NESTING, is_nested_deeper

MAX_GROUPS: Final = 2
"""The maximum number of groups in progress."""
LARGE: Final = 200
"""A group of this size starts while others are in progress. Smaller ones wait: a group costs as much as ten jobs."""
MAX_FLIGHT_BYTES: Final = 1024 * 1024
"""Larger groups are published piece by piece, as the broker reads them."""
MAX_GROUP_BYTES: Final = 4 * MAX_FLIGHT_BYTES
"""A group takes no more requests when its jobs have this size: each of their answers has them twice."""
PAUSE_SECONDS: Final = 0.001
"""How long a group waits for the next requests of clients that were just answered."""
PAUSES_SKIPPED: Final = 50
"""Groups that start without a pause, after a pause in which too few requests arrived."""
MAX_JOBS: Final = 500
"""A group takes no more requests when it has this many jobs: the loop serves nobody else while it is published."""
MAX_REQUESTS: Final = 150
"""The same for requests. A single job costs more than one of a batch."""
MAX_BATCH: Final = 1000
MAX_OPTIONS_NESTING: Final = MAX_CARRIED_NESTING // 2
_PATH: Final = "/ojs/v1/jobs/"

T = TypeVar("T")
S = TypeVar("S")
Jobs = Sequence[PlainJob] | Sequence[RequestedJob]
_TakeGroup = Callable[[bytes, Asker, HeadLines | None], bool]
"""Adds the jobs of a body to the next group; False if they have no common form, and nothing was done."""

_log = logging.getLogger("waybill.backend")
_plain_job = msgspec.json.Decoder(PlainJob)
_any_job = msgspec.json.Decoder(RequestedJob)
_plain_jobs = msgspec.json.Decoder(PlainJobs)
_any_jobs = msgspec.json.Decoder(RequestedJobs)


class _Entry(NamedTuple):
    """A request that waits for its jobs."""

    jobs: list[JobMessage]
    asker: Asker
    is_batch: bool
    lines: HeadLines | None
    """The head of its answer; None for one that the application finishes."""


class PushGroups:
    """The groups of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._templates = RequestTemplates(backend.jobs.topology.max_priority)
        self._gathering = FairLine[_Entry]()
        self._count = 0
        """The number of jobs in the next group."""
        self._is_due = False
        self._running: set[object] = set()
        self._pause: asyncio.TimerHandle | None = None
        """The timer of a pause."""
        self._expected = 0
        """The expected number of requests after a pause."""
        self._pauses_skipped = 0
        """How many groups start without a pause."""

    def push(self, request: Request) -> asyncio.Future[Response] | None:
        """Enqueue the job of a request, if it has the common form."""
        return self._begin(request, self._take)

    def push_many(self, request: Request) -> asyncio.Future[Response] | None:
        """Enqueue the jobs of a batch, if they have the common form."""
        return self._begin(request, self._take_many)

    def shorten(self, request: Request) -> Take | None:
        """Return the shortcut of `push` for requests with a head."""
        return self._shortcut(request, self._take)

    def shorten_many(self, request: Request) -> Take | None:
        """Return the shortcut of `push_many` for requests with a head."""
        return self._shortcut(request, self._take_many)

    def _begin(self, request: Request, take: _TakeGroup) -> asyncio.Future[Response] | None:
        if not is_usual(request) or self._backend.jobs.enqueue_middleware or request.is_too_heavy:
            return None
        asker = FutureAsker(address_of(request.peer))
        return asker.future if take(request.body, asker, None) else None

    def _shortcut(self, request: Request, take: _TakeGroup) -> Take | None:
        if not is_usual(request):
            return None
        lines = HeadLines(request, 201)

        def take_now(body: bytes, asker: Asker) -> bool:
            return not self._backend.jobs.enqueue_middleware and take(body, asker, lines)

        return take_now

    def _take(self, body: bytes, asker: Asker, lines: HeadLines | None) -> bool:
        job = _decode(body, _plain_job, _any_job)
        if job is None or is_nested_deeper(body, MAX_CARRIED_NESTING):
            return False
        message = self._message(job, self._backend.broker.events.timestamp())
        return message is not None and self._add(_Entry([message], asker, is_batch=False, lines=lines))

    def _take_many(self, body: bytes, asker: Asker, lines: HeadLines | None) -> bool:
        batch = _decode(body, _plain_jobs, _any_jobs)
        if batch is None:
            return False
        jobs: Jobs = batch.jobs
        # Arguments and metadata are checked for depth; batches that may be nested too deeply take the slow path.
        options = (bytes(job.options) for job in jobs if job.options)
        if not 0 < len(jobs) <= MAX_BATCH or any(is_nested_deeper(one, MAX_OPTIONS_NESTING) for one in options):
            return False
        time = self._backend.broker.events.timestamp()
        messages: list[JobMessage] = []
        for job in jobs:
            message = self._message(job, time)
            if message is None:
                return False
            messages.append(message)
        return self._add(_Entry(messages, asker, is_batch=True, lines=lines))

    def _message(self, job: PlainJob | RequestedJob, time: str) -> JobMessage | None:
        """Return the message of a job, None if it must take the slow path."""
        template = self._templates.find(job)
        if template is None or not self._backend.coordinates_queue(template.queue):
            return None
        try:
            return template.message(job, time)
        except InvalidJob:
            return None

    def _add(self, entry: _Entry) -> bool:
        self._gathering.add(entry.asker.address, entry)
        self._count += len(entry.jobs)
        if self._pause is not None and (len(self._gathering) >= self._expected or self._count >= LARGE):
            self._pause.cancel()
            self._pause, self._is_due = None, False
        if not self._is_due and self._may_run():
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        return True

    def _may_run(self) -> bool:
        return not self._running or (len(self._running) < MAX_GROUPS and self._count >= LARGE)

    def _flush(self) -> None:
        self._is_due = False
        entries: list[_Entry] = []
        jobs: list[JobMessage] = []
        size = 0
        while self._gathering and len(jobs) < MAX_JOBS and len(entries) < MAX_REQUESTS and size < MAX_GROUP_BYTES:
            entry = self._gathering.take()
            entries.append(entry)
            jobs += entry.jobs
            size += sum([len(one.body) for one in entry.jobs])
        self._count -= len(jobs)
        if not entries:
            return
        if size <= MAX_FLIGHT_BYTES:
            flight = PushFlight(self._backend, jobs, functools.partial(self._arrived, entries))
            if flight.start():
                self._running.add(flight)
                return
        task = asyncio.get_running_loop().create_task(self._run(entries))
        self._running.add(task)
        task.add_done_callback(lambda _: self._ended(task, len(entries), 0 if task.cancelled() else task.result()))

    def _arrived(self, entries: Sequence[_Entry], flight: PushFlight, failures: Failures) -> None:
        """Answer the requests of a flight."""
        before = len(self._gathering)
        # Their next requests arrive after this.
        asyncio.get_running_loop().call_soon(self._ended, flight, len(entries), before)
        self._tell_all(entries, failures)

    def _ended(self, group: object, answered: int, before: int) -> None:
        """Begin the next group; `before` is how many of its requests arrived before others were `answered`."""
        self._running.discard(group)
        if not self._gathering or self._is_due or not self._may_run():
            return
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
        try:
            publisher = await backend.jobs.publisher()
            jobs = [one.outgoing() for entry in entries for one in entry.jobs]
            outcomes = await publisher.enqueue(jobs, datetime.now(UTC))
            await backend.applied([one.id for one in outcomes if isinstance(one, Envelope)])
        except Exception as error:  # noqa: BLE001 - the clients must get an answer
            for entry in entries:
                entry.asker.failed(error)
            return 0
        before = len(self._gathering)
        self._tell_all(entries, {one.job_id: one for one in outcomes if isinstance(one, PushFailed)})
        return before

    def _tell_all(self, entries: Sequence[_Entry], failed: Failures) -> None:
        for template in {one.template for entry in entries for one in entry.jobs}:
            self._backend.limits.note_priority(template.queue, template.priority)
        for entry in entries:
            try:
                error = _error_of(entry, failed) if failed else None
                if error is None:
                    entry.asker.told(_answer(entry))
                else:
                    entry.asker.failed(error)
            except Exception:  # noqa: BLE001 - the others must be told
                _log.exception("a request to enqueue jobs could not be answered")


def _decode(body: bytes, plain: msgspec.json.Decoder[T], others: msgspec.json.Decoder[S]) -> T | S | None:
    """Return the content of a body, None if it has no common form."""
    try:
        return plain.decode(body)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    try:
        return others.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _error_of(entry: _Entry, failed: Failures) -> Exception | None:
    """Return the error to answer a request with, None if all of its jobs were enqueued."""
    found = {one.id: failed[one.id] for one in entry.jobs if one.id in failed}
    refused = [one for one in found.values() if isinstance(one, PushFailed)]
    if len(refused) < len(found):
        return next(one for one in found.values() if not isinstance(one, PushFailed))
    return partial_failure(refused, [one.id for one in entry.jobs if one.id not in found]) if refused else None


def _answer(entry: _Entry) -> Response:
    lines = entry.lines
    if entry.is_batch:
        forms = [one.template.form(one.body) for one in entry.jobs]
        body = b'{"jobs":[%b],"count":%d}' % (b",".join(forms), len(forms))
        return Response(201, body, lines=b"" if lines is None else lines.encode())
    job = entry.jobs[0]
    location = _PATH + job.id
    body = job.template.answer(job.body)
    if lines is None:
        return Response(201, body, [("Location", location)])
    return Response(201, body, lines=lines.encode(location))
