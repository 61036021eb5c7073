"""Bulk publishing: many publishes await their confirms at the same time."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from waybill.client.errors import ClientError
from waybill.client.hosts import PublishingHost
from waybill.client.ranges import check_whole
from waybill.wire.amqp091.properties import BasicProperties

WINDOW: Final = 1000
MAX_WINDOW: Final = 1_000_000
DRAIN_EVERY: Final = 100

log: Final = logging.getLogger("waybill.client")


class Confirmation:
    """Replaces a future where a callback must run immediately, not in the next turn of the loop."""

    def __init__(self, tell: Callable[[BaseException | None], object]) -> None:
        """`tell` is called once, with the error if there is one."""
        self._tell = tell
        self._is_over = False

    def done(self) -> bool:
        """Return whether it is done."""
        return self._is_over

    def set_result(self, _: None) -> None:
        """The broker has confirmed."""
        self.set_exception(None)

    def set_exception(self, error: BaseException | None) -> None:
        """It was refused, or its outcome is unknown."""
        self._is_over = True
        try:
            self._tell(error)
        except Exception:
            # It would end the connection, which others use.
            log.exception("a callback for a confirm failed")


Publish = tuple[Confirmation, bytes, str, BasicProperties | bytes | None]
"""What is told of the confirm, a body, a routing key, and properties."""


@dataclass(frozen=True)
class OutgoingMessage:
    """The arguments of `Channel.publish`, as a value."""

    body: bytes
    routing_key: str = ""
    exchange: str = ""
    properties: BasicProperties | bytes | None = None
    mandatory: bool = False


@dataclass(frozen=True)
class Unpublished:
    """A message that was not published, or whose outcome is unknown (ConnectionLost), and why."""

    message: OutgoingMessage
    error: ClientError


def bytes_of(body: object) -> bytes:
    """Return the body of a message as bytes. Raises TypeError for what has no bytes."""
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    raise TypeError(f"a message body must be bytes, not {type(body).__name__}")


async def publish_all(
    channel: PublishingHost, messages: Iterable[OutgoingMessage | bytes], kind: OutgoingMessage, window: int
) -> list[Unpublished]:
    """See `Channel.publish_many`. `kind`: how to publish a plain body."""
    check_whole("window", window, 1, MAX_WINDOW)
    failures: list[Unpublished] = []
    waiting: deque[tuple[OutgoingMessage, asyncio.Future[None]]] = deque()

    async def settle() -> None:
        message, future = waiting.popleft()
        try:
            await future
        except ClientError as error:
            failures.append(Unpublished(message, error))

    for index, given in enumerate(messages):
        if index % DRAIN_EVERY == 0:
            await channel.drain()
        message = given if isinstance(given, OutgoingMessage) else _of_kind(kind, given)
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


def _of_kind(kind: OutgoingMessage, body: bytes) -> OutgoingMessage:
    return OutgoingMessage(body, kind.routing_key, kind.exchange, kind.properties, kind.mandatory)
