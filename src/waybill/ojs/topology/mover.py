"""Moves messages between queues of one broker without losing any."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final

from waybill.client import BasicProperties, Channel, Connection, Delivery, Inspector

WINDOW: Final = 32
IDLE_SECONDS: Final = 0.2

Progress = Callable[[int], None]
Destination = tuple[str, str]
"""Exchange and routing key."""


class Mover:
    """Moves messages from queue to queue, WINDOW at a time."""

    def __init__(self, connection: Connection, rate: float | None, on_progress: Progress | None, user: str) -> None:
        self.count = 0
        self._sent = 0
        self._connection = connection
        self._rate = rate
        self._on_progress = on_progress
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()

    async def move(
        self,
        source: str,
        destination: Callable[[Delivery], Destination],
        *,
        drops_copies: bool = False,
        arrives: bool = True,
    ) -> None:
        """Move all messages in `source`. Raises publish errors; what is not confirmed stays in `source`.

        With `arrives`, messages count as moved; otherwise they are only held.
        """
        inspector = Inspector(self._connection)
        found = await inspector.queue(source)
        if found is None or found.message_count == 0:
            return
        seen: set[bytes] = set()
        failures: list[BaseException] = []
        async with (
            await self._connection.channel(prefetch_count=WINDOW) as taking,
            await self._connection.channel(confirms=True) as publishing,
        ):
            consumer = await taking.consume(source)
            while True:
                try:
                    async with asyncio.timeout(IDLE_SECONDS):
                        delivery = await anext(consumer)
                except TimeoutError:
                    queue = await inspector.queue(source)
                    if failures or queue is None or (queue.message_count == 0 and not publishing.unconfirmed_count):
                        break
                    continue
                if failures:
                    break
                if drops_copies and _is_copy(delivery, seen):
                    delivery.ack()
                    continue
                future = self._publish(publishing, delivery, destination(delivery))
                future.add_done_callback(partial(self._settle, delivery, failures, arrives))
                if self._rate is not None:
                    self._sent += 1
                    due = self._started + self._sent / self._rate
                    await asyncio.sleep(max(0.0, due - self._loop.time()))
            await consumer.cancel()
        if failures:
            raise failures[0]

    def _publish(self, channel: Channel, delivery: Delivery, destination: Destination) -> asyncio.Future[None]:
        exchange, routing_key = destination
        return channel.publish_nowait(
            delivery.body,
            exchange=exchange,
            routing_key=routing_key,
            properties=_movable(delivery.properties, self._user),
            mandatory=True,
        )

    def _settle(
        self,
        delivery: Delivery,
        failures: list[BaseException],
        arrives: bool,  # noqa: FBT001 - bound by partial
        future: asyncio.Future[None],
    ) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            failures.append(error)
            return
        delivery.ack()
        if not arrives:
            return
        self.count += 1
        if self._on_progress is not None:
            self._on_progress(self.count)


def _is_copy(delivery: Delivery, seen: set[bytes]) -> bool:
    """Return whether this very job was moved before in this run, and note it. Messages without an id never were."""
    message_id = delivery.properties.message_id
    if not message_id:
        return False
    digest = hashlib.blake2b(message_id.encode() + b"\0" + delivery.body, digest_size=16).digest()
    if digest in seen:
        return True
    seen.add(digest)
    return False


def _movable(properties: BasicProperties, user: str) -> BasicProperties:
    """Return the same properties, without those that would route the copy elsewhere or make the broker refuse it."""
    headers = properties.headers
    if headers is not None and ("CC" in headers or "BCC" in headers):
        # RabbitMQ would also route the copy to those keys.
        properties.headers = {name: value for name, value in headers.items() if name not in {"CC", "BCC"}}
    if properties.user_id not in {None, user}:
        # The broker checks it against the login of this publisher.
        properties.user_id = None
    return properties
