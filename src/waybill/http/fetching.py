"""The worker's side of leases: long polls for jobs, heartbeats for held jobs, and the responses to both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from waybill.client import BasicProperties, copied_delivery
from waybill.http.answer import ANSWER_SECONDS
from waybill.http.control import HttpControl
from waybill.http.errors import NoAnswer, RequestRefused
from waybill.http.push import AGAIN
from waybill.http.settlement import Held, HttpSettlement
from waybill.ojs.spec.headers import ATTEMPT
from waybill.ojs.spec.nesting import shown
from waybill.ojs.spec.states import State
from waybill.ojs.worker.runner import Runner

WAIT_SECONDS: Final = 20.0
"""How long the server may keep a fetch that finds no job."""
BEAT_SECONDS: Final = 5.0
"""The time between heartbeats, and so the time until a worker hears that its job was cancelled."""
VISIBILITY_SECONDS: Final = 60.0
"""How long the server waits for a heartbeat before it gives a job to another worker."""
PAUSE_SECONDS: Final = 0.05
TELL_SECONDS: Final = 1.0
MAX_BATCH: Final = 100

_log = logging.getLogger("waybill.ojs.worker")


class Directed(Protocol):
    """Follows the directives of a server."""

    @property
    def lifecycle(self) -> str:
        """What heartbeats tell of it: running, quiet or terminate."""
        ...

    def quiet(self) -> None: ...
    def resume(self) -> None: ...
    def stop(self, reason: str = "shutdown") -> None: ...


class _Fetched(msgspec.Struct):
    jobs: list[msgspec.Raw] = msgspec.field(default_factory=list)


class _Job(msgspec.Struct):
    id: str
    queue: str = "default"
    attempt: int = 1


_fetched: Final = msgspec.json.Decoder(_Fetched)
_job: Final = msgspec.json.Decoder(_Job)


class Fetching:
    """Fetches jobs for one worker, and holds them."""

    def __init__(
        self,
        control: HttpControl,
        runner: Runner,
        settlement: HttpSettlement,
        worker_id: str,
        weights: Mapping[str, int],
        room: Callable[[], int],
        changed: asyncio.Event,
    ) -> None:
        """`room` says how many more jobs the worker may hold, `changed` is set when that may be another number."""
        self.is_connected = True
        self._control = control
        self._runner = runner
        self._settlement = settlement
        self._worker_id = worker_id
        self._weights = dict(weights)
        self._room = room
        self._changed = changed
        self._is_quiet_by_directive = False
        self._loop = asyncio.get_running_loop()

    # --- fetch ---

    async def fetch_for_ever(self) -> None:
        """Fetch whenever there is room."""
        failures = 0
        while True:
            self._changed.clear()
            count = min(self._room(), MAX_BATCH)
            if count <= 0:
                await self._changed.wait()
                continue
            try:
                await self._fetch(count)
                failures, self.is_connected = 0, True
            except (NoAnswer, RequestRefused, msgspec.DecodeError) as error:
                failures += 1
                self.is_connected = False
                _log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG, "cannot fetch jobs, trying again: %s", error
                )
                asked = error.retry_after if isinstance(error, RequestRefused) else 0.0
                await asyncio.sleep(max(AGAIN.delay_s(failures), asked))

    async def _fetch(self, count: int) -> None:
        body = {
            "queues": self._in_turn(),
            "count": count,
            "worker_id": self._worker_id,
            "wait_ms": int(WAIT_SECONDS * 1000),
            "visibility_timeout_ms": int(VISIBILITY_SECONDS * 1000),
        }
        request_timeout_seconds = WAIT_SECONDS + ANSWER_SECONDS
        answer = await self._control.answer_of(
            "POST", "/ojs/v1/workers/fetch", body, timeout_seconds=request_timeout_seconds
        )
        jobs = _fetched.decode(answer.body).jobs
        for raw in jobs:
            self._take(bytes(raw))
        # They are received when this continues. If a server does not wait, do not ask it again without a pause.
        await asyncio.sleep(0 if jobs else PAUSE_SECONDS)

    def _in_turn(self) -> list[str]:
        """Return the queues, those with a greater weight more often first: servers use this order.

        This is a weighted shuffle: the greater the weight, the nearer to 1 its random number.
        """
        if len(self._weights) == 1:
            return list(self._weights)
        return sorted(self._weights, key=lambda queue: -(random.random() ** (1 / self._weights[queue])))  # noqa: S311 - no secret

    def _take(self, body: bytes) -> None:
        try:
            job = _job.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.error("the server sent an invalid job: %s", error)
            return
        attempt = max(1, job.attempt)
        properties = BasicProperties(message_id=job.id, headers={ATTEMPT: attempt}).encode()
        delivery = copied_delivery(properties, body, consumer_tag=job.id, redelivered=False)
        before = self._settlement.held.get(job.id)
        if before is not None:
            _log.warning("job %s was delivered again, as attempt %d", shown(job.id), attempt)
            self._end(job.id, before)
        self._settlement.held[job.id] = Held(delivery, job.queue, attempt)
        # Not from within a task: a handler may start immediately, in its own task.
        self._loop.call_soon(self._runner.receive, job.queue, delivery)

    # --- heartbeats ---

    async def beat(self, directed: Directed) -> None:
        """Send a heartbeat, and do what its answer says. Raises NoAnswer, RequestRefused."""
        held = dict(self._settlement.held)
        body = {
            "worker_id": self._worker_id,
            "state": directed.lifecycle,
            "active_jobs": list(held),
            "active_job_ids": list(held),
            "queues": list(self._weights),
            "visibility_timeout_ms": int(VISIBILITY_SECONDS * 1000),
        }
        answer = await self._control.request("POST", "/ojs/v1/workers/heartbeat", body)
        extended = answer.get("jobs_extended")
        if isinstance(extended, list):
            for job_id in held.keys() - set(extended):
                if self._settlement.held.get(job_id) is held[job_id] and not held[job_id].is_settling:
                    await self._lost(job_id, held[job_id])
        self._follow(directed, str(answer.get("directive") or answer.get("state") or ""))

    async def tell(self, directed: Directed) -> None:
        """Tell the state of the worker now, unless the server does not answer soon: the next heartbeat has it, too."""
        with contextlib.suppress(NoAnswer, RequestRefused, TimeoutError):
            async with asyncio.timeout(TELL_SECONDS):
                await self.beat(directed)

    async def beat_for_ever(self, directed: Directed) -> None:
        """Send heartbeats now and then."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            try:
                await self.beat(directed)
            except (NoAnswer, RequestRefused) as error:
                _log.debug("a heartbeat did not arrive: %s", error)
            except Exception:  # noqa: BLE001 - the leases of all jobs depend on this
                _log.exception("sending a heartbeat failed")

    def _follow(self, directed: Directed, directive: str) -> None:
        if directive == "terminate":
            directed.stop("directive")
        elif directive == "quiet" and not self._is_quiet_by_directive:
            self._is_quiet_by_directive = True
            directed.quiet()
        elif directive == "running" and self._is_quiet_by_directive:
            self._is_quiet_by_directive = False
            directed.resume()

    async def _lost(self, job_id: str, held: Held) -> None:
        """Handle a job whose lease has ended: it was cancelled, or another worker gets it."""
        job = await self._control.info(job_id, None, ANSWER_SECONDS)
        if self._settlement.held.get(job_id) is not held or held.is_settling:
            return
        if job is not None and job.state == State.CANCELLED.value:
            self._runner.cancellations.jobs[job_id] = None
            self._runner.cancel(job_id)
        else:
            self._end(job_id, held)

    def _end(self, job_id: str, held: Held) -> None:
        """End an attempt that no longer counts."""
        for execution in list(self._runner.active):
            if execution.delivery is held.delivery and self._runner.cancellations.on_replace is not None:
                self._runner.cancellations.on_replace(execution.key)
        if self._settlement.held.get(job_id) is held:
            self._settlement.forget(held)
