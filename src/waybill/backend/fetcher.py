"""Takes jobs from queues for workers, except those that must not run: cancelled, expired or already done."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from waybill.backend.job_size import size_of
from waybill.backend.large_answers import LARGE_BYTES
from waybill.backend.leases import Lease, Leases
from waybill.backend.limits import RECHECK_SECONDS, Limits
from waybill.backend.scheduling.scheduler import Visit
from waybill.backend.source import BYTES_AT_A_TIME, Source
from waybill.client import Channel, ClientError, Delivery, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.control.pauses import PausedQueues
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.markers import catch_up
from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.envelope import Envelope, early_seconds, is_expired
from waybill.ojs.spec.headers import attempt_number, is_repeated
from waybill.ojs.spec.identifiers import DERIVED
from waybill.ojs.spec.states import State
from waybill.ojs.worker.admission import Admissions
from waybill.ojs.worker.cancellations import Cancellations
from waybill.ojs.worker.delivered_job import read_delivered
from waybill.ojs.worker.execution import Execution, lost_failure
from waybill.ojs.worker.settlement import Settlement

Fits = Callable[[Execution], bool]
"""Whether a worker can run a job."""
ADMISSION_SECONDS: Final = 1.0
"""How long a fetch waits for a coordinator's answer about a job that may have been pushed twice."""
QUEUES_PER_CONNECTION: Final = 1000
"""Each queue has a channel, and a connection at most 2,047 of them."""
_WAITING: Final = frozenset({State.AVAILABLE.value, State.SCHEDULED.value})
_MAY_START: Final = _WAITING | {State.DISCARDED.value}

_log = logging.getLogger("waybill.backend")


