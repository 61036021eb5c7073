"""A coordinator's view of all jobs: reads the event stream, folds it into a store, and answers from the store.

The store blocks, so it has its own thread. Each partition of the stream is read separately (`StreamFold`). Memory use
does not depend on how far behind the view is: events are decoded piece by piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.event_fold import Verdicts
from waybill.ojs.coordinator.event_reader import require_known_partitions
from waybill.ojs.coordinator.expectations import Expectations
from waybill.ojs.coordinator.feature_fold import FeatureFolds, R
from waybill.ojs.coordinator.job_counts import all_counts
from waybill.ojs.coordinator.job_fold import ENDS
from waybill.ojs.coordinator.job_record import JobRecord
from waybill.ojs.coordinator.job_store import HeldAttempt, JobDetail, JobStore, keys_of
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.partition_lag import PartitionLag
from waybill.ojs.coordinator.recent_jobs import RecentJobs
from waybill.ojs.coordinator.store_thread import StoreThread
from waybill.ojs.coordinator.stream_fold import NOTHING_LEFT, StreamFold
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.observe.own_events import EventFollower, OwnEvent
from waybill.ojs.recurring_error import RecurringError
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import DeliveredMessage
from waybill.ojs.spec.identifiers import new_id

MAX_ON_THE_WAY: Final = 10_000
SHARE_SECONDS: Final = 2.0
"""How often coordinators that share a database register."""
SETTLE_SECONDS: Final = 1.0
"""How long a job's events may be in transit before the job counts as unknown."""

COUNT_SECONDS: Final = 5.0
"""How long a scrape waits for the store: Prometheus waits for 10 seconds."""
QUERY_SECONDS: Final = 1.0
"""How long new jobs may take to be folded here before a database is queried: another coordinator may have done it."""
VERDICT_SECONDS: Final = 30.0
"""How long an event of this process may take to come back."""

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.coordinator")


