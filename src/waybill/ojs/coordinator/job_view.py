"""A coordinator's view of all jobs: follows the event stream, folds it into a store, answers from there.

The store blocks, so a thread of its own works with it. A message of the stream is acknowledged once it is folded: while
a database is out of reach, or more happens than can be folded, the broker holds back what comes after.

Memory does not depend on how far behind it is. Few messages wait here, and as they came: as objects, events take five
times as much. They become objects a piece at a time, and the next piece when these are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from waybill.client import Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.event_fold import fold_messages, fold_what_can_be
from waybill.ojs.coordinator.event_reader import PREFETCH, EventReader
from waybill.ojs.coordinator.expectations import Expectations
from waybill.ojs.coordinator.feature_fold import FeatureFolds, R
from waybill.ojs.coordinator.job_fold import ENDS, JobRecord
from waybill.ojs.coordinator.job_store import HeldAttempt, JobDetail, JobStore, keys_of
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.store_thread import Outage, StoreThread
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.observe.own_events import EventFollower, OwnEvent
from waybill.ojs.spec.control_message import JobInfo
from waybill.ojs.spec.events import DeliveredMessage

FOLD_SECONDS: Final = 0.02
WATCHED_FOLD_SECONDS: Final = 0.002
"""While somebody waits for the end of a job."""
FOLD_SHARE: Final = 2.0
"""How much longer than it takes to fold is waited for more before, FOLD_SECONDS at most."""
TRIES: Final = 2
RETRY_SECONDS: Final = 1.0
SOON_BYTES: Final = 32 * 1024
"""So much is folded in the loop where the store is in memory: a thread takes longer to begin."""
MAX_ON_THE_WAY: Final = 10_000
NOTHING_LEFT: Final = b"[]"
SETTLE_SECONDS: Final = 1.0
"""How long the events of a job may be on their way here before it counts as unknown."""

VERDICT_SECONDS: Final = 30.0
"""How long an event may take to come back."""

T = TypeVar("T")

_log = logging.getLogger("waybill.ojs.coordinator")


class JobView(EventFollower):
    """The view of all jobs in the stream."""

    def __init__(
        self, database: str, *, rebuild: bool, features: FeatureFolds | None = None, keep_days: int | None = None
    ) -> None:
        """See `Coordinator`; `features` are folded too."""
        self._open_store = functools.partial(open_job_store, database, keep_days)
        self._features = features or FeatureFolds()
        self._rebuild = rebuild
        self._store: JobStore | None = None
        self._thread = StoreThread()
        self._lock = self._thread.lock
        self._outage = Outage()
        self._reader = EventReader(self._take, self._stop_folding)
        self._waiting: deque[tuple[StreamMark, Delivery]] = deque()
        """Messages that are to be folded, each with its place in the stream."""
        self._skipped_count = 0
        self._verdicts: dict[str, asyncio.Future[JobInfo | None]] = {}
        self.expectations = Expectations()
        """Who waits for which events."""
        self._arrived = asyncio.Event()
        self._many_wait = asyncio.Event()
        self._folded = asyncio.Event()
        self._own: dict[str, tuple[Sequence[OwnEvent], str | None]] = {}
        """Messages of this process that are not confirmed yet."""
        self._on_the_way: dict[str, bytes] = {}
        """Those that the stream is still to bring, each with what is to be folded of it then."""
        self._adopting: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self.watched: set[str] = set()
        """Jobs whose ends somebody is to be told of."""
        self.on_end: list[Callable[[Sequence[str]], None]] = []
        """Called with those of them that may have ended."""
        self.on_message: list[Callable[[bytes], None]] = []
        """Called with the body of each message of the stream as it comes, once, before it is folded."""
        self.on_feature: list[Callable[[], None]] = []
        """Called when events of features were folded."""

    async def start(self, broker: BrokerConnection) -> None:
        """Open the store, and follow the stream from where the store ends."""
        self._store = await self._in_thread(self._open_store)
        if self._rebuild:
            await self._in_thread(self._store.clear)
        store = self._store
        store.features = self._features
        store.watched = self.watched
        store.expected = self.expectations.waiting
        await self._reader.open(broker)
        await self._reader.begin(*await self._in_thread(store.begin))
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._thread.watch(store)), loop.create_task(self._fold_for_ever(store))]

    async def close(self) -> None:
        """Leave the stream, and close the store."""
        for folding in self._tasks[1:]:
            folding.cancel()
            await asyncio.gather(folding, return_exceptions=True)
        if self._store is not None:
            await self._in_thread(self._store.close)
            self._store = None
        for watching in self._tasks[:1]:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._thread.shut_down()

    async def get(self, job_id: str) -> JobInfo | None:
        """Return a job, None if no event of it has arrived."""
        return await self._soon(functools.partial(self._known.get, job_id))

    async def many(self, job_ids: Sequence[str]) -> list[JobInfo]:
        """Return those of these jobs of which an event has arrived."""
        return await self._soon(functools.partial(self._known.many, job_ids))

    async def detail(self, job_id: str) -> JobDetail | None:
        """Return a job with what was pushed, None if no event of it has arrived."""
        return await self._soon(functools.partial(self._known.detail, job_id))

    def detail_now(self, job_id: str) -> JobDetail | None:
        """Return a job as `detail` does, without a wait: None as well if somebody is at the store, or it may wait."""
        store = self._known
        if not store.is_in_memory or not self._lock.acquire(blocking=False):
            return None
        try:
            return store.detail(job_id)
        finally:
            self._lock.release()

    async def details(self, job_ids: Sequence[str]) -> list[JobDetail]:
        """Return those of these jobs of which an event has arrived, with what was pushed."""
        store = self._known
        return await self._in_thread(lambda: [one for one in map(store.detail, job_ids) if one is not None])

    def expect(self, kind: str, name: str) -> asyncio.Future[None]:
        """Return what is done once the next event of a type is folded that is about job `name`, or has this id.

        Call it before the event is written. Where several of a type about one job may be under way, use the id.
        """
        return self.expectations.expect((kind, name))

    def forget(self, kind: str, name: str) -> None:
        """Expect an event no more (see `expect`); whoever waits for it is cancelled."""
        self.expectations.forget((kind, name))

    async def owner(self, job_id: str) -> str | None:
        """Return the user who pushed a job, None if unknown."""
        return await self._soon(functools.partial(self._known.owner, job_id))

    async def newest(
        self, queue: str, state: str | None, limit: int, owners: Collection[str | None] | None = None
    ) -> list[JobInfo]:
        """Return the jobs of a queue that were enqueued last, those of some users if `owners` are given."""
        store = self._known
        return await self._in_thread(lambda: store.newest(queue, state, limit, owners))

    async def held(self) -> list[HeldAttempt]:
        """Return the attempts that are under way and have sent heartbeats."""
        return await self._in_thread(self._known.held)

    async def kept_message(self, job_id: str, attempt: int) -> DeliveredMessage | None:
        """Return the message of an attempt that is under way, None if it is not, or has not sent it."""
        store = self._known
        return await self._in_thread(lambda: store.kept_message(job_id, attempt))

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many jobs there are by queue and state. For any thread but that of the event loop: it blocks."""
        return self._thread.run_from_outside(self._known.counts)

    async def settled(
        self, job_id: str, is_settled: Callable[[JobInfo | None], bool], seconds: float = SETTLE_SECONDS
    ) -> JobInfo | None:
        """Return what is known of a job, giving events on their way here a moment to arrive."""
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

    async def verdict(self, event_id: str, record: Callable[[], None]) -> JobInfo | None:
        """Record a reservation with this event id; return the job that is in its way once the stream has decided.

        Raises TimeoutError if the stream does not bring it back in time.
        """
        waiting: asyncio.Future[JobInfo | None] = asyncio.get_running_loop().create_future()
        self._verdicts[event_id] = waiting
        try:
            record()
            async with asyncio.timeout(VERDICT_SECONDS):
                return await waiting
        finally:
            del self._verdicts[event_id]

    async def row(self, key: str, kind: type[R]) -> R | None:
        """Return a row of a feature, None if there is none; see `JobStore`."""
        store = self._known
        return await self._soon(lambda: store.row(key, kind))

    async def marked(self, mark: str, kind: type[R], limit: int) -> list[tuple[str, R]]:
        """Return rows with a mark; see `JobStore`."""
        store = self._known
        run = self._soon if store.has_few(mark) else self._in_thread
        return await run(lambda: store.marked(mark, kind, limit))

    async def listed(self, prefix: str, kind: type[R], limit: int, after: str = "") -> list[tuple[str, R]]:
        """Return the rows whose key begins with `prefix`; see `JobStore`."""
        store = self._known
        return await self._in_thread(lambda: store.listed(prefix, kind, limit, after))

    async def read(self, call: Callable[[JobStore], T]) -> T:
        """Return what `call` makes of the store. It runs in the store's thread, and changes nothing."""
        store = self._known
        return await self._in_thread(lambda: call(store))

    async def look(self, call: Callable[[JobStore], T]) -> T:
        """Do the same where `call` takes a moment only: at once, if the store is in memory."""
        store = self._known
        return await self._soon(lambda: call(store))

    async def folded(self, event_id: str, record: Callable[[], None]) -> None:
        """Record an event of a feature with this id; return when it, and so all that is before it, was folded.

        Raises TimeoutError if the stream does not bring it back in time.
        """
        await self.verdict(event_id, record)

    @property
    def is_in_memory(self) -> bool:
        """Whether what it knows is in memory only."""
        return self._known.is_in_memory

    @property
    def _known(self) -> JobStore:
        if self._store is None:
            raise RuntimeError("the coordinator is not started")
        return self._store

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run what may take long, or wait, in the store's thread."""
        return await self._thread.run(call)

    async def _soon(self, call: Callable[[], T]) -> T:
        """Run what takes a moment: at once where the store is in memory, and nobody is at it."""
        if self._store is None or not self._store.is_in_memory or not self._lock.acquire(blocking=False):
            return await self._in_thread(call)
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
        """Take note of a message that is about to be published."""
        if len(self._on_the_way) < MAX_ON_THE_WAY:
            # What a feature folds, too, is folded in the order of the stream.
            wants = self._features.wants
            left: list[OwnEvent] = []
            own: list[OwnEvent] = []
            for one in events:
                (left if wants(one.event) else own).append(one)
            self._on_the_way[message_id] = f"[{','.join(one.text for one in left)}]".encode() if left else NOTHING_LEFT
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
            # Somebody reads a lot: who asks whether it is known waits.
            task = asyncio.get_running_loop().create_task(self._adopt_later(adopt, message_id, events))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)
            return
        try:
            jobs = adopt()
        except Exception:  # noqa: BLE001 - the writer must go on
            self._not_adopted(message_id)
            return
        finally:
            self._lock.release()
        # Who is told may want to look.
        self._adopted(events, jobs)

    async def _adopt_later(
        self, adopt: Callable[[], dict[str, JobRecord]], message_id: str, events: Sequence[OwnEvent]
    ) -> None:
        try:
            jobs = await self._in_thread(adopt)
        except Exception:  # noqa: BLE001 - the stream has it, too
            self._not_adopted(message_id)
        else:
            self._adopted(events, jobs)

    def _not_adopted(self, message_id: str) -> None:
        """Leave a message to the stream, if that has not brought it yet."""
        self._on_the_way.pop(message_id, None)
        _log.exception("events of this process could not be applied directly; they follow from the event stream")

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
        self._folded.set()
        self._folded = asyncio.Event()

    async def knows(self, job_ids: Sequence[str], seconds: float) -> bool:
        """Return once an event of each of these jobs is folded; False if that takes longer."""
        store = self._known
        if store.is_in_memory and self._lock.acquire(blocking=False):
            # Nearly always.
            try:
                job_ids = store.missing(job_ids)
            finally:
                self._lock.release()
            if not job_ids:
                return True
        try:
            async with asyncio.timeout(seconds):
                while True:
                    folded = self._folded
                    job_ids = await self._soon(functools.partial(store.missing, job_ids))
                    if not job_ids:
                        return True
                    await folded.wait()
        except TimeoutError:
            return False

    @property
    def skipped_count(self) -> int:
        """How many events were skipped because they were invalid or could not be stored."""
        return self._skipped_count + self._reader.malformed_count

    def _take(self, mark: StreamMark, delivery: Delivery) -> None:
        for take in self.on_message:
            take(delivery.body)
        if self._on_the_way and not self._waiting and self._is_known(mark, delivery):
            delivery.ack()
            return
        self._waiting.append((mark, delivery))
        self._arrived.set()
        if len(self._waiting) * 2 >= PREFETCH:
            self._many_wait.set()

    async def _fold_for_ever(self, store: JobStore) -> None:
        loop = asyncio.get_running_loop()
        fold_seconds = FOLD_SECONDS
        while True:
            await self._arrived.wait()
            # What comes within a moment is folded in one transaction, unless the broker would soon have to wait for us.
            # The wait is short where folds are: a step of a workflow goes through several, one after another.
            with contextlib.suppress(TimeoutError):
                longest = WATCHED_FOLD_SECONDS if self.watched or store.expected else FOLD_SECONDS
                if store.expected and store.is_in_memory:
                    longest = 0.0
                if longest:
                    async with asyncio.timeout(min(longest, fold_seconds * FOLD_SHARE)):
                        await self._many_wait.wait()
            self._arrived.clear()
            self._many_wait.clear()
            began = loop.time()
            if self._reader.is_replaced:
                await self._begin_anew(store)
            while self._waiting and not self._reader.is_replaced:
                # The other half arrives meanwhile.
                count = min(len(self._waiting), PREFETCH // 2)
                await self._fold(store, [self._waiting.popleft() for _ in range(count)])
            fold_seconds = loop.time() - began

    def _stop_folding(self) -> None:
        self._arrived.set()
        self._many_wait.set()

    async def _begin_anew(self, store: JobStore) -> None:
        """Start again from the first event, or from the database's position if an epoch has begun there."""
        for _, delivery in self._waiting:
            delivery.ack()
        self._waiting.clear()
        self._on_the_way.clear()
        while True:
            try:
                await self._in_thread(store.begin_anew)
                await self._reader.begin(*await self._in_thread(store.begin))
            except Exception:  # noqa: BLE001 - whatever a broker or a database can have against it
                _log.exception("the job state cannot be rebuilt, trying again in %g s", RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _is_known(self, mark: StreamMark, delivery: Delivery) -> bool:
        """Say whether nothing of a message is left to fold: it is this process's own, and known by its confirm."""
        message_id = delivery.properties.message_id or ""
        if self._on_the_way.get(message_id) != NOTHING_LEFT:
            return False
        del self._on_the_way[message_id]
        self._reader.folded(mark)
        return True

    def _body_of(self, delivery: Delivery) -> bytes:
        """Return what is to be folded of a message: of one of this process, what is not known by its confirm."""
        if self._on_the_way:
            left = self._on_the_way.pop(delivery.properties.message_id or "", None)
            if left is not None:
                return left
        return delivery.body

    async def _fold(self, store: JobStore, waiting: Sequence[tuple[StreamMark, Delivery]]) -> None:
        # The properties were decoded for the offset.
        messages = [(mark.offset, self._body_of(delivery), delivery.properties.user_id) for mark, delivery in waiting]
        store.mark = waiting[0][0]
        failures = 0
        while True:
            try:
                # What has failed twice is taken apart, to step over what is at fault, unless that is the database.
                fold = fold_messages if failures < TRIES else fold_what_can_be
                is_little = sum(len(body) for _, body, _ in messages) <= SOON_BYTES
                run = self._soon if is_little else self._in_thread
                verdicts, skipped = await run(functools.partial(fold, store, messages))
                break
            except StreamReplaced as error:
                _log.warning("%s", error)
                self._waiting.extendleft(reversed(waiting))
                self._reader.replace()
                return
            except Exception as error:  # noqa: BLE001 - whatever a database can have against it
                failures += 1
                self._outage.failed(error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
        self._outage.over()
        self._skipped_count += skipped
        self._reader.folded(waiting[-1][0])
        for _, delivery in waiting:
            delivery.ack()
        if store.ended:
            ended, store.ended = store.ended, []
            for tell_ends in self.on_end:
                tell_ends(ended)
        if store.arrived:
            arrived, store.arrived = store.arrived, []
            for key in arrived:
                self.expectations.arrived(key)
        if verdicts:
            for tell in self.on_feature:
                tell()
        for event_id, obstacle in verdicts.items():
            decided = self._verdicts.get(event_id)
            if decided is not None and not decided.done():
                decided.set_result(obstacle)
        self._folded.set()
        self._folded = asyncio.Event()


__all__ = ["PREFETCH", "JobView"]
