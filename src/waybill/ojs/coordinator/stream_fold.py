"""Reads one partition of the event stream, and folds it into a store, or follows another coordinator that does.

A message of the stream is acknowledged once it is folded: while a database is out of reach, or more happens than can be
folded, the broker holds back what comes after. Few messages wait here, and as they came: as objects, events take five
times as much. AMQP limits their number and not their size. So when much waits, reading pauses until that is folded, and
goes on with one message at a time until they are small again.

Where coordinators share a database, one of them owns a partition, and the others follow: they read it, too, and let its
messages wait until the position in the database has passed them. So whoever becomes the owner has what is not folded
yet at hand. Ownership is a hint for who works. What keeps two owners apart, as there may be for a moment, is the
position: it is locked while one writes, and what is below it is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeVar

from waybill.client import Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.coordinator.event_fold import Verdicts, fold_messages, fold_what_can_be, recall_messages
from waybill.ojs.coordinator.event_reader import PREFETCH, EventReader
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.partition_lag import PartitionLag, age_of
from waybill.ojs.coordinator.store_thread import Outage
from waybill.ojs.coordinator.stream_identity import StreamMark, StreamReplaced

FOLD_SECONDS: Final = 0.02
FOLD_SHARE: Final = 2.0
"""How much longer than it takes to fold is waited for more before, FOLD_SECONDS at most."""
FOLLOW_SECONDS: Final = 0.02
"""How often who follows looks how far the owner is, while somebody waits or much has come."""
LAZY_FOLLOW_SECONDS: Final = 0.2
TRIES: Final = 2
RETRY_SECONDS: Final = 1.0
SOON_BYTES: Final = 32 * 1024
"""So much is folded in the loop where the store is in memory: a thread takes longer to begin."""
NOTHING_LEFT: Final = b"[]"
MOST_BYTES: Final = 16 * 1024 * 1024
"""How much waits, or one message."""
SMALL_BYTES: Final = MOST_BYTES // PREFETCH
SMALL_RUN: Final = 200
"""After so many small messages, several are read at a time again."""

T = TypeVar("T")
Waiting = tuple[StreamMark, Delivery]

_log = logging.getLogger("waybill.ojs.coordinator")


class FoldHost(Protocol):
    """What the partitions of one view share."""

    on_the_way: dict[str, bytes]
    """Messages of this process that the streams are still to bring, each with what is to be folded of it then."""
    on_message: list[Callable[[bytes], None]]

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Run what may take long, or wait, in the store's thread."""

    async def soon(self, call: Callable[[], T]) -> T:
        """Run what takes a moment: at once where the store is in memory, and nobody is at it."""

    def is_waited_for(self) -> bool:
        """Whether somebody is to be told of an event."""

    def was_folded(self, store: JobStore, verdicts: Verdicts, skipped: int) -> None:
        """Tell those who wait."""


