"""Publishes copies of delivered jobs: the next attempt, a postponed attempt, or a dead letter."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from waybill.client import (
    ChannelClosed,
    ClientError,
    ConnectionClosed,
    ConnectionLost,
    Delivery,
    MessageNacked,
    MessageReturned,
    PublishTimeout,
    RequestTimeout,
)
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import TopologyConflict
from waybill.ojs.spec.headers import republish_properties
from waybill.ojs.spec.retry import retry_bucket_ms
from waybill.ojs.topology import delay_ladder

MAX_REFUSALS: Final = 5
"""How often the broker may refuse the next attempt of a job before the job becomes a dead letter."""
MAX_REPUBLISH_WAIT_SECONDS: Final = 60.0
UNCONFIRMED: Final = (RequestTimeout, PublishTimeout)
"""The broker is slow, or a queue has no leader. That is no reason to give a job up, however long it takes."""

_log = logging.getLogger("waybill.ojs.worker")


class Republisher:
    """Publishes over one connection."""

    def __init__(self, broker: BrokerConnection, *, is_exact: bool = False) -> None:
        """With `is_exact`, a delay is rounded up to a second, not to the next retry queue, and 0 means no delay."""
        self._broker = broker
        self._is_exact = is_exact
        self._counters = broker.events.counters

    async def republish(
        self,
        delivery: Delivery,
        queue: str,
        body: bytes,
        headers: dict[str, object],
        delay: float | None,
        *,
        dead: bool = False,
    ) -> bool:
        """Publish a copy that arrives in `queue` after `delay` seconds, None for now, until the broker confirms it.

        With `dead`, it goes to the dead letter queue. Returns False if the connection is lost: the original then
        returns to the queue, so a copy would be a duplicate. Retry queues end at 300 s; longer delays use the delay
        ladder. A copy without a confirm is published again, so it may arrive twice; the alternative is to lose it.
        """
        pause_seconds, refusals = 1.0, 0
        loop = asyncio.get_running_loop()
        while delivery.is_current:
            published_at = loop.time()
            try:
                published_at = await self._publish(delivery, queue, body, headers, delay, dead=dead)
            except (ConnectionLost, ConnectionClosed):
                return False
            except (ChannelClosed, TopologyConflict, MessageReturned, MessageNacked, *UNCONFIRMED) as error:
                if isinstance(error, ChannelClosed | TopologyConflict):
                    refusals += 1
                    if refusals >= MAX_REFUSALS:
                        raise
                self._note_refusal(queue, pause_seconds, error)
            else:
                self._counters.published[queue] += 1
                self._counters.confirm_latency.add(loop.time() - published_at)
                return True
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(pause_seconds * 2, MAX_REPUBLISH_WAIT_SECONDS)
        return False

    def wait_seconds(self, delay: float) -> float:
        """Return how long a copy with this delay really waits."""
        if self._is_exact and delay <= 0:
            return 0.0
        bucket_ms = self._bucket_ms(delay)
        return bucket_ms / 1000 if bucket_ms is not None else delay_ladder.whole_seconds(delay)

    def _bucket_ms(self, delay: float) -> int | None:
        """Return the delay of the retry queue to use, None for the delay ladder."""
        bucket_ms = retry_bucket_ms(delay)
        if self._is_exact and bucket_ms is not None and bucket_ms > delay_ladder.whole_seconds(delay) * 1000:
            return None
        return bucket_ms

    async def _publish(
        self,
        delivery: Delivery,
        queue: str,
        body: bytes,
        headers: dict[str, object],
        delay: float | None,
        *,
        dead: bool,
    ) -> float:
        """Publish once; return when that started."""
        topology = self._broker.declarer.topology
        exchange, key = topology.dead_letter_exchange if dead else topology.direct, queue
        if delay is not None and (delay > 0 or not self._is_exact):
            exchange, key, waiting = await self._place_to_wait(queue, delay)
            headers = headers | waiting
        published_at = asyncio.get_running_loop().time()
        await self._broker.publishing.publish(
            body,
            exchange=exchange,
            routing_key=key,
            properties=republish_properties(delivery.properties, headers),
            mandatory=True,
        )
        return published_at

    def _note_refusal(self, queue: str, pause_seconds: float, error: ClientError | TopologyConflict) -> None:
        if isinstance(error, MessageReturned):
            self._counters.returned += 1
            _log.warning("no queue is bound for a job of %s: declaring the queue again", queue)
            self._broker.declarer.forget_queue(queue)
        elif isinstance(error, MessageNacked):
            _log.warning("the broker refused a job of %s, trying again in %g s", queue, pause_seconds)
        elif isinstance(error, UNCONFIRMED):
            _log.warning("a job of %s is published again in %g s: %s", queue, pause_seconds, error)
        else:
            text = "a job of %s cannot be published, trying again in %g s: %s"
            _log.warning(text, queue, pause_seconds, error)

    async def _place_to_wait(self, queue: str, delay: float) -> tuple[str, str, dict[str, object]]:
        """Return the exchange, the key and the headers that deliver a message to `queue` after a delay."""
        declarer = self._broker.declarer
        topology = declarer.topology
        bucket_ms = self._bucket_ms(delay)
        if bucket_ms is not None:
            await declarer.ensure_retry(queue, bucket_ms)
            return topology.retry, topology.retry_key(queue, bucket_ms), {}
        await declarer.ensure_schedule(queue)
        return topology.schedule_address(queue, delay)
