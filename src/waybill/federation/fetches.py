"""Fetches: asks the regions of a worker's queues, first one after the other, then all at the same time.

The first round takes available jobs. Only if there are none, all regions are polled together, for a short while at a
time. Jobs from a second region, or for a worker that has disconnected, are requeued: no jobs are kept here, and no poll
is cancelled, because its jobs would be stuck until their leases end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.message import Response, integer_of
from waybill.federation.connection import RegionFailed
from waybill.federation.homes import Homes
from waybill.federation.region import Region
from waybill.federation.regions import Regions
from waybill.federation.wanted import Form
from waybill.http.answer import Answer

FETCH: Final = "/ojs/v1/workers/fetch"
NACK: Final = "/ojs/v1/workers/nack"
ROUND_SECONDS: Final = 2.0
"""How long a poll of all regions lasts: a job for a disconnected worker may be held that long."""
CLOSE_SECONDS: Final = 2 * ROUND_SECONDS
MOST_WAIT_MS: Final = 60_000
MOST_JOBS: Final = 1000

_log = logging.getLogger("waybill.federation")


class _Job(msgspec.Struct):
    id: str


class _Fetched(msgspec.Struct):
    jobs: list[msgspec.Raw] = msgspec.field(default_factory=list)


Jobs = list[tuple[str, bytes]]
"""The ids and the encoded jobs."""


class Fetches:
    """The fetches of one federation."""

    def __init__(self, regions: Regions, homes: Homes) -> None:
        self._regions = regions
        self._homes = homes
        self.polling_count = 0
        """The number of waiting polls."""
        self._position = 0
        self._tasks: set[asyncio.Task[object]] = set()

    async def fetch(self, body: Form) -> Response:
        """Fetch for a worker. Raises RequestRefused if no region answers, or one refuses the request."""
        queues = body.get("queues")
        if queues is not None and not (isinstance(queues, list) and all(isinstance(one, str) for one in queues)):
            raise invalid("queues", "must be an array of strings")
        count = integer_of(body, "count", integer_of(body, "batch_size", 1, 1, MOST_JOBS), 1, MOST_JOBS)
        wait_ms = integer_of(body, "wait_ms", 0, 0, MOST_WAIT_MS)
        regions = self._serving(queues)
        worker_id = body.get("worker_id")
        visit = _Visit(self, body, queues, count, worker_id if isinstance(worker_id, str) else "")
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        try:
            await visit.one_by_one(regions)
            while not visit.jobs and visit.answered and (left := deadline - asyncio.get_running_loop().time()) > 0:
                await visit.all_together(self._serving(queues), min(left, ROUND_SECONDS))
        except asyncio.CancelledError:
            visit.give_up()
            raise
        if not visit.answered:
            raise visit.failure()
        return visit.response()

    def spawn(self, task: asyncio.Task[object]) -> None:
        """Run a task, and keep a reference until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait for polls and requeues in progress: both are short, unless a region hangs."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSE_SECONDS
        while self._tasks and (left := deadline - loop.time()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Count a poll while it waits."""
        self.polling_count += 1
        try:
            yield
        finally:
            self.polling_count -= 1

    def note(self, job_id: str, region: str, worker_id: str) -> None:
        """Record a job that a worker gets."""
        self._homes.note(job_id, region, worker_id)

    def _serving(self, queues: list[str] | None) -> list[Region]:
        """Return the regions to ask, a different one first each time. Raises RequestRefused if there are none."""
        serving = [one for one in self._regions if queues is None or any(one.serves(queue) for queue in queues)]
        found = [one for one in serving if one.is_available]
        if not found:
            reasons = {one.id: one.obstacle for one in serving}
            text = "No region that serves these queues can be reached."
            raise RequestRefused("backend_unavailable", text, details={"regions": reasons})
        self._position += 1
        position = self._position % len(found)
        return found[position:] + found[:position]


class _Visit:
    """One fetch of one worker."""

    def __init__(self, fetches: Fetches, body: Form, queues: list[str] | None, count: int, worker_id: str) -> None:
        self.jobs: list[bytes] = []
        self.answered = False
        """Whether any region has answered."""
        self._fetches = fetches
        self._body = body
        self._queues = queues
        self._count = count
        self._worker_id = worker_id
        self._taken: list[tuple[Region, Jobs]] = []
        self._refusal: Answer | None = None
        self._reasons: dict[str, object] = {}
        self._is_over = False

    async def one_by_one(self, regions: list[Region]) -> None:
        """Take available jobs."""
        for region in regions:
            left = self._count - len(self.jobs)
            if left <= 0:
                return
            await self._wait([self._poll(region, left, 0.0)])

    async def all_together(self, regions: list[Region], seconds: float) -> None:
        """Wait for the first region with jobs."""
        await self._wait([self._poll(region, self._count, seconds) for region in regions])

    def give_up(self) -> None:
        """Requeue all jobs: the worker has disconnected."""
        self._is_over = True
        for region, jobs in self._taken:
            self._put_back(region, jobs)
        self._taken = []

    def response(self) -> Response:
        """Return the answer to the worker."""
        self._is_over = True
        first = b',"job":%b' % self.jobs[0] if self.jobs else b""
        body = b'{"jobs":[%b]%b}' % (b",".join(self.jobs), first)
        return Response(200, body, unheard=self.give_up)

    def failure(self) -> RequestRefused:
        """Return the error for a fetch without any answer."""
        self._is_over = True
        if self._refusal is not None:
            return _refused(self._refusal)
        text = "No region has answered."
        return RequestRefused("backend_unavailable", text, details={"regions": self._reasons})

    async def _wait(self, polls: Iterable[asyncio.Task[object]]) -> None:
        """Wait until all have answered, or one with jobs. No request is cancelled, as its jobs would be stuck."""
        waiting: set[asyncio.Task[object]] = set(polls)
        before = len(self.jobs)
        while waiting and len(self.jobs) == before:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

    def _poll(self, region: Region, count: int, seconds: float) -> asyncio.Task[object]:
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(self._ask(region, count, seconds))
        self._fetches.spawn(task)
        return task

    async def _ask(self, region: Region, count: int, seconds: float) -> None:
        body = {**self._body, "count": count, "wait_ms": int(seconds * 1000)}
        body.pop("batch_size", None)
        if self._queues is not None:
            body["queues"] = [queue for queue in self._queues if region.serves(queue)]
        try:
            with self._fetches.polling():
                found = await region.request("POST", FETCH, msgspec.json.encode(body), wait_seconds=seconds)
            if found.status != 200:
                self._refusal = found
                return
            self._arrived(region, _read(found.body))
        except RegionFailed as error:
            self._reasons[region.id] = error.reason

    def _arrived(self, region: Region, jobs: Jobs) -> None:
        """Keep as many jobs as wanted, and requeue the others."""
        self.answered = True
        room = 0 if self._is_over else self._count - len(self.jobs)
        kept, others = jobs[:room], jobs[room:]
        for job_id, raw in kept:
            self._fetches.note(job_id, region.id, self._worker_id)
            self.jobs.append(raw)
        if kept:
            self._taken.append((region, kept))
        self._put_back(region, others)

    def _put_back(self, region: Region, jobs: Jobs) -> None:
        if jobs:
            self._fetches.spawn(asyncio.get_running_loop().create_task(self._return(region, jobs)))

    async def _return(self, region: Region, jobs: Jobs) -> object:
        """Requeue jobs one after another: a region may have sent any number of them."""
        for index, (job_id, _) in enumerate(jobs):
            body = {"job_id": job_id, "worker_id": self._worker_id, "requeue": True}
            body |= {"error": {"code": "handler_error", "message": "the worker has gone"}}
            try:
                await region.request("POST", NACK, msgspec.json.encode(body))
            except RegionFailed as error:
                text = "job %s and %d others wait in %s until their leases end: %s"
                _log.warning(text, job_id[:80], len(jobs) - index - 1, region.id, error)
                break
        return None


def _read(body: bytes) -> Jobs:
    """Read the jobs in an answer. Raises RegionFailed."""
    try:
        found = msgspec.json.decode(body, type=_Fetched).jobs
        return [(msgspec.json.decode(raw, type=_Job).id, bytes(raw)) for raw in found]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RegionFailed("it returns invalid jobs", may_have_arrived=True) from None


def _refused(answer: Answer) -> RequestRefused:
    """Return the error in a region's answer."""
    try:
        form = msgspec.json.decode(answer.body, type=Form).get("error")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        form = None
    message = form.get("message") if isinstance(form, dict) else None
    text = message if isinstance(message, str) else f"The region answers {answer.status}."
    return RequestRefused("rate_limited" if answer.status == 429 else "invalid_request", text[:500])