class StreamFold:
    """One partition in one process."""

    def __init__(self, partition: int, host: FoldHost) -> None:
        """Nothing is read before `begin`."""
        self.partition = partition
        self.is_owner = True
        self._host = host
        self._outage = Outage()
        self._reader = EventReader(self._take, self._stop)
        self._waiting: deque[Waiting] = deque()
        """Messages that are to be folded, each with its place in the stream."""
        self._folding: Sequence[Waiting] = ()
        """Those that are being folded."""
        self._size = 0
        """Of all messages that wait or are being folded."""
        self._small_run = SMALL_RUN
        """How many small messages have come in a row, up to SMALL_RUN. If there are less, one is read at a time."""
        self._arrived = asyncio.Event()
        self._many_wait = asyncio.Event()
        self._passed = 0
        """The offset from which on the database has folded nothing, when it was asked last."""

    @property
    def malformed_count(self) -> int:
        """How many messages had no properties that could be read."""
        return self._reader.malformed_count

    @property
    def is_stuck(self) -> bool:
        """Whether the database refused the last change."""
        return self._outage.lasts

    @property
    def waiting_count(self) -> int:
        """How many messages are not in the state yet."""
        return len(self._waiting) + len(self._folding)

    def lag(self, now: datetime) -> PartitionLag:
        """Return how far the state is behind this partition. Any thread may call it."""
        bodies = [delivery.body for _, delivery in self._folding]
        # Not a loop over the messages: the event loop may take some meanwhile.
        with contextlib.suppress(IndexError):
            bodies.append(self._waiting[0][1].body)
        seconds = age_of(bodies, now) if bodies or self._reader.is_reading else None
        return PartitionLag(self._reader.stream, seconds, self.is_owner)

    async def begin(self, broker: BrokerConnection, store: JobStore) -> None:
        """Read from where the store ends."""
        await self._reader.open(broker, self.partition)
        await self._reader.begin(*await self._host.in_thread(functools.partial(store.begin, self.partition)))

    def close(self) -> None:
        """Read no more."""
        self._reader.close()

    async def check(self, store: JobStore) -> None:
        """Begin anew if the database has lost what it had confirmed: the next event may take long to come."""
        try:
            await self._host.in_thread(functools.partial(store.check, self.partition))
        except StreamReplaced as error:
            if not self._reader.is_replaced:
                _log.warning("%s", error)
                self._reader.replace()

    def own(self, *, is_owner: bool) -> None:
        """Fold from now on, or follow."""
        if self.is_owner != is_owner:
            self.is_owner = is_owner
            self._arrived.set()

    async def run(self, store: JobStore) -> None:
        """Fold what comes, until cancelled."""
        loop = asyncio.get_running_loop()
        fold_seconds = FOLD_SECONDS
        while True:
            await self._arrived.wait()
            if not self.is_owner:
                self._arrived.clear()
                await self._follow(store)
                await self._read_on()
                continue
            # What comes within a moment is folded in one transaction, unless somebody waits for it, or the broker would
            # soon have to wait for us.
            if not self._host.is_waited_for() and self._small_run >= SMALL_RUN:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(FOLD_SECONDS, fold_seconds * FOLD_SHARE)):
                        await self._many_wait.wait()
            self._arrived.clear()
            self._many_wait.clear()
            began = loop.time()
            if self._reader.is_replaced:
                await self._begin_anew(store)
            while self._waiting and self.is_owner and not self._reader.is_replaced:
                # The other half arrives meanwhile.
                await self._fold(store, self._next(store.fold_bytes))
            await self._read_on()
            fold_seconds = loop.time() - began

    def _next(self, most_bytes: int) -> list[Waiting]:
        """Take messages of about so many bytes, at least one: others wait for the store while they are folded."""
        taken: list[Waiting] = []
        size = 0
        while self._waiting and len(taken) < PREFETCH // 2 and size < most_bytes:
            taken.append(self._waiting.popleft())
            size += len(taken[-1][1].body)
        return taken

    async def _read_on(self) -> None:
        """End a pause, once everything before it is folded."""
        if self._waiting or not self._reader.is_paused or self._reader.is_replaced:
            return
        try:
            await self._reader.resume(PREFETCH if self._small_run >= SMALL_RUN else 1)
        except Exception:  # noqa: BLE001 - whatever a broker can have against it
            _log.exception("the event stream cannot be read on, trying again in %g s", RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)
            self._arrived.set()

    def _has_room(self, size: int) -> bool:
        """Whether a message of this size may wait here, too; if not, pause until the others are folded."""
        if self._size and self._size + size > MOST_BYTES:
            self._small_run = 0
            self._reader.pause()
            return False
        if self._small_run < SMALL_RUN:
            self._small_run = self._small_run + 1 if size <= SMALL_BYTES else 0
            if self._small_run == SMALL_RUN:
                self._reader.pause()
        self._size += size
        return True

    def _take(self, mark: StreamMark, delivery: Delivery) -> None:
        if not self._has_room(len(delivery.body)):
            delivery.ack()
            return
        for take in self._host.on_message:
            take(delivery.body)
        if self._host.on_the_way and not self._waiting and self._is_known(mark, delivery):
            delivery.ack()
            return
        self._waiting.append((mark, delivery))
        self._arrived.set()
        if len(self._waiting) * 2 >= PREFETCH:
            self._many_wait.set()

    def _stop(self) -> None:
        self._arrived.set()
        self._many_wait.set()

    async def _begin_anew(self, store: JobStore) -> None:
        """Start again from the first event, or from the database's position if an epoch has begun there."""
        for _, delivery in self._waiting:
            delivery.ack()
        self._waiting.clear()
        self._size = 0
        self._host.on_the_way.clear()
        self._passed = 0
        run = self._host.in_thread
        is_begun = False
        while True:
            try:
                if not is_begun:
                    # Once: the second time, it would forget all.
                    await run(functools.partial(store.begin_anew, self.partition))
                    is_begun = True
                await self._reader.begin(*await run(functools.partial(store.begin, self.partition)))
            except Exception:  # noqa: BLE001 - whatever a broker or a database can have against it
                _log.exception("the job state cannot be rebuilt, trying again in %g s", RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    def _is_known(self, mark: StreamMark, delivery: Delivery) -> bool:
        """Say whether nothing of a message is left to fold: it is this process's own, and known by its confirm."""
        message_id = delivery.properties.message_id or ""
        if self._host.on_the_way.get(message_id) != NOTHING_LEFT:
            return False
        del self._host.on_the_way[message_id]
        self._reader.folded(mark)
        self._size -= len(delivery.body)
        if self._reader.is_paused:
            self._arrived.set()
        return True

    def _body_of(self, delivery: Delivery) -> bytes:
        """Return what is to be folded of a message: of one of this process, what is not known by its confirm."""
        if self._host.on_the_way:
            left = self._host.on_the_way.pop(delivery.properties.message_id or "", None)
            if left is not None:
                return left
        return delivery.body

    async def _fold(self, store: JobStore, waiting: Sequence[Waiting]) -> None:
        # The properties were decoded for the offset.
        messages = [(mark.offset, self._body_of(delivery), delivery.properties.user_id) for mark, delivery in waiting]
        store.marks[self.partition] = waiting[0][0]
        self._folding = waiting
        failures = 0
        while True:
            try:
                # What has failed twice is taken apart, to step over what is at fault, unless that is the database.
                fold = fold_messages if failures < TRIES else fold_what_can_be
                is_little = sum(len(body) for _, body, _ in messages) <= SOON_BYTES
                run = self._host.soon if is_little else self._host.in_thread
                verdicts, skipped = await run(functools.partial(fold, store, messages, self.partition))
                break
            except StreamReplaced as replaced:
                _log.warning("%s", replaced)
                self._waiting.extendleft(reversed(waiting))
                self._folding = ()
                self._reader.replace()
                return
            except Exception as error:  # noqa: BLE001 - whatever a database can have against it
                failures += 1
                self._outage.failed(error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
        self._outage.over()
        self._done(store, waiting, verdicts, skipped)

    def _done(self, store: JobStore, waiting: Sequence[Waiting], verdicts: Verdicts, skipped: int) -> None:
        self._reader.folded(waiting[-1][0])
        self._folding = ()
        for _, delivery in waiting:
            self._size -= len(delivery.body)
            delivery.ack()
        self._host.was_folded(store, verdicts, skipped)

    # --- following ---

    async def _follow(self, store: JobStore) -> None:
        """Step over what the owner has folded, until nothing waits, or this coordinator is the owner."""
        run = self._host.in_thread
        while self._waiting and not self.is_owner and not self._reader.is_replaced:
            try:
                if self._waiting[0][0].offset >= self._passed:
                    self._passed = await run(functools.partial(store.follow, self.partition))
                await self._step_over(store)
            except StreamReplaced as replaced:
                _log.warning("%s", replaced)
                self._reader.replace()
            except Exception as error:  # noqa: BLE001 - whatever a database can have against it
                self._outage.failed(error, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._outage.over()
        if self._reader.is_replaced:
            await self._begin_anew(store)
        elif self._waiting:
            self._arrived.set()

    async def _step_over(self, store: JobStore) -> None:
        count = 0
        for mark, _ in self._waiting:
            if mark.offset >= self._passed:
                break
            count += 1
        if count == 0:
            is_urgent = self._host.is_waited_for() or len(self._waiting) * 2 >= PREFETCH
            await asyncio.sleep(FOLLOW_SECONDS if is_urgent else LAZY_FOLLOW_SECONDS)
            return
        waiting = [self._waiting[number] for number in range(min(count, PREFETCH // 2))]
        verdicts: Verdicts = {}
        if self._host.is_waited_for():
            messages = [(mark.offset, delivery.body, delivery.properties.user_id) for mark, delivery in waiting]
            verdicts = await self._host.in_thread(functools.partial(recall_messages, store, messages, self.partition))
        for _ in waiting:
            self._waiting.popleft()
        self._done(store, waiting, verdicts, 0)
