"""A backend: a client, a coordinator, and the leases of fetched jobs, over one broker.

Responses are consistent with the event stream: a change is answered once the broker has confirmed it and this backend's
job view has applied its event, so that a later read sees it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from waybill.backend.errors import not_found
from waybill.backend.extensions import Extensions
from waybill.backend.fetcher import Fetcher
from waybill.backend.large_answers import LargeAnswers
from waybill.backend.leases import LEASED_MEMORY, STARTED, Lease, Leases
from waybill.backend.limits import Limits
from waybill.backend.operator_view import OperatorView
from waybill.backend.queue_sizes import QueueSizes
from waybill.backend.recent_events import RecentEvents
from waybill.backend.settings import Settings
from waybill.backend.workers import KnownWorker
from waybill.client.service import Service
from waybill.ojs.client import Jobs
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.coordinator import Coordinator
from waybill.ojs.coordinator.job_counts import JobCounts
from waybill.ojs.coordinator.job_store import JobDetail
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.coordinator.markers import rebuild
from waybill.ojs.coordinator.records import Records
from waybill.ojs.dead_letters import DeadLetters
from waybill.ojs.errors import InvalidJob, ResponseCode
from waybill.ojs.spec.envelope import MAX_ID_LENGTH, ErrorRecord, is_queue_name
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.server_events import BackpressureDropped
from waybill.ojs.spec.timestamps import format_timestamp
from waybill.ojs.worker.execution import Execution, Failure
from waybill.ojs.worker.settlement import Settlement

if TYPE_CHECKING:
    # It needs a package that servers without a codec do not need.
    from waybill.backend.codec import Codec

FOLD_SECONDS: Final = 10.0
"""How long to wait until the view has applied a change before the request is answered anyway."""
UNKNOWN_SECONDS: Final = 0.1
"""How long to wait for the events of another backend's job before it is unknown."""
DRAIN_SECONDS: Final = 5.0
MAX_QUEUES: Final = 1000

_log = logging.getLogger("waybill.backend")


