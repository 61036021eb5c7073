"""The consumers of one channel: which are registered at the broker, and when to register the others again."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from waybill.client.consumer import Consumer
from waybill.client.errors import ChannelClosed, ClientError, ConnectionClosed, ConnectionLost
from waybill.client.hosts import ChannelHost, ChannelOwner, ConsumerHost
from waybill.client.requests import ask, ignore, request_of
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicConsume

log: Final = logging.getLogger("waybill.client")


class Consumers(ConsumerHost):
    """Registers consumers and, after the broker has ended some, registers them again."""

    def __init__(self, connection: ChannelHost, channel: ChannelOwner) -> None:
        self._connection = connection
        self._channel = channel
        self._all: dict[str, Consumer] = {}
        self._registered: set[str] = set()
        self._starting: set[str] = set()
        """Consumers whose `start` has not returned: it registers them itself, once the connection is open."""
        self._last_number = 0
        self._restoring: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def new_tag(self) -> str:
        """A consumer tag that the channel has not used."""
        self._last_number += 1
        return f"ctag-{self._last_number}"

    async def start(self, consumer: Consumer) -> None:
        """Register a new consumer. Raises the broker's error, or ValueError if its tag is in use."""
        tag = consumer.consumer_tag
        if tag in self._all:
            raise ValueError(f"the channel already has a consumer {tag!r}")
        self._all[tag] = consumer
        self._starting.add(tag)
        try:
            await self._connection.wait_ready()
            await self._register(consumer, self._channel.open_now())
        except BaseException:
            self._all.pop(tag, None)
            consumer.end(None)
            raise
        finally:
            self._starting.discard(tag)

    async def restore(self, channel: ClientChannel) -> None:
        """Register all consumers on a reopened channel. Raises ClientError."""
        for tag, consumer in list(self._all.items()):
            if self._is_missing(tag):
                await self._register(consumer, channel)

    def end_all(self, error: Exception | None) -> None:
        """The channel is closed for good, by the program (None) or with its connection."""
        if self._restoring is not None:
            self._restoring.cancel()
        for consumer in list(self._all.values()):
            consumer.end(error)
        self._all.clear()

    def channel_gone(self) -> None:
        """The engine's channel is closed, and the broker has requeued unsettled deliveries."""
        self._registered.clear()
        for consumer in self._all.values():
            consumer.hand_back()

    def cancelled(self, consumer_tag: str) -> None:
        """The broker has cancelled a consumer."""
        self._registered.discard(consumer_tag)
        consumer = self._all.get(consumer_tag)
        if consumer is not None:
            log.warning("the broker cancelled the consumer %s of queue %s", consumer_tag, consumer.queue)
            self._connection.consumer_cancellations += 1
            self.restore_later()

    def restore_later(self) -> None:
        """Start a task that registers missing consumers."""
        if self._restoring is None or self._restoring.done():
            self._restoring = self._connection.spawn(self._restore_missing())

    # For the consumers

    def check_loop(self) -> None:
        self._channel.check_loop()

    def has_registered(self, consumer_tag: str) -> bool:
        return self._channel.present() is not None and consumer_tag in self._registered

    async def cancel_consumer(self, consumer_tag: str) -> None:
        self.check_loop()
        self._all.pop(consumer_tag, None)
        channel = self._channel.present()
        if channel is None or consumer_tag not in self._registered:
            return
        self._registered.discard(consumer_tag)
        try:
            await ask(request_of(channel, BasicCancel(consumer_tag)), self._connection.request_timeout_s)
        except (ChannelClosed, ConnectionLost, ConnectionClosed):
            return  # The consumer has ended with its channel.

    # Helpers

    async def _register(self, consumer: Consumer, channel: ClientChannel) -> None:
        tag = consumer.consumer_tag
        method = BasicConsume(
            self._connection.declarations.current_name(consumer.queue),
            tag,
            no_ack=consumer.no_ack,
            exclusive=consumer.exclusive,
            arguments=consumer.arguments,
        )

        def send(reply: Callable[[Reply], None]) -> None:
            channel.consume(method, consumer.callback, reply)

        def cancel(_reply: Reply) -> None:
            self._registered.discard(tag)
            channel.request(BasicCancel(tag), ignore)

        self._registered.add(tag)
        try:
            await ask(send, self._connection.request_timeout_s, on_orphan=cancel)
        except Exception:
            self._registered.discard(tag)
            raise

    def _is_missing(self, consumer_tag: str) -> bool:
        """Whether a consumer is not registered, and nothing is about to register it."""
        return consumer_tag in self._all and consumer_tag not in self._registered and consumer_tag not in self._starting

    async def _restore_missing(self) -> None:
        """Register consumers again that the broker has cancelled, with growing delays."""
        policy = self._connection.policy
        attempt, delay_s = 1, policy.delay_s(1)
        while any(self._is_missing(tag) for tag in self._all):
            await asyncio.sleep(delay_s)
            attempt += 1
            delay_s = policy.delay_s(attempt)
            for tag, consumer in list(self._all.items()):
                if not self._is_missing(tag):
                    continue
                try:
                    await self._connection.wait_ready()
                    # Check on another channel first: a missing queue must not close the channel of the other consumers.
                    await self._connection.restore_queue(consumer.queue)
                    if self._is_missing(tag):
                        await self._register(consumer, self._channel.open_now())
                except ConnectionClosed:
                    return
                except ClientError as error:
                    text = "could not re-register the consumer %s of %s, trying again in %.1f s: %s"
                    log.warning(text, tag, consumer.queue, delay_s, error)
