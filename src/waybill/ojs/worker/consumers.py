"""The consumers of a worker: one prefetch budget, divided by weight, with unused shares lent to other queues.

    classic queues   a channel for each, whose limit (basic.qos with `global`) is changed while it consumes
    quorum queues    a channel for each with a fixed share: they know no limits that can be changed
    more queues than places: one channel for all, and no weights

A job must not wait here while another worker is free. A job that has not started a second after its delivery, because
longer jobs take all slots, goes back to its queue, and for a while the worker holds only as many jobs as it can run.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Mapping
from typing import Final

from waybill.client import Channel, ClientError, Consumer
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.worker.prefetch import divide, step
from waybill.ojs.worker.runner import Runner

POLL_SECONDS: Final = 0.1
STARVED_SECONDS: Final = 30.0
"""After how long without a settlement, with the prefetch used up and nothing running, a worker is not ready."""
HOLD_SECONDS: Final = 1.0
"""How long a job may wait here for a slot."""
CAREFUL_SECONDS: Final = 30.0
"""How long a worker that had to return jobs prefetches only as many as it can run."""
MEMORY: Final = 0.8
"""The weight of a queue's recent use in the next division, so that a short pause does not cost it its share."""

_log = logging.getLogger("waybill.ojs.worker")


class _Feed:
    """A channel with a prefetch limit, and the consumers on it."""

    def __init__(
        self, channel: Channel, broker: BrokerConnection, runner: Runner, *, is_global: bool, divisor: int
    ) -> None:
        """Without `is_global`, each consumer gets the limit divided by `divisor`, rounded up."""
        self.limit = 0
        self.consumers: dict[str, dict[str, Consumer]] = {}
        """By OJS queue, then by AMQP queue: more than one if it has partitions."""
        self._channel = channel
        self._broker = broker
        self._runner = runner
        self._is_global = is_global
        self._divisor = 1 if is_global else divisor

    async def set_limit(self, limit: int) -> None:
        """Change how many deliveries may be unsettled.

        A limit per consumer applies only to new consumers, so the existing ones are cancelled, to be started again.
        """
        if limit == self.limit:
            return
        await self._channel.qos(-(-limit // self._divisor), global_=self._is_global)
        self.limit = limit
        if not self._is_global:
            for queue in list(self.consumers):
                await self.leave(queue)

    async def consume(self, queue: str, arguments: dict[str, object]) -> None:
        """Start the missing consumers of a queue."""
        consumers = self.consumers.setdefault(queue, {})
        for name in self._broker.declarer.topology.job_queues(queue):
            if name not in consumers:
                receive = functools.partial(self._runner.receive, queue, source=name)
                consumers[name] = await self._channel.consume(name, receive, arguments=arguments)

    async def leave(self, queue: str) -> None:
        """Cancel the consumers of a queue. Those that fail to cancel are left for the next time."""
        consumers = self.consumers[queue]
        while consumers:
            name = next(iter(consumers))
            await consumers.pop(name).cancel()
        del self.consumers[queue]

    def has_all(self, queue: str) -> bool:
        """Return whether all AMQP queues of a queue are consumed."""
        return len(self.consumers.get(queue, ())) == len(self._broker.declarer.topology.job_queues(queue))

    def is_registered(self, queue: str) -> bool:
        """Return whether the broker knows all consumers of a queue."""
        return self.has_all(queue) and all(one.is_registered for one in self.consumers[queue].values())


class Consumers:
    """The consumers of a worker. `prefetch` is how many deliveries all of them may hold together."""

    def __init__(
        self,
        broker: BrokerConnection,
        runner: Runner,
        weights: Mapping[str, int],
        prefetch: int,
        caps: Mapping[str, int],
        timeouts_ms: Mapping[str, int],
    ) -> None:
        """`caps` limits the deliveries of individual queues. `timeouts_ms` is how long they may stay unsettled."""
        self._broker = broker
        self._runner = runner
        self._weights = dict(weights)
        self._prefetch = prefetch
        self._caps = {queue: min(prefetch, caps.get(queue, prefetch)) for queue in weights}
        self._timeouts_ms = timeouts_ms
        # The topology may have changed: without quorum queues on the broker, it uses classic ones.
        topology = broker.declarer.topology
        is_classic = topology.queue_type == "classic"
        self._partition_counts = {queue: len(topology.job_queues(queue)) for queue in weights}
        self._is_divided = 1 < len(weights) <= prefetch
        self._is_lent = self._is_divided and is_classic
        self._is_global = is_classic and sum(self._partition_counts.values()) > 1
        self._total = prefetch
        self._feeds: dict[str, _Feed] = {}
        self._wanted: list[str] = []
        self._recent: dict[str, float] = dict.fromkeys(weights, 0.0)
        self._changing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._first_waiting: object = None
        self._waits_since = 0.0
        self._careful_until = 0.0
        self._settled = 0
        self._settled_since = 0.0

    @property
    def queues(self) -> list[str]:
        """The consumed queues."""
        return [queue for queue, feed in self._feeds.items() if feed.has_all(queue)]

    @property
    def is_consuming(self) -> bool:
        """Whether there should be consumers, and the broker knows all of them."""
        due = self._due
        return bool(due) and all(self._feeds[queue].is_registered(queue) for queue in due)

    @property
    def _due(self) -> list[str]:
        """Return the queues to consume: none without free slots."""
        return self._wanted if self._total > 0 else []

    @property
    def starvation(self) -> str | None:
        """Return why no job starts or ends although the worker consumes; None if all is well.

        If a worker's prefetch is used up, nothing runs, and nothing is settled, the broker delivers nothing more. Jobs
        are settled after their events, so a broker that refuses these, as without a permission, leads to it.
        """
        refusal = self._broker.events.refusal
        if refusal is not None:
            return f"the broker refuses events, before which no job is settled: {refusal}"
        if not self._settled_since or not self._wanted:
            return None
        seconds = asyncio.get_running_loop().time() - self._settled_since
        return (
            f"no job has been settled for {seconds:.0f} s and none is running" if seconds >= STARVED_SECONDS else None
        )

    def _watch(self) -> None:
        """Note since when no delivery was settled although the prefetch is used up and nothing runs."""
        counters = self._broker.events.counters
        settled = counters.acked.total() + counters.nacked.total()
        is_full = sum(counters.unacked[queue] for queue in self._weights) >= max(1, min(self._total, self._prefetch))
        if settled != self._settled or not is_full or self._runner.active:
            self._settled, self._settled_since = settled, 0.0
        elif not self._settled_since:
            self._settled_since = asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Open the channels; nothing is consumed yet."""
        connection = self._broker.connection
        if self._is_divided:
            for queue in self._weights:
                channel = await connection.channel(coalesce_acks=True)
                self._feeds[queue] = self._feed(channel, self._partition_counts[queue])
        else:
            channel = await connection.channel(coalesce_acks=True)
            self._feeds = dict.fromkeys(self._weights, self._feed(channel, max(self._partition_counts.values())))
            if len(set(self._weights.values())) > 1:
                _log.warning(
                    "weights have no effect: %d queues share a prefetch of %d", len(self._weights), self._prefetch
                )
        await self._set_limits(self._allocate(dict.fromkeys(self._weights, self._prefetch)))
        self._looking = asyncio.get_running_loop().create_task(self._look_now_and_then())

    async def close(self) -> None:
        """Stop adjusting the limits."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def consume(self, queues: Collection[str]) -> None:
        """Consume these queues and no others."""
        self._wanted = list(queues)
        await self._adjust()

    async def _adjust(self) -> None:
        async with self._changing:
            wanted = self._due
            for queue, feed in self._feeds.items():
                if queue in feed.consumers and queue not in wanted:
                    await feed.leave(queue)
                elif queue in wanted and not feed.has_all(queue):
                    timeout_ms = self._timeouts_ms.get(queue)
                    await feed.consume(queue, {} if timeout_ms is None else {"x-consumer-timeout": timeout_ms})

    # --- limits ---

    def _feed(self, channel: Channel, divisor: int) -> _Feed:
        return _Feed(channel, self._broker, self._runner, is_global=self._is_global, divisor=divisor)

    def _allocate(self, demands: Mapping[str, int]) -> dict[str, int]:
        count = len(self._weights)
        if self._is_divided:
            return divide(max(self._total, count), self._weights, demands, self._caps)
        if count == 1:
            return {queue: min(self._total, cap) for queue, cap in self._caps.items()}
        return dict.fromkeys(self._weights, self._total if self._is_global else max(1, self._total // count))

    async def _set_limits(self, limits: Mapping[str, int]) -> None:
        async with self._changing:
            for queue, feed in self._feeds.items():
                await feed.set_limit(limits[queue])

    async def _look_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS if self._is_lent else HOLD_SECONDS / 2)
            self._watch()
            if not self._broker.connection.is_open:
                continue
            try:
                await self._look()
            except ClientError as error:
                _log.debug("the prefetch limits could not be changed: %s", error)
            except Exception:  # noqa: BLE001 - without this look, places that come back are never used again
                _log.exception("the prefetch limits could not be changed")

    async def _look(self) -> None:
        await self._fit()
        # Start consumers that a lost connection has prevented.
        await self._adjust()
        if self._is_lent and self._total > 0:
            held = {queue: self._broker.events.counters.unacked[queue] for queue in self._weights}
            demands = {queue: self._demand(queue, count) for queue, count in held.items()}
            limits = {queue: feed.limit for queue, feed in self._feeds.items()}
            await self._set_limits(step(limits, held, self._allocate(demands), self._total))

    def _demand(self, queue: str, held: int) -> int:
        """Return how much of the prefetch a queue could use: all if its share is used up, else one more than lately."""
        self._recent[queue] = max(held, self._recent[queue] * MEMORY)
        return self._prefetch if held >= self._feeds[queue].limit else int(self._recent[queue]) + 1

    async def _fit(self) -> None:
        """Reduce the prefetch to what can run, if slots are lost or jobs have waited too long."""
        now = asyncio.get_running_loop().time()
        runner = self._runner
        if runner.first_waiting is not self._first_waiting:
            self._first_waiting, self._waits_since = runner.first_waiting, now
        is_stuck = self._first_waiting is not None and now - self._waits_since >= HOLD_SECONDS
        if is_stuck:
            self._careful_until = now + CAREFUL_SECONDS
        is_careful = bool(runner.lost) or now < self._careful_until
        total = max(0, min(self._prefetch, runner.room)) if is_careful else self._prefetch
        if total != self._total:
            _log.info("prefetch is now %d jobs, was %d", total, self._total)
            if total > 0:
                self._total = total
                await self._set_limits(self._allocate(dict.fromkeys(self._weights, self._prefetch)))
            self._total = total
            await self._adjust()
        if is_stuck or runner.room <= 0:
            # Only after the limits are lower, or the jobs would come back.
            runner.hand_back_waiting()
