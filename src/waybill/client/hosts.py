"""What channels need of their connection and consumers of their channel, so that neither imports its maker."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from waybill.client.declarations import Declarations
from waybill.client.reconnect import ReconnectPolicy
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.wire.amqp091.properties import BasicProperties


class ChannelHost:
    """A connection, as far as its channels know it."""

    policy: ReconnectPolicy
    declarations: Declarations
    request_timeout_s: float | None
    """How long a request may stay without an answer, None for ever."""
    blocked_timeout_s: float | None
    """How long a publish may wait while publishing is held back, None for ever."""
    consumer_cancellations: int
    """How many consumers the broker has cancelled."""

    @property
    def flowing(self) -> bool:
        """Whether publishing is welcome: open, not blocked, and the transport not above its high-water mark."""
        raise NotImplementedError

    async def wait_ready(self) -> None:
        """Return when the connection is open and restored. Raises ConnectionClosed if it never will be."""
        raise NotImplementedError

    def require_ready(self) -> None:
        """Raise ConnectionLost or ConnectionClosed unless the connection is open and restored."""
        raise NotImplementedError

    async def wait_flowing(self) -> None:
        """Return when publishing is welcome. Raises ConnectionClosed if it never will be."""
        raise NotImplementedError

    def open_engine_channel(self, events: ChannelEvents, *, coalesce_acks: bool) -> ClientChannel:
        """A channel on the present socket. Raises ConnectionLost, ConnectionClosed or ChannelLimitReached."""
        raise NotImplementedError

    def forget_channel(self, channel: ChannelEvents) -> None:
        """Do not restore this channel after a reconnect."""
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the connection."""
        raise NotImplementedError

    async def restore_queue(self, name: str) -> None:
        """Declare a queue and its bindings again if this connection once did; else see that it exists.

        Raises ChannelClosed or ConnectionLost; no open channel suffers.
        """
        raise NotImplementedError


class ConsumerHost:
    """A channel, as far as its consumers know it."""

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the channel's."""
        raise NotImplementedError

    def has_registered(self, consumer_tag: str) -> bool:
        """Whether the broker knows of a consumer at this moment."""
        raise NotImplementedError

    async def cancel_consumer(self, consumer_tag: str) -> None:
        """Take a consumer off the broker."""
        raise NotImplementedError


class Publisher:
    """A channel, as far as `publish_all` knows it."""

    async def drain(self) -> None:
        """Return when publishing is welcome."""
        raise NotImplementedError

    def publish_nowait(
        self,
        body: bytes,
        *,
        exchange: str = "",
        routing_key: str = "",
        properties: BasicProperties | bytes | None = None,
        mandatory: bool = False,
    ) -> asyncio.Future[None]:
        """Publish without waiting; the future is done when the broker has confirmed."""
        raise NotImplementedError


class ChannelOwner:
    """A channel, as far as its set of consumers knows it."""

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the channel's."""
        raise NotImplementedError

    def present(self) -> ClientChannel | None:
        """The engine's channel if it stands at this moment."""
        raise NotImplementedError

    def open_now(self) -> ClientChannel:
        """The engine's channel, opened if need be. Raises ConnectionLost, ConnectionClosed or ChannelClosed."""
        raise NotImplementedError