class Fetcher:
    """Fetches for all workers of one backend."""

    def __init__(
        self,
        broker: BrokerConnection,
        view: JobView,
        settlement: Settlement,
        leases: Leases,
        backend_id: str,
        limits: Limits,
    ) -> None:
        """Consumes nothing before the first fetch."""
        self._limits = limits
        self._broker = broker
        self._view = view
        self._settlement = settlement
        self._leases = leases
        self._sources: dict[str, Source] = {}
        self._queues: list[str] = []
        self._opening = asyncio.Lock()
        self._large = asyncio.Lock()
        """Held while large jobs are taken: all fetches at once would take more than may be leased."""
        self._arriving = 0
        """The memory of jobs that are taken and not leased yet, about."""
        self._inspector = Inspector(broker.connection)
        self._connections = [broker.connection]
        """Those with the channels of queues."""
        self._paused = PausedQueues(broker, self._queues, self._pauses_changed)
        self._cancellations = Cancellations(broker, backend_id, leases.cancel)
        self._cancellations.on_pause = self._pause_noticed
        self.pause_count = 0
        """Counts pauses and resumptions of queues by anyone."""
        self._admissions = Admissions(broker, backend_id, self._admitted, self._refused, settlement.unique)
        self._asked: dict[Delivery, asyncio.Future[bool]] = {}
        self._is_closing = False
        self._waiting: dict[asyncio.Future[None], str] = {}
        """The fetches that wait, with their workers."""
        self.is_quiet: Callable[[str], bool] = lambda _worker_id: False
        """Whether a worker is to get no jobs."""

    async def start(self) -> None:
        """Follow cancellations of jobs and pauses of queues."""
        await self._cancellations.start()
        self._broker.connection.on_reconnect(self._paused.look_soon)

    async def close(self) -> None:
        """End all waiting fetches without jobs."""
        self._is_closing = True
        self._wake(set(self._waiting.values()))
        self._limits.close()
        for queue, delivery in self._admissions.release():
            self._settlement.hand_back(delivery, queue)
        await asyncio.gather(*(source.close() for source in self._sources.values()))

    def quieted(self) -> None:
        """End the waiting fetches of workers that are quiet now."""
        self._wake({worker_id for worker_id in set(self._waiting.values()) if self.is_quiet(worker_id)})

    def _wake(self, workers: set[str]) -> None:
        for waiter, worker_id in self._waiting.items():
            if worker_id in workers and not waiter.done():
                waiter.set_result(None)

    async def fetch(
        self,
        visit: Visit,
        worker_id: str,
        visibility_seconds: float | None,
        wait_seconds: float,
        fits: Fits | None = None,
    ) -> list[Lease]:
        """Return the jobs that a visit finds in its queues; waits for the first one if necessary.

        `fits` selects jobs; the others are held for the next fetch.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_seconds
        while not self._is_closing:
            sources = {
                queue: source
                for queue in visit.queues
                if (source := await self._source(queue, creates=wait_seconds > 0)) is not None
            }
            leases: list[Lease] = []
            plan = await visit.begin()
            try:
                for queue, most in plan.steps:
                    if queue in sources:
                        count = min(plan.most, len(leases) + most)
                        await self._lease(sources[queue], count, worker_id, visibility_seconds, leases, fits)
                    if len(leases) >= plan.most or _are_large(leases):
                        break
            except asyncio.CancelledError:
                self.give_back(leases)
                raise
            finally:
                visit.end(plan, leases)
            if leases or loop.time() >= ends_at:
                return leases
            # A pool at its limit can take jobs only after one of its jobs has ended.
            awaited = [*sources.values()] if plan.most and not self._leases.is_full() else []
            await self._wait(awaited, ends_at, worker_id)
            if self.is_quiet(worker_id):
                for source in awaited:
                    # It was perhaps this fetch that was told of a job.
                    source.tell_next()
                break
        return []

    async def _lease(
        self,
        source: Source,
        count: int,
        worker_id: str,
        visibility_seconds: float | None,
        leases: list[Lease],
        fits: Fits | None,
    ) -> None:
        """Add leases of jobs of one queue, up to `count` in total."""
        if source.is_paused:
            return
        if self._leases.is_full():
            self._leases.tell_full()
            return
        is_mixed = source.queue in self._limits.mixed
        if is_mixed:
            await self._prefetch(source)
        held = await self._limits.held_jobs(source.queue, count - len(leases), self._may_start, fits)
        for execution in held:
            self._begin(execution, worker_id, visibility_seconds, leases)
        if is_mixed:
            return
        while deliveries := await self._take(source, count, leases):
            size = sum(size_of(one.body) for one in deliveries)
            self._arriving += size
            try:
                await self._begin_all(source, deliveries, worker_id, visibility_seconds, leases, fits)
            finally:
                self._arriving -= size
        if self._leases.is_full():
            # Nobody waits for further jobs: those that have come go back.
            self._wake(set(self._waiting.values()))

    async def _take(self, source: Source, count: int, leases: list[Lease]) -> list[Delivery]:
        """Take jobs of a queue if there is room for them."""
        if not source.is_large:
            return await self._take_now(source, count, leases)
        async with self._large:
            return await self._take_now(source, count, leases)

    async def _take_now(self, source: Source, count: int, leases: list[Lease]) -> list[Delivery]:
        is_full = self._limits.is_full(source.queue) or self._leases.is_full(self._arriving)
        if len(leases) >= count or is_full or _are_large(leases):
            return []
        return await source.take(count - len(leases))

    async def _begin_all(
        self,
        source: Source,
        deliveries: list[Delivery],
        worker_id: str,
        visibility_seconds: float | None,
        leases: list[Lease],
        fits: Fits | None,
    ) -> None:
        """Lease those jobs that may run and fit, as long as there is room for their arguments."""
        with _returning(source, deliveries) as rest:
            while rest and not self._leases.is_full():
                delivery = rest[0]
                try:
                    execution = await self._admit(source.queue, delivery)
                    if execution is not None and fits is not None and not fits(execution):
                        self._limits.hold(execution)
                        execution = None
                    if execution is not None and self._limits.apply_to(execution):
                        execution = execution if await self._limits.admits(execution) else None
                except Exception as error:  # noqa: BLE001 - an error of one job must not affect the others
                    self._settlement.abandon(delivery, source.queue, error)
                    execution = None
                rest.popleft()
                if execution is not None:
                    self._limits.note_priority(source.queue, execution.envelope.priority)
                    self._begin(execution, worker_id, visibility_seconds, leases)

    def _begin(
        self, execution: Execution, worker_id: str, visibility_seconds: float | None, leases: list[Lease]
    ) -> None:
        """Add the lease of an attempt that was admitted, unless it is out of date."""
        if self._is_out_of_date(execution):
            self._limits.ended(execution)
        else:
            leases.append(self._leases.begin(execution, worker_id, visibility_seconds))

    def _is_out_of_date(self, execution: Execution) -> bool:
        """Whether a delivery was lost with its connection, or another of its attempt is leased: ask after each wait."""
        return not execution.delivery.is_current or self._leases.holds(execution, execution.delivery)

    async def oldest(self, queue: str, count: int) -> list[Execution]:
        """Take up to `count` of the oldest jobs of a queue that may start, to settle them."""
        source = await self._source(queue, creates=False)
        if source is None:
            return []
        found: list[Execution] = []
        try:
            # The first messages may be of jobs that have ended.
            while deliveries := await source.take(count - len(found)):
                with _returning(source, deliveries) as rest:
                    while rest:
                        execution = await self._admit(queue, rest[0])
                        rest.popleft()
                        if execution is not None:
                            found.append(execution)
        except BaseException:
            source.put_back(one.delivery for one in found)
            raise
        return found

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Requeue jobs whose worker disconnected before it got them; no attempt is used."""
        for lease in leases:
            execution = lease.execution
            if self._leases.get(execution.envelope.id) is lease:
                self._leases.end(execution.envelope.id)
                self._settlement.postponed(execution, 0.0)

    async def _prefetch(self, source: Source) -> None:
        """Take jobs in advance, to choose those of the highest priority."""
        while (room := self._limits.room(source.queue)) > 0 and (deliveries := await source.take(room)):
            with _returning(source, deliveries) as rest:
                while rest:
                    delivery = rest[0]
                    try:
                        execution = await self._admit(source.queue, delivery)
                        if execution is not None:
                            self._limits.hold(execution)
                    except Exception as error:  # noqa: BLE001 - see `_begin_all`
                        self._settlement.abandon(delivery, source.queue, error)
                    rest.popleft()

    async def _wait(self, sources: Sequence[Source], ends_at: float, worker_id: str) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = worker_id
        try:
            for source in sources:
                source.wait(waiter)
            longest = RECHECK_SECONDS if self._limits.holds_any() or not sources else float("inf")
            await asyncio.wait([waiter], timeout=min(longest, max(0.0, ends_at - loop.time())))
        finally:
            del self._waiting[waiter]
            for source in sources:
                source.leave(waiter)

    # --- choosing jobs ---

    async def _admit(self, queue: str, delivery: Delivery) -> Execution | None:
        """Return the attempt of a delivery; None if it must not run, in which case it is settled."""
        if len(delivery.body) > LARGE_BYTES:
            # Reading it takes long, and so does publishing the dead letter of one that is refused.
            await asyncio.sleep(0)
        try:
            envelope = read_delivered(delivery)
            attempt = attempt_number(delivery.encoded_properties, envelope)
            is_expired(envelope, datetime.now(UTC))
        except InvalidJob as error:
            self._settlement.unreadable(delivery, queue, error)
            return None
        may_be_over = envelope.unique is not None or envelope.id[15:18] == DERIVED
        if may_be_over and not await self._is_admitted(queue, delivery, envelope):
            return None
        execution = Execution(delivery, queue, envelope, attempt)
        if self._is_out_of_date(execution):
            return None
        if delivery.redelivered:
            if await self._was_started(execution):
                return None
        elif is_repeated(delivery.encoded_properties) and await self._is_second_copy(execution):
            return None
        return execution if self._may_start(execution) else None

    def _may_start(self, execution: Execution) -> bool:
        """Whether a job may start, as far as its state is known; one that must not is settled."""
        envelope, now = execution.envelope, datetime.now(UTC)
        if self._cancellations.covers(envelope.id):
            self._settlement.cancelled(execution, waited=True)
        elif self._cancellations.replaced and execution.key in self._cancellations.replaced:
            self._settlement.replaced(execution)
        elif is_expired(envelope, now):
            self._settlement.expired(execution, now)
        elif early := early_seconds(envelope, now):
            self._settlement.postponed(execution, early)
        else:
            return True
        return False

    async def _was_started(self, execution: Execution) -> bool:
        """Handle a job that was delivered before: True if that settles it.

        According to the events, it has ended, its next attempt exists, or it was lost with its worker, which counts as
        an attempt (ojs-retry section 9.2). A job that never started is treated as new.
        """
        settlement = self._settlement
        if execution.key in self._cancellations.replaced:
            settlement.replaced(execution)
            return True
        if settlement.settled_before(execution):
            return True
        await catch_up(self._view, self._broker.events)
        job = await self._view.get(execution.envelope.id)
        has_other_copy = await self._has_other_copy(execution)
        if self._is_out_of_date(execution):
            return True
        if has_other_copy:
            settlement.refused(execution.queue, execution.delivery)
            return True
        if job is None or job.attempt < execution.attempt:
            return False
        if job.state == State.ACTIVE.value and job.attempt == execution.attempt:
            failure = lost_failure(execution.attempt, self._broker.events.timestamp())
            settlement.failed(execution, failure, 0.0, delay=0.0)
            return True
        if job.state in _WAITING:
            return False
        settlement.replaced(execution)
        return True

    async def _is_second_copy(self, execution: Execution) -> bool:
        """Drop a job that is in its queue twice, and whose other copy was started; False if it was not.

        A job that was discarded is not dropped: somebody may have moved its dead letter back.
        """
        await catch_up(self._view, self._broker.events)
        job = await self._view.get(execution.envelope.id)
        if self._is_out_of_date(execution):
            return True
        if job is None or job.attempt < execution.attempt or job.state in _MAY_START:
            return False
        self._settlement.refused(execution.queue, execution.delivery)
        return True

    async def _has_other_copy(self, execution: Execution) -> bool:
        """Whether a server has published a job with another priority or queue, and died with this message."""
        detail = await self._view.detail(execution.envelope.id)
        if detail is None or detail.envelope is None:
            return False
        known = detail.envelope
        return detail.info.queue != execution.queue or known.get("priority", 0) != execution.envelope.priority

    async def _is_admitted(self, queue: str, delivery: Delivery, envelope: Envelope) -> bool:
        """Ask whether this copy of a job may run. After a late answer, the job is held for the next fetch."""
        if not self._admissions.holds(queue, delivery, envelope):
            return True
        asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked[delivery] = asked
        try:
            async with asyncio.timeout(ADMISSION_SECONDS):
                # Do not ask again for an admitted copy.
                return await asked and not self._admissions.holds(queue, delivery, envelope)
        except TimeoutError:
            return False
        finally:
            self._asked.pop(delivery, None)

    def _admitted(self, queue: str, delivery: Delivery) -> None:
        asked = self._asked.get(delivery)
        if asked is not None and not asked.done():
            asked.set_result(True)
        else:
            self._sources[queue].keep(delivery)

    def _refused(self, queue: str, delivery: Delivery) -> None:
        self._settlement.refused(queue, delivery)
        asked = self._asked.get(delivery)
        if asked is not None and not asked.done():
            asked.set_result(False)

    async def has_queue(self, queue: str, *, creates: bool) -> bool:
        """Whether the queue exists; `creates` declares it."""
        return await self._source(queue, creates=creates) is not None

    # --- queues ---

    async def _source(self, queue: str, *, creates: bool) -> Source | None:
        """Return the source of a queue, None if the queue does not exist."""
        found = self._sources.get(queue)
        if found is not None:
            return found
        async with self._opening:
            if queue in self._sources:
                return self._sources[queue]
            topology = self._broker.declarer.topology
            name = topology.job_queue(queue)
            if creates:
                await self._broker.declarer.ensure_queue(queue)
            elif await self._inspector.queue(name) is None:
                return None
            channel = await self._open_channel()
            names = topology.job_queues(queue)
            source = Source(queue, names, channel, lambda one, delivery: self._settlement.hand_back(delivery, one))
            self._queues.append(queue)
            try:
                await self._paused.look([queue])
            except ClientError:
                self._queues.remove(queue)
                await channel.close()
                raise
            source.is_paused = queue in self._paused.queues
            self._sources[queue] = source
            return source

    async def _open_channel(self) -> Channel:
        """Open a channel for one more queue."""
        number = len(self._sources) // QUEUES_PER_CONNECTION
        if number == len(self._connections):
            self._connections.append(await self._broker.open_another())
        return await self._connections[number].channel(coalesce_acks=True)

    def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused, as far as this backend knows."""
        return queue in self._paused.queues

    def _pause_noticed(self, queue: str) -> None:
        self.pause_count += 1
        self._paused.look_soon(queue)

    def _pauses_changed(self) -> None:
        for queue, source in self._sources.items():
            source.is_paused = queue in self._paused.queues
            source.pause_changed()

    async def refresh_pauses(self, queues: Sequence[str]) -> None:
        """Ask the broker which of these queues are paused."""
        self.pause_count += 1
        await self._paused.look(queues)
        self._pauses_changed()


@contextmanager
def _returning(source: Source, deliveries: Iterable[Delivery]) -> Iterator[deque[Delivery]]:
    """Return deliveries, to be removed one after the other; those that remain go back."""
    rest = deque(deliveries)
    try:
        yield rest
    finally:
        if rest:
            source.put_back(rest)


def _are_large(leases: Sequence[Lease]) -> bool:
    """Whether these jobs make a large answer: the worker fetches the others with its next request."""
    return sum(len(one.execution.delivery.body) for one in leases) > BYTES_AT_A_TIME
