"""Many publishes at the speed of the broker, not of its answers."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from waybill.client.errors import ClientError
from waybill.client.hosts import Publisher
from waybill.client.ranges import check_whole
from waybill.wire.amqp091.properties import BasicProperties

WINDOW: Final = 1000
MAX_WINDOW: Final = 1_000_000
DRAIN_EVERY: Final = 100


@dataclass(frozen=True)
class OutgoingMessage:
    """What `Channel.publish` takes, as a value."""

    body: bytes
    routing_key: str = ""
    exchange: str = ""
    properties: BasicProperties | bytes | None = None
    mandatory: bool = False


@dataclass(frozen=True)
class Unpublished:
    """A message that was not published, or whose fate is unknown (ConnectionLost), and why."""

    message: OutgoingMessage
    error: ClientError


async def publish_all(
    channel: Publisher, messages: Iterable[OutgoingMessage], *, window: int = WINDOW
) -> list[Unpublished]:
    """Publish in order, with at most `window` confirms awaited at a time; the messages that failed, in order.

    An iterable is read as it goes: it need not fit into memory. Raises ConnectionClosed, or EncodeError for a message
    that AMQP cannot express; those before it are on their way then.
    """
    check_whole("window", window, 1, MAX_WINDOW)
    failures: list[Unpublished] = []
    waiting: deque[tuple[OutgoingMessage, asyncio.Future[None]]] = deque()

    async def settle() -> None:
        message, future = waiting.popleft()
        try:
            await future
        except ClientError as error:
            failures.append(Unpublished(message, error))

    for index, message in enumerate(messages):
        if index % DRAIN_EVERY == 0:
            await channel.drain()
        future = channel.publish_nowait(
            message.body,
            exchange=message.exchange,
            routing_key=message.routing_key,
            properties=message.properties,
            mandatory=message.mandatory,
        )
        waiting.append((message, future))
        if len(waiting) >= window:
            await settle()
    while waiting:
        await settle()
    return failures