class JobView(EventFollower):
    """The view of all jobs in the stream."""

    def __init__(
        self,
        database: str,
        *,
        rebuild: bool,
        features: FeatureFolds | None = None,
        keep_days: int | None = None,
        coordinator: str = "",
    ) -> None:
        """See `Coordinator`; `features` are folded too. `coordinator` is the id of the one whose view this is."""
        self._open_store = functools.partial(open_job_store, database, keep_days)
        self._features = features or FeatureFolds()
        self._rebuild = rebuild
        self._store: JobStore | None = None
        self._thread = StoreThread()
        self._lock = self._thread.lock
        self.end_soon = self._thread.end_soon
        self._streams: list[StreamFold] = []
        """By partition."""
        self._id = coordinator or new_id()
        self._share_soon = asyncio.Event()
        self.leads: Callable[[], bool] = lambda: False
        """Whether this coordinator is the leader: it folds the first partition, which has what the leader acts on."""
        self._skipped_count = 0
        self._verdicts: dict[str, asyncio.Future[JobInfo | None]] = {}
        self.expectations = Expectations()
        """Waiters for events."""
        self._folded = asyncio.Event()
        self._recent = RecentJobs()
        self._asking = 0
        """How many ask after each fold whether it has brought their jobs."""
        self._own: dict[str, tuple[Sequence[OwnEvent], str | None]] = {}
        """Messages of this process that are not confirmed yet."""
        self.on_the_way: dict[str, bytes] = {}
        """Confirmed messages that the stream has yet to bring, each with what remains to be folded then."""
        self._adopting: set[asyncio.Task[None]] = set()
        self._refusal = RecurringError(
            _log, "events of this process could not be applied directly; the stream has them"
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.watched: set[str] = set()
        """Jobs whose ends someone waits for."""
        self.on_end: list[Callable[[Sequence[str]], None]] = []
        """Called with those of them that may have ended."""
        self.on_message: list[Callable[[bytes], None]] = []
        """Called with the body of each message of the stream as it arrives, once, before it is folded."""
        self.on_feature: list[Callable[[], None]] = []
        """Called when events of features were folded."""

    async def start(self, broker: BrokerConnection) -> None:
        """Open the store, and follow the stream from the store's position."""
        partitions = broker.declarer.topology.event_partitions
        await require_known_partitions(broker)
        self._store = store = await self.in_thread(functools.partial(self._open_store, partitions))
        if self._rebuild:
            await self.in_thread(store.clear)
        store.features = self._features
        store.watched = self.watched
        store.expected = self.expectations.waiting
        self._thread.make_way(store)
        self._streams = [StreamFold(number, self) for number in range(partitions)]
        for one in self._streams:
            await one.begin(broker, store)
        spawn = asyncio.get_running_loop().create_task
        self._tasks = [spawn(self._thread.watch(store)), *(spawn(one.run(store)) for one in self._streams)]
        if partitions > 1:
            self._tasks.append(spawn(self._share_for_ever(store)))

    async def close(self) -> None:
        """Stop reading, and close the store."""
        self.end_soon()
        for one in self._streams:
            one.close()
        for folding in self._tasks[1:]:
            folding.cancel()
            await asyncio.gather(folding, return_exceptions=True)
        if self._store is not None and len(self._streams) > 1:
            # The others notice without it, too, some seconds later.
            with contextlib.suppress(Exception):
                await self.in_thread(functools.partial(self._store.leave, self._id))
        if self._store is not None:
            await self._thread.close(self._store)
            self._store = None
        for watching in self._tasks[:1]:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._thread.shut_down()

    async def get(self, job_id: str) -> JobInfo | None:
        """Return a job, None if none of its events has arrived."""
        return await self.soon(functools.partial(self._known.get, job_id))

    async def many(self, job_ids: Sequence[str]) -> list[JobInfo]:
        """Return the known jobs among these."""
        return await self.soon(functools.partial(self._known.many, job_ids))

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return a job with its envelope, None if it is unknown."""
        return await self.soon(functools.partial(self._known.detail, job_id))

    def detail_now(self, job_id: str) -> JobDetail | None:
        """Return what `detail` does without waiting; also None if the store is busy or may block."""
        store = self._known
        if not store.is_in_memory or not self._lock.acquire(blocking=False):
            return None
        try:
            return store.detail(job_id)
        finally:
            self._lock.release()

    async def details(self, job_ids: Sequence[str]) -> list[JobDetail]:
        """Return the known jobs among these, with their envelopes."""
        return await self._thread.read(lambda: [one for one in map(self._known.detail, job_ids) if one is not None])

    def expect(self, kind: str, name: str) -> asyncio.Future[None]:
        """Return a future for the next folded event of a type that is about job `name`, or has this id.

        Call it before the event is written. If several events of a type about one job may be in transit, use the id.
        """
        return self.expectations.expect((kind, name))

    def forget(self, kind: str, name: str) -> None:
        """Cancel a future of `expect`."""
        self.expectations.forget((kind, name))

    async def owner(self, job_id: str) -> str | None:
        """Return the user who pushed a job, None if unknown."""
        return await self.soon(functools.partial(self._known.owner, job_id))

    async def newest(
        self, queue: str | None, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        """Return the jobs of a queue, or of all, that were enqueued last, only those of `owners` if they are given."""
        return await self._thread.read(functools.partial(self._known.newest, queue, state, limit, owners))

    async def held(self) -> list[HeldAttempt]:
        """Return the running attempts that have sent heartbeats."""
        return await self.in_thread(self._known.held)

    async def kept_message(self, job_id: str, attempt: int) -> DeliveredMessage | None:
        """Return the message of a running attempt, None if it does not run, or has not sent its message."""
        return await self.in_thread(functools.partial(self._known.kept_message, job_id, attempt))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state. Blocks: do not call it from the event loop's thread.

        Raises TimeoutError if the store is busy for long, and errors of the store.
        """
        run, store = self._thread.run_from_outside, self._known
        return all_counts(lambda call: run(functools.partial(call, store), COUNT_SECONDS))

    async def settled(
        self, job_id: str, is_settled: Callable[[JobInfo | None], bool], seconds: float = SETTLE_SECONDS
    ) -> JobInfo | None:
        """Return what is known of a job, giving events in transit a moment to arrive."""
        job: JobInfo | None = None
        try:
            async with asyncio.timeout(seconds):
                while True:
                    folded = self._folded
                    if is_settled(job := await self.get(job_id)):
                        return job
                    await folded.wait()
        except TimeoutError:
            return await self.get(job_id)

    async def verdict(
        self, event_id: str, record: Callable[[], None], seconds: float | None = VERDICT_SECONDS
    ) -> JobInfo | None:
        """Record a reservation with this event id; return the conflicting job, if any, once the stream has decided.

        Raises TimeoutError if the stream does not bring it back in time.
        """
        waiting: asyncio.Future[JobInfo | None] = asyncio.get_running_loop().create_future()
        self._verdicts[event_id] = waiting
        try:
            record()
            async with asyncio.timeout(seconds):
                return await waiting
        finally:
            del self._verdicts[event_id]

    async def row(self, key: str, kind: type[R]) -> R | None:
        """Return a row of a feature, None if there is none; see `JobStore`."""
        store = self._known
        return await self.soon(lambda: store.row(key, kind))

    async def folded_row(self, key: str, kind: type[R]) -> R | None:
        """Return a row, not older than the last event of the first partition that anybody was told is folded.

        Raises StreamReplaced if the database has lost that event: it is folded again.
        """

        def read(store: JobStore) -> R | None:
            found = store.row(key, kind)
            # Afterwards: the row may come from a replica that has just been promoted.
            store.check()
            return found

        return await self.look(read)

    async def marked(self, mark: str, kind: type[R], limit: int, after: str = "") -> list[tuple[str, R]]:
        """Return rows with a mark; see `JobStore`."""
        store = self._known
        run = self.soon if store.has_few(mark) else self._thread.read
        return await run(lambda: store.marked(mark, kind, limit, after))

    async def listed(self, prefix: str, kind: type[R], limit: int, after: str = "") -> list[tuple[str, R]]:
        """Return the rows whose key begins with `prefix`; see `JobStore`."""
        return await self._thread.read(functools.partial(self._known.listed, prefix, kind, limit, after))

    async def read(self, call: Callable[[JobStore], T]) -> T:
        """Run `call` with the store, in the store's thread, and return its result. It must not change the store."""
        return await self._thread.read(functools.partial(call, self._known))

    async def look(self, call: Callable[[JobStore], T]) -> T:
        """Do the same for a quick `call`: it runs immediately if the store is in memory."""
        store = self._known
        return await self.soon(lambda: call(store))

    async def folded(self, event_id: str, record: Callable[[], None], seconds: float | None = VERDICT_SECONDS) -> None:
        """Do the same for an event of a feature: return when it and all before it are folded."""
        await self.verdict(event_id, record, seconds)

    def lags(self) -> list[PartitionLag]:
        """Return how far the state is behind each partition of the event stream. Any thread may call it."""
        now = datetime.now(UTC)
        return [one.lag(now) for one in self._streams]

    async def problem(self, seconds: float) -> str | None:
        """Return why the state is not up to date, None if nothing is known; a database has `seconds` to answer."""
        found = await self._thread.ask(self._known, seconds) or self._thread.problem
        return "unwritable" if self.is_stuck else found

    @property
    def is_stuck(self) -> bool:
        """Whether the database, or the temporary file of one in memory, has refused the last change."""
        return any(one.is_stuck for one in self._streams)

    @property
    def waiting_count(self) -> int:
        """How many messages of events have arrived and are not in the state yet."""
        return sum(one.waiting_count for one in self._streams)

    @property
    def kind(self) -> str:
        """What keeps the state: "memory", "sqlite" or "postgresql"."""
        return self._known.kind

    @property
    def partition_count(self) -> int:
        """How many partitions the event stream has."""
        return len(self._streams)

    @property
    def is_in_memory(self) -> bool:
        """Whether the state is only in memory."""
        return self._known.is_in_memory

    @property
    def _known(self) -> JobStore:
        if self._store is None:
            raise RuntimeError("the coordinator is not started")
        return self._store

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run a call that may take long or block in the store's thread."""
        return await self._thread.run(call)

    async def soon(self, call: Callable[[], T]) -> T:
        """Run a quick call: immediately if the store is in memory and idle."""
        if self._store is None or not self._store.is_in_memory or not self._lock.acquire(blocking=False):
            return await self.in_thread(call)
        try:
            return call()
        finally:
            self._lock.release()

    # --- events written by this process ---

    def follow(self, events: EventWriter) -> None:
        """Apply the events of a writer of this process as soon as they are confirmed, if the store is in memory."""
        if self._known.is_in_memory:
            events.follower = self

    def announce(self, message_id: str, events: Sequence[OwnEvent], user: str | None) -> None:
        """Note a message that is about to be published."""
        if len(self.on_the_way) < MAX_ON_THE_WAY:
            # Events that a feature folds, too, are folded in the order of the stream.
            wants = self._features.wants
            left: list[OwnEvent] = []
            own: list[OwnEvent] = []
            for one in events:
                (left if wants(one.event) else own).append(one)
            self.on_the_way[message_id] = f"[{','.join(one.text for one in left)}]".encode() if left else NOTHING_LEFT
            self._own[message_id] = own, user

    def confirmed(self, message_id: str) -> None:
        """Fold the events of a message."""
        found = self._own.pop(message_id, None)
        store = self._store
        if found is None or store is None:
            return
        events, user = found
        adopt = functools.partial(store.adopt, events, user)
        if not self._lock.acquire(blocking=False):
            # A long read is under way: waiters wait for its end.
            task = asyncio.get_running_loop().create_task(self._adopt_later(adopt, message_id, events))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)
            return
        try:
            jobs = adopt()
        except Exception as error:  # noqa: BLE001 - the writer must go on
            self._not_adopted(message_id, error)
            return
        finally:
            self._lock.release()
        # A callback may read the view.
        self._adopted(events, jobs)

    async def _adopt_later(
        self, adopt: Callable[[], dict[str, JobRecord]], message_id: str, events: Sequence[OwnEvent]
    ) -> None:
        try:
            jobs = await self.in_thread(adopt)
        except Exception as error:  # noqa: BLE001 - the stream has it, too
            self._not_adopted(message_id, error)
        else:
            self._adopted(events, jobs)

    def _not_adopted(self, message_id: str, error: Exception) -> None:
        self.on_the_way.pop(message_id, None)
        self._refusal.failed(error)

    def _adopted(self, events: Sequence[OwnEvent], jobs: dict[str, JobRecord]) -> None:
        waiting = self.expectations.waiting
        if waiting:
            for one in events:
                for key in keys_of(one.event):
                    if key in waiting:
                        self.expectations.arrived(key, jobs.get(one.event.subject))
        if self.watched:
            ended = [one.event.subject for one in events if one.event.type in ENDS]
            for tell_ends in self.on_end:
                tell_ends([job_id for job_id in ended if job_id in self.watched])
        self._tell_folded()

    def knows_now(self, job_ids: Sequence[str]) -> bool:
        """Return whether an event of each of these new jobs is folded; False also if the store is busy.

        With a database, that is known for a while, and told once.
        """
        store = self._known
        if not store.is_in_memory:
            return self._recent.take(job_ids)
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not store.missing(job_ids)
        finally:
            self._lock.release()

    async def knows(self, job_ids: Sequence[str], seconds: float) -> bool:
        """Return once an event of each of these jobs is folded; False if that takes longer."""
        now = asyncio.get_running_loop().time
        query_at = now() + (0.0 if self.is_in_memory else QUERY_SECONDS)
        self._asking += 1
        try:
            async with asyncio.timeout(seconds):
                while not self.knows_now(job_ids):
                    folded = self._folded
                    if now() >= query_at:
                        job_ids = await self.soon(functools.partial(self._known.missing, job_ids))
                        if not job_ids:
                            return True
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(QUERY_SECONDS):
                            await folded.wait()
                return True
        except TimeoutError:
            return False
        finally:
            self._asking -= 1

    @property
    def skipped_count(self) -> int:
        """How many events were skipped because they were invalid or could not be stored."""
        return self._skipped_count + sum(one.malformed_count for one in self._streams)

    def is_waited_for(self) -> bool:
        """Whether a waiter needs an event."""
        return bool(self._asking or self._verdicts or self.watched or self.expectations.waiting)

    def was_folded(self, store: JobStore, verdicts: Verdicts, skipped: int) -> None:
        """Notify the waiters for the events of a fold."""
        self._skipped_count += skipped
        enqueued, store.enqueued = store.enqueued, []
        self._recent.add(enqueued)
        if store.ended:
            ended, store.ended = store.ended, []
            for tell_ends in self.on_end:
                tell_ends(ended)
        if store.arrived:
            arrived, store.arrived = store.arrived, []
            for key, job in arrived:
                self.expectations.arrived(key, job)
        if verdicts:
            for tell in self.on_feature:
                tell()
        for event_id, obstacle in verdicts.items():
            decided = self._verdicts.get(event_id)
            if decided is not None and not decided.done():
                decided.set_result(obstacle)
        self._tell_folded()

    def _tell_folded(self) -> None:
        self._folded.set()
        self._folded = asyncio.Event()

    # --- sharing a database ---

    def share_anew(self) -> None:
        """Register soon, as this coordinator has become the leader."""
        self._share_soon.set()

    async def _share_for_ever(self, store: JobStore) -> None:
        """Agree with the coordinators that share the database on who folds which partition, until cancelled."""
        while True:
            self._share_soon.clear()
            try:
                owned = await self.in_thread(functools.partial(store.share, self._id, leads=self.leads()))
                for one in self._streams:
                    await one.check(store)
            except Exception as error:  # noqa: BLE001 - whatever a database can have against it
                _log.warning("the coordinators that share the database are not known: %s", error)
            else:
                for one in self._streams:
                    one.own(is_owner=owned is None or one.partition in owned)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SHARE_SECONDS):
                    await self._share_soon.wait()
