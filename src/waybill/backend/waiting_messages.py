"""Looks through the messages that wait in an AMQP queue for the jobs of some ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from waybill.client import Delivery, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.push.outgoing import forget
from waybill.ojs.spec.headers import requeue_properties

AT_A_TIME: Final = 500


class WaitingMessage(msgspec.Struct):
    """The fields that are read from the message of a job."""

    id: str
    type: str = ""
    state: str | None = None
    priority: int = 0
    enqueued_at: str | None = None
    scheduled_at: str | None = None


Take = Callable[[Delivery, WaitingMessage], Awaitable[bool]]
"""Takes a message that was found; returns whether it has settled it."""


async def find_waiting(
    broker: BrokerConnection, queue: str, name: str, missing: set[str], most: int, take: Take
) -> bool:
    """Show the jobs among `missing` that `name`, an AMQP queue of `queue`, has to `take`; remove them from the set.

    False if it has more than `most` messages: then none is looked at. All that are not settled are published again, in
    their order: a message that is only requeued would be redelivered with the flag, and a worker would have to count an
    attempt that never ran. If the connection is lost before, they return to their places, with the flag.
    """
    found = await Inspector(broker.connection).queue(name)
    if found is None or found.message_count == 0:
        return True
    if found.message_count > most:
        return False
    held: dict[Delivery, None] = {}
    async with await broker.connection.channel() as channel:
        try:
            while len(held) < most and (deliveries := await channel.get_many(name, AT_A_TIME)):
                held |= dict.fromkeys(deliveries)
            for delivery in [*held]:
                message = _read(delivery)
                if message is not None and message.id in missing:
                    if await take(delivery, message):
                        del held[delivery]
                    missing.discard(message.id)
            await _publish_again(broker, queue, held)
        finally:
            # Newest first: each returns to the head of the queue, unless the broker restores its position anyway.
            for delivery in reversed(held):
                delivery.nack()
    return True


async def _publish_again(broker: BrokerConnection, queue: str, held: dict[Delivery, None]) -> None:
    """Publish messages again and acknowledge them: each one that is safe is removed from `held`. Raises ClientError.

    Those that had the flag before keep it.
    """
    publishing, exchange = broker.publishing, broker.declarer.topology.direct
    futures: list[asyncio.Future[None]] = []
    plain = [delivery for delivery in held if not delivery.redelivered]
    try:
        for delivery in plain:
            properties = requeue_properties(delivery.properties)
            futures.append(
                publishing.publish_nowait(
                    delivery.body, exchange=exchange, routing_key=queue, properties=properties, mandatory=True
                )
            )
            if not len(futures) % AT_A_TIME:
                await publishing.drain()
        for delivery, future in zip(plain, futures, strict=True):
            await future
            delivery.ack()
            del held[delivery]
    finally:
        forget(futures)


def _read(delivery: Delivery) -> WaitingMessage | None:
    try:
        return msgspec.json.decode(delivery.body, type=WaitingMessage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
