"""The interfaces that channels need of their connection, and consumers of their channel. They avoid import cycles."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from waybill.client.declarations import Declarations
from waybill.client.reconnect import ReconnectPolicy
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.wire.amqp091.properties import BasicProperties


class ChannelHost:
    """The connection of a channel."""

    policy: ReconnectPolicy
    declarations: Declarations
    request_timeout_s: float | None
    """How long a request may wait for its answer, None for ever."""
    blocked_timeout_s: float | None
    """How long a publish may wait while publishing is paused, None for ever."""
    consumer_cancellations: int
    """How many consumers the broker has cancelled."""

    @property
    def flowing(self) -> bool:
        """Whether publishing may continue: open, not blocked, and the output buffer not full."""
        raise NotImplementedError

    async def wait_ready(self) -> None:
        """Return when the connection is open and restored. Raises ConnectionClosed if it never will be."""
        raise NotImplementedError

    def require_ready(self) -> None:
        """Raise ConnectionLost or ConnectionClosed unless the connection is open and restored."""
        raise NotImplementedError

    async def wait_flowing(self) -> None:
        """Wait until publishing may continue. Raises ConnectionClosed if it never will."""
        raise NotImplementedError

    def open_engine_channel(self, events: ChannelEvents, *, coalesce_acks: bool) -> ClientChannel:
        """Open a channel on the present socket. Raises ConnectionLost, ConnectionClosed or ChannelLimitReached."""
        raise NotImplementedError

    def forget_channel(self, channel: ChannelEvents) -> None:
        """Do not restore this channel after a reconnect."""
        raise NotImplementedError

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a task that ends with the connection."""
        raise NotImplementedError

    async def restore_queue(self, name: str) -> None:
        """Repeat the declarations of a queue and its bindings; if this connection made none, check that it exists.

        Raises ChannelClosed or ConnectionLost; no open channel is affected.
        """
        raise NotImplementedError


class ConsumerHost:
    """The channel of a consumer."""

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the channel's."""
        raise NotImplementedError

    def has_registered(self, consumer_tag: str) -> bool:
        """Whether a consumer is registered at the broker at this moment."""
        raise NotImplementedError

    async def cancel_consumer(self, consumer_tag: str) -> None:
        """Cancel a consumer at the broker."""
        raise NotImplementedError


class PublishingHost:
    """The channel that `publish_all` uses."""

    async def drain(self) -> None:
        """Wait until publishing may continue."""
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
    """The channel of a set of consumers."""

    def check_loop(self) -> None:
        """Raise WrongEventLoop unless the running loop is the channel's."""
        raise NotImplementedError

    def present(self) -> ClientChannel | None:
        """The engine's channel if it is open at this moment."""
        raise NotImplementedError

    def open_now(self) -> ClientChannel:
        """The engine's channel, opened if necessary. Raises ConnectionLost, ConnectionClosed or ChannelClosed."""
        raise NotImplementedError
