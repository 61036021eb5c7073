"""Events for subscriptions that have as many open deliveries as they may: each subscription has a queue of its own."""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.backend.job_form import Form
from waybill.client import BasicProperties, Channel, Delivery
from waybill.ojs.connection.broker_connection import BrokerConnection

UNUSED_MS: Final = 30 * 86_400_000
"""A queue that no server has looked at for so long is of a subscription that was removed."""
STEP: Final = 20
TAKEN_BYTES: Final = 1024 * 1024


class Backlogs:
    """The backlogs of all subscriptions. Every method raises ClientError."""

    def __init__(self, broker: BrokerConnection, prefix: str) -> None:
        """The name of a queue is `prefix` and the id of the subscription."""
        self._broker = broker
        self._prefix = prefix
        self._channel: Channel | None = None

    async def put(self, subscription: str, event: Form) -> None:
        """Keep an event for later; returns when it is safe."""
        queue, _ = await self._declare(subscription)
        channel = await self._open_channel()
        body = msgspec.json.encode(event)
        # Mandatory: another server may have removed the queue meanwhile.
        await channel.publish(body, routing_key=queue, properties=BasicProperties(delivery_mode=2), mandatory=True)

    async def count(self, subscription: str) -> int:
        """Return the number of events."""
        return (await self._declare(subscription))[1]

    async def take(self, subscription: str, count: int) -> list[Delivery]:
        """Return up to `count` events, fewer if they are large; acknowledge each when it is a delivery."""
        channel = await self._open_channel()
        queue, waiting = await self._declare(subscription)
        found: list[Delivery] = []
        size = 0
        for start in range(0, min(count, waiting), STEP):
            some = await channel.get_many(queue, min(count - start, STEP))
            found += some
            size += sum(len(one.body) for one in some)
            if size > TAKEN_BYTES:
                break
        return found

    async def remove(self, subscription: str) -> None:
        """Drop the events of a removed subscription."""
        await (await self._open_channel()).delete_queue(self._prefix + subscription)

    async def _declare(self, subscription: str) -> tuple[str, int]:
        channel = await self._open_channel()
        queue = self._prefix + subscription
        declared = await channel.declare_queue(queue, durable=True, arguments={"x-expires": UNUSED_MS})
        return queue, declared.message_count

    async def _open_channel(self) -> Channel:
        if self._channel is None or self._channel.closed:
            self._channel = await self._broker.connection.channel()
        return self._channel