class Backend(Service):
    """Serves the jobs of one broker: `async with Backend(jobs) as backend: ...`."""

    jobs: Jobs
    leases: Leases
    limits: Limits
    fetcher: Fetcher
    events: RecentEvents
    extensions: Extensions

    def __init__(
        self,
        jobs: Jobs,
        *,
        database: str = ":memory:",
        keep_days: int | None = None,
        is_test: bool = False,
        allows_private: bool = False,
        leased_memory: int = LEASED_MEMORY,
    ) -> None:
        """`jobs` is a separate client without handlers. `database` and `keep_days`: see `Coordinator`.

        `is_test` lets jobs set the directives for their workers. `leased_memory`: see `Leases`.
        """
        jobs.describes_jobs = True
        jobs.create_queues = jobs.guard.creates = True
        self.jobs = jobs
        self.id = f"backend_{new_id()}"
        self.operator_view = OperatorView(self)
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        """Called at the beginning of `close`."""
        self.is_test = is_test
        self.large_answers = LargeAnswers()
        self.trace_url: str | None = None
        """The URL of traces, with `{trace_id}`."""
        self.has_broker = False
        """Whether the broker runs in this process, so that its pages are served, too."""
        self.codec: Codec | None = None
        """Encrypts and decrypts payloads for tools, if it has keys."""
        self.region: str | None = None
        """The region of this server in a federation."""
        self.next_prune_at = ""
        """When jobs are deleted next, by the retention of their queues."""
        self._allows_private = allows_private
        self._leased_memory = leased_memory
        self.started = time.monotonic()
        self._database = database
        self._keep_days = keep_days
        self._coordinator: Coordinator | None = None
        self._broker: BrokerConnection | None = None
        self._settlement: Settlement | None = None
        self._coordinated: set[str] = set()
        self._coordinating = asyncio.Lock()
        self._dead_letter_lock = asyncio.Lock()
        """Held while a request reads dead letters: its unsettled messages are hidden from other requests."""
        self.retrying: set[str] = set()
        """Jobs that a request is retrying."""
        self.directives: dict[str, str] = {}
        """Directives for workers (quiet or terminate) that are lost when this server stops."""

    async def start(self) -> None:
        """Connect, and read the events so far. Raises ClientError."""
        broker = self._broker = await self.jobs.broker_connection()
        try:
            await broker.declarer.ensure_shared()
            self._coordinator = Coordinator(
                self.jobs, queues=[], database=self._database, watches_queues=False, keep_days=self._keep_days
            )
            await self._coordinator.start()
            await rebuild(self.view, broker.events)
            self.view.follow(broker.events)
            broker.events.gather()
            settlement = Settlement(broker, "dead_letter", exact_delays=True)
            settings = Settings(Records(self.view, broker.events), self.coordinator.records)
            self.limits = Limits(self.jobs, settlement, broker.events, _levels(broker), settings)
            self.leases = Leases(broker.events, self.view, settlement, self.id, self._lease_ended, self._leased_memory)
            self.fetcher = Fetcher(broker, self.view, settlement, self.leases, self.id, self.limits)
            self._settlement = settlement
            await self.fetcher.start()
            self.events = RecentEvents()
            self.view.on_message.append(self.events.take)
            self.extensions = Extensions(
                broker,
                self._coordinator,
                self.leases,
                self.id,
                settings,
                self.limits,
                allows_private=self._allows_private,
            )
            self.fetcher.is_quiet = self.extensions.workers.is_quiet
            self.extensions.workers.on_quiet = self.fetcher.quieted
            self.extensions.directives.on_read = lambda _table: self.fetcher.quieted()
            self.extensions.push_checks.drop = self._drop_oldest
            self.extensions.push_checks.record = broker.events.record
            self.extensions.push_checks.tenants.record = broker.events.record
            self.extensions.push_checks.size_of = QueueSizes(self.view, self.events.on_events).of
            self.extensions.seen_count = lambda: self.events.seen_count
            await self.extensions.start()
            for queue in list((await self.job_counts()).by_queue)[:MAX_QUEUES]:
                await self.coordinate_queue(queue)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Requeue leased jobs, and disconnect."""
        if self._coordinator is not None:
            self._coordinator.end_soon()
        while self.on_close:
            await self.on_close.pop()()
        if self._settlement is not None:
            await self.fetcher.close()
            self.leases.give_back_all()
            await self._settlement.drain(DRAIN_SECONDS)
            self._settlement = None
        coordinator, self._coordinator = self._coordinator, None
        if hasattr(self, "events"):
            self.events.listeners.end()
        if hasattr(self, "extensions"):
            await self.extensions.close()
        if coordinator is not None:
            await coordinator.close()
        self._broker = None
        await self.jobs.close()

    # --- state ---

    @property
    def broker(self) -> BrokerConnection:
        """The connection for jobs and leases."""
        if self._broker is None:
            raise RuntimeError("the backend is not started")
        return self._broker

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of this backend."""
        if self._coordinator is None:
            raise RuntimeError("the backend is not started")
        return self._coordinator

    @property
    def settlement(self) -> Settlement:
        """The settlement of attempts."""
        if self._settlement is None:
            raise RuntimeError("the backend is not started")
        return self._settlement

    @property
    def view(self) -> JobView:
        """The view of jobs."""
        return self.coordinator.view

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return a job, None if it is unknown. Waits a moment for the events of other backends."""
        if not job_id.isprintable() or len(job_id) > MAX_ID_LENGTH:
            # Databases do not accept it.
            return None
        found = await self.view.detail(job_id)
        if found is None:
            await self.view.settled(job_id, lambda job: job is not None, UNKNOWN_SECONDS)
            found = await self.view.detail(job_id)
        return found

    async def known(self, job_id: str) -> JobDetail:
        """Return a job, as `detail` does. Raises RequestRefused if it is unknown."""
        found = await self.detail(job_id)
        if found is None:
            raise not_found("job", job_id)
        return found

    async def job_counts(self) -> JobCounts:
        """Return the current number of jobs by queue and state. The next call modifies the returned object."""
        return await self.extensions.job_counts()

    async def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the number of jobs by queue and state."""
        return (await self.job_counts()).by_pair

    async def queues(self) -> list[str]:
        """Return the known queues, sorted by name."""
        return sorted(({*(await self.job_counts()).by_queue} - {""}) | set(self.coordinator.queues))

    async def job_queues(self) -> list[str]:
        """Return the known queues that can exist: events of other programs may name any."""
        return [name for name in await self.queues() if is_queue_name(name)]

    def workers(self) -> dict[str, KnownWorker]:
        """Return the workers that sent something within the last hour, by id."""
        return self.events.workers.all() | {one.id: one for one in self.extensions.workers.all()}

    def coordinates_queue(self, queue: str) -> bool:
        """Whether a queue is coordinated."""
        return queue in self._coordinated

    async def coordinate_queue(self, queue: str) -> None:
        """Coordinate a queue from now on. Raises InvalidJob for an invalid name."""
        if queue in self._coordinated:
            return
        async with self._coordinating:
            if queue in self._coordinated:
                return
            try:
                await self.coordinator.coordinate(queue)
            except InvalidJob:
                if queue in (await self.job_counts()).by_queue:
                    # The name comes from events of another program.
                    return
                raise
            self._coordinated.add(queue)
        await self.extensions.known_queues.add(queue)

    async def forget_queue(self, queue: str) -> None:
        """Forget a deleted queue: its next job creates it again. Raises TimeoutError."""
        self._coordinated.discard(queue)
        await self.extensions.known_queues.remove(queue)

    def _lease_ended(self, execution: Execution) -> None:
        self.limits.ended(execution)
        self.extensions.progress.end(execution.envelope.id)

    async def _drop_oldest(self, queue: str, count: int) -> int:
        """Discard the oldest jobs of a queue; returns how many, after the view has applied it."""
        executions = await self.fetcher.oldest(queue, count)
        if not executions:
            return 0
        async with self.folded([("job.discarded", one.envelope.id) for one in executions]):
            for one in executions:
                record = ErrorRecord(
                    type="backpressure_dropped", message="the queue was full, and newer jobs replaced this one"
                )
                self.settlement.failed(one, Failure(record, ResponseCode.DISCARD), 0.0)
                dropped = BackpressureDropped(queue=queue, job_id=one.envelope.id, job_type=one.envelope.type)
                self.broker.events.record(queue, dropped)
        return len(executions)

    async def begun(self, leases: Sequence[Lease]) -> None:
        """Wait until the view has applied the start of these attempts, at most FOLD_SECONDS."""
        missing = [lease for lease in leases if not lease.is_known]
        if not missing:
            return
        all_known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        count = len(missing)

        def known() -> None:
            nonlocal count
            count -= 1
            if not count and not all_known.done():
                all_known.set_result(None)

        for lease in missing:
            lease.on_known = known
        try:
            async with asyncio.timeout(FOLD_SECONDS):
                await all_known
        except TimeoutError:
            _log.warning("%d starts of jobs are not in the view after %g s", count, FOLD_SECONDS)
        finally:
            for lease in missing:
                self.view.expectations.tell_no_more((STARTED, lease.execution.envelope.id), lease.begun)

    async def applied(self, job_ids: Sequence[str]) -> None:
        """Wait until the view has applied an event of each of these new jobs, at most FOLD_SECONDS.

        Nobody waits for a view that cannot be written, as the health tells: its requests would stay in memory.
        """
        if job_ids and not self.view.is_stuck and not await self.view.knows(job_ids, FOLD_SECONDS):
            _log.warning("the job view is behind: it lacks some of %d new jobs after %g s", len(job_ids), FOLD_SECONDS)

    @asynccontextmanager
    async def dead_letters(self, queue: str) -> AsyncIterator[DeadLetters]:
        """Read the dead letters of a queue, one request at a time, over all servers: it holds what others look for."""
        async with self._dead_letter_lock, DeadLetters(self.jobs, queue) as dead, dead.alone():
            yield dead

    @asynccontextmanager
    async def folded(self, keys: Sequence[tuple[str, str]], *, is_certain: bool = False) -> AsyncIterator[None]:
        """After the block, wait until the view has applied these events, each given by type and job.

        Raises TimeoutError if they do not arrive, unless `is_certain`: the broker has confirmed the change, and only
        the database is slow.
        """
        view = self.view
        expected = [view.expect(*key) for key in keys]
        try:
            yield
        except BaseException:
            for key in keys:
                view.forget(*key)
            raise
        _, missing = await asyncio.wait(expected, timeout=FOLD_SECONDS)
        if missing:
            _log.warning("the job view is behind: it lacks changes of %d jobs after %g s", len(missing), FOLD_SECONDS)
            for key in keys:
                view.forget(*key)
            if not is_certain:
                raise TimeoutError

    @staticmethod
    def loop_time() -> float:
        """Return the time of the loop's clock, which leases use."""
        return asyncio.get_running_loop().time()

    @staticmethod
    def now() -> str:
        """Return the current time as in answers."""
        return format_timestamp(datetime.now(UTC))


def _levels(broker: BrokerConnection) -> int:
    """Return the number of priority levels of queues: 0 for quorum queues, whose jobs are sorted here."""
    topology = broker.declarer.topology
    return topology.max_priority if topology.queue_type == "classic" else 0
