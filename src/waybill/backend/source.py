"""Takes the jobs of one queue: with basic.get while there are some, with a consumer while requests wait.

    fetch          basic.get, as many as requested: no job is held unnecessarily
    long poll      a consumer whose prefetch is the number of waiting requests; each delivery wakes one of them

Deliveries that arrive after the last request has ended are requeued.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from waybill.client import Channel, ClientError, Consumer, Delivery

AT_A_TIME: Final = 50
"""The maximum number of jobs per round trip."""
BYTES_AT_A_TIME: Final = 8 * 1024 * 1024
MIN_SIZE: Final = 1024
UNKNOWN_SIZE: Final = BYTES_AT_A_TIME
MOST_PREFETCHED: Final = 100
PAUSE_SECONDS: Final = 0.5

_log = logging.getLogger("waybill.backend")


class Source:
    """The deliveries of one queue, over a separate channel: errors of other queues do not affect its leases."""

    def __init__(
        self, queue: str, names: Sequence[str], channel: Channel, hand_back: Callable[[str, Delivery], None]
    ) -> None:
        """`names` are its AMQP queues: one, or its partitions. `hand_back` requeues deliveries that are not needed."""
        self.queue = queue
        self.is_paused = False
        self._names = deque(names)
        self._channel = channel
        self._hand_back = hand_back
        self._held: deque[Delivery] = deque()
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._changed = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._credit = 0
        self._largest = UNKNOWN_SIZE
        """The size of the largest job that was taken last. With each further take, earlier ones count half as much."""

    @property
    def is_large(self) -> bool:
        """Whether the jobs that were taken last are so large that few are taken together; also before the first."""
        return self._largest > BYTES_AT_A_TIME // AT_A_TIME

    @property
    def _fitting(self) -> int:
        """How many jobs are taken together, if they are as large as those before."""
        return 1 + BYTES_AT_A_TIME // self._largest

    @property
    def _is_full(self) -> bool:
        """Whether as much as may be taken together waits for requests: the consumers end, whatever their credit."""
        return self.is_large and sum([len(one.body) for one in self._held]) > BYTES_AT_A_TIME

    async def take(self, count: int) -> list[Delivery]:
        """Return up to `count` deliveries that are available now, fewer large ones. Raises ClientError."""
        taken: list[Delivery] = []
        while self._held and len(taken) < count:
            delivery = self._held.popleft()
            if delivery.is_current:
                taken.append(delivery)
            if self.is_large:
                self._changed.set()
        empty_count = 0
        while len(taken) < count and empty_count < len(self._names) and not self.is_paused:
            # If jobs are large, few are taken together.
            wanted = min(count - len(taken), AT_A_TIME, self._fitting)
            getting = asyncio.ensure_future(self._channel.get_many(self._names[0], wanted))
            # Begin the next request with the next partition, so that all are served.
            self._names.rotate(-1)
            try:
                got = await asyncio.shield(getting)
            except BaseException:
                # The request was cancelled: requeue its deliveries.
                self._held.extendleft(reversed(taken))
                getting.add_done_callback(self._keep_all)
                raise
            taken += got
            self._largest = max([MIN_SIZE, self._largest // 2, *(len(one.body) for one in got)])
            if sum(len(one.body) for one in taken) > BYTES_AT_A_TIME:
                break
            empty_count = empty_count + 1 if len(got) < wanted else 0
        return taken

    def keep(self, delivery: Delivery) -> None:
        """Keep a delivery for the next request."""
        self._held.append(delivery)
        self._wake()

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Take back deliveries of a request that ended early: for those that wait, else for the queue."""
        for delivery in deliveries:
            self.keep(delivery)
        self._give_back()

    def _keep_all(self, getting: asyncio.Future[list[Delivery]]) -> None:
        self.put_back(() if getting.cancelled() or getting.exception() is not None else getting.result())

    def wait(self, waiter: asyncio.Future[None]) -> None:
        """Complete a future when there may be a job."""
        self._waiting[waiter] = None
        self._changed.set()
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    def leave(self, waiter: asyncio.Future[None]) -> None:
        """Stop waiting."""
        self._waiting.pop(waiter, None)
        self._changed.set()

    def tell_next(self) -> None:
        """Complete the future of the next request if there is a job that nobody has taken."""
        if self._held:
            self._wake()

    def pause_changed(self) -> None:
        """Handle a pause or resumption of the queue."""
        self._changed.set()

    async def close(self) -> None:
        """Stop consuming, and requeue deliveries that were not requested."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        self._give_back()

    async def _listen(self) -> None:
        """Keep consumers while requests wait, also for one that begins to wait while the last consumers end."""
        while self._waiting:
            await self._keep_consumers()

    async def _keep_consumers(self) -> None:
        """Keep consumers, one for each AMQP queue, until no request waits."""
        consumers: list[Consumer] = []
        try:
            while self._waiting:
                self._changed.clear()
                is_full = self._is_full
                is_over = self.is_paused or is_full or self._credit <= 0 or any(one.closed for one in consumers)
                try:
                    while consumers and is_over:
                        await consumers.pop().cancel()
                    if not consumers and not self.is_paused and not is_full:
                        self._credit = min(max(len(self._waiting), 1), MOST_PREFETCHED, self._fitting)
                        await self._channel.qos(-(-self._credit // len(self._names)))
                        await self._consume(consumers)
                except ClientError as error:
                    _log.warning("cannot consume queue %s, trying again: %s", self.queue, error)
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                await self._changed.wait()
        finally:
            for consumer in consumers:
                if consumer.closed:
                    continue
                try:
                    await consumer.cancel()
                except ClientError as error:
                    _log.debug("the consumer of %s was not cancelled; it ends with its channel: %s", self.queue, error)
            self._give_back()

    async def _consume(self, consumers: list[Consumer]) -> None:
        """Add a consumer for each AMQP queue to a list."""
        for name in tuple(self._names):
            consumer = await self._channel.consume(name, self._arrived)
            consumers.append(consumer)

    def _arrived(self, delivery: Delivery) -> None:
        self._credit -= 1
        self._held.append(delivery)
        self._largest = max(self._largest, len(delivery.body))
        self._wake()
        if self._credit <= 0 or self._is_full:
            self._changed.set()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _give_back(self) -> None:
        if self._waiting:
            return
        while self._held:
            delivery = self._held.popleft()
            if delivery.is_current:
                self._hand_back(self.queue, delivery)
