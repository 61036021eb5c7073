"""Permits in queues, which limit jobs across all workers, on any broker, without another server.

A key has `count` permits, each a message. A worker holds one unacknowledged for each job, so a crash returns it:

    ojs.permit.{key}  --consume, hold-->  worker  --nack with requeue-->  ojs.permit.{key}

For a rate, a used permit passes through a queue whose time to live is the period, so at most `count` jobs start in any
period (a sliding window). The broker moves it, by dead lettering, so no permit is lost or duplicated:

    ojs.rate.{key}  --consume-->  worker  --nack-->  ojs.rate.{key}.used  --after the period-->  ojs.rate.{key}

The first worker that needs the permits creates them. It holds a lock meanwhile (an exclusive queue), and leaves a
marker with their number and their generation, a timestamp. Workers discard permits of older generations, so after a
crash during creation, or with another `count`, all permits are created again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from waybill.client import BasicProperties, Channel, Delivery, NotFound, ResourceLocked
from waybill.client.ranges import check_number, check_whole
from waybill.ojs.client import Jobs
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.spec.headers import PERSISTENT
from waybill.ojs.spec.rate_limit import check_key
from waybill.ojs.topology.topology import Declaration

LOCK_PAUSE_SECONDS: Final = 0.02
LOCK_LIFE_MS: Final = 10_000
IDLE_LIFE_MS: Final = 24 * 3600 * 1000
"""The permits of a key that is unused for this time are deleted, and created again when needed."""

_log = logging.getLogger("waybill.ojs.permits")


class Marker(msgspec.Struct, frozen=True):
    """The number of permits, and when they were created, in Unix milliseconds."""

    generation: int
    count: int


_markers: Final = msgspec.json.Decoder(Marker)


class Permit:
    """The right to run one job."""

    def __init__(self, delivery: Delivery, *, is_used_up: bool) -> None:
        """Made by `PermitPool.acquire`. A used permit of a rate is passing through the period already."""
        self._delivery = delivery
        if is_used_up:
            delivery.nack(requeue=False)

    def release(self) -> None:
        """Return the permit. Does nothing for a used one, or if the connection is lost."""
        self._delivery.nack(requeue=True)


def check_limit(count: int, period_seconds: float | None) -> None:
    """Raise ValueError for a count or a period that is out of range."""
    check_whole("the count of a limit", count, 1, 1_000_000)
    check_number("the period of a limit in seconds", period_seconds, 0.001, 31_536_000)


class PermitPool:
    """The permits of one key, for the jobs of one process."""

    def __init__(self, jobs: Jobs, key: str, count: int, *, period_seconds: float | None = None) -> None:
        """`count` jobs may run at the same time; with a period, start in each period. Raises InvalidJob, ValueError."""
        check_key(key)
        check_limit(count, period_seconds)
        self._jobs = jobs
        self._count = count
        self._period_ms = None if period_seconds is None else max(1, round(period_seconds * 1000))
        kind = "permit" if period_seconds is None else f"rate.{self._period_ms}"
        self._name = f"{jobs.topology.prefix}ojs.{kind}.{key}"
        self._broker: BrokerConnection | None = None
        self._channel: Channel | None = None
        self._generation = 0
        self._preparing = asyncio.Lock()
        self._cancelling: set[asyncio.Task[None]] = set()

    async def acquire(self, timeout_seconds: float) -> Permit:
        """Wait for a permit. Raises TimeoutError if none is free in time, and the errors of the connection."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                channel = await self._ready()
                try:
                    return await self._take(channel)
                except NotFound:
                    # The queue was deleted because it was unused.
                    self._broker = None

    async def take_now(self) -> Permit | None:
        """Return a permit if one is free, else None. Raises the errors of the connection."""
        while True:
            channel = await self._ready()
            try:
                delivery = await channel.get(self._name)
            except NotFound:
                self._broker = None
                continue
            if delivery is None:
                return None
            generation = _generation(delivery)
            if generation >= self._generation:
                self._generation = generation
                return Permit(delivery, is_used_up=self._period_ms is not None)
            delivery.ack()

    @property
    def name(self) -> str:
        """The queue of the permits."""
        return self._name

    async def _take(self, channel: Channel) -> Permit:
        granted: asyncio.Future[Delivery] = asyncio.get_running_loop().create_future()

        def receive(delivery: Delivery) -> None:
            generation = _generation(delivery)
            if generation < self._generation:
                delivery.ack()
            elif granted.done():
                delivery.nack(requeue=True)
            else:
                self._generation = generation
                granted.set_result(delivery)

        consumer = await channel.consume(self._name, receive)
        try:
            delivery = await granted
        except BaseException:
            granted.cancel()
            if granted.done() and not granted.cancelled():
                granted.result().nack(requeue=True)
            raise
        finally:
            self._spawn(consumer.cancel())
        return Permit(delivery, is_used_up=self._period_ms is not None)

    # --- making permits ---

    async def _ready(self) -> Channel:
        """Return the channel for consuming; creates the permits if they do not exist."""
        broker = await self._jobs.broker_connection()
        async with self._preparing:
            if self._channel is None or broker is not self._broker:
                if broker.declarer.topology.declaration is not Declaration.NEVER:
                    await self._prepare(broker)
                # One for each consumer, held until it is released.
                self._channel = await broker.connection.channel(prefetch_count=1)
                self._broker = broker
            return self._channel

    async def _prepare(self, broker: BrokerConnection) -> None:
        async with await broker.connection.channel(confirms=True) as channel:
            lock = f"{self._name}.lock"
            while True:
                try:
                    await channel.declare_queue(lock, exclusive=True, arguments={"x-expires": LOCK_LIFE_MS})
                    break
                except ResourceLocked:
                    await asyncio.sleep(LOCK_PAUSE_SECONDS)
            try:
                await self._make(channel)
            finally:
                await channel.delete_queue(lock)

    async def _make(self, channel: Channel) -> None:
        """Declare the queues, and create missing permits."""
        there = await _exists(channel, self._name)
        arguments: dict[str, object] = {"x-expires": IDLE_LIFE_MS}
        if self._period_ms is not None:
            used = f"{self._name}.used"
            back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._name}
            # It must live longer than the permits in it.
            life = {"x-expires": IDLE_LIFE_MS + self._period_ms}
            await channel.declare_queue(
                used, durable=True, arguments={**back, **life, "x-message-ttl": self._period_ms}
            )
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": used}
        await channel.declare_queue(self._name, durable=True, arguments=arguments)
        marker_queue = f"{self._name}.count"
        await channel.declare_queue(
            marker_queue, durable=True, arguments={"x-max-length": 1, "x-expires": IDLE_LIFE_MS * 2}
        )
        found = await channel.get(marker_queue)
        marker = None if found is None else _markers.decode(found.body)
        if there and marker is not None and found is not None and marker.count == self._count:
            found.nack(requeue=True)
            self._generation = marker.generation
            return
        before = 0 if marker is None else marker.generation
        generation = max(int(time.time() * 1000), before + 1)
        body = msgspec.json.encode(Marker(generation, self._count))
        properties = BasicProperties(content_type="application/json", delivery_mode=PERSISTENT)
        publishes = [
            channel.publish_nowait(body, routing_key=name, properties=properties, mandatory=True)
            # The marker is last: without it, the creation starts again.
            for name in [*[self._name] * self._count, marker_queue]
        ]
        await asyncio.gather(*publishes)
        if found is not None:
            found.ack()
        self._generation = generation
        _log.info("created %d permits of %s", self._count, self._name)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._cancelling.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._cancelling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A lost channel or connection also ends the consumer.
            _log.debug("a consumer of %s could not be cancelled: %r", self._name, error)


def _generation(delivery: Delivery) -> int:
    try:
        return _markers.decode(delivery.body).generation
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return -1


async def _exists(channel: Channel, queue: str) -> bool:
    try:
        await channel.declare_queue(queue, passive=True)
    except NotFound:
        return False
    return True
