"""A channel that ends with its socket: nothing on it is repeated after a reconnect."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar, cast

from waybill.client.errors import error_of
from waybill.client.requests import ask, ask_many, ignore, request_of
from waybill.client.restoration import side_channel
from waybill.client.socket_connection import SocketConnection
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicGet
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueDeclare, QueueDeclareOk, QueueDelete, QueueUnbind
from waybill.wire.amqp091.methods_tx import TxCommit, TxSelect
from waybill.wire.amqp091.properties import BasicProperties

AT_ONCE: Final = 32
"""How many messages `in_portions` asks for before it has seen the first of them."""
T = TypeVar("T")


async def in_portions(
    take: Callable[[int], Awaitable[list[T]]], count: int, octets: int, size_of: Callable[[T], int]
) -> list[T]:
    """Take up to `count` messages, until there are no more, or they have `octets`: in portions.

    Nobody knows how large the next ones are. `take` returns up to as many as it is told.
    """
    found: list[T] = []
    while len(found) < count and octets > 0:
        wanted = min(count - len(found), AT_ONCE)
        portion = await take(wanted)
        found += portion
        octets -= sum(map(size_of, portion))
        if len(portion) < wanted:
            break
    return found


class _Returns(ChannelEvents):
    def __init__(self) -> None:
        self.messages: list[ReturnedMessage] = []

    def returned(self, token: object | None, message: ReturnedMessage) -> None:
        self.messages.append(message)


class SideChannel:
    """Made by `Connection.side_channel`. Its methods raise ConnectionLost once its socket has ended."""

    def __init__(
        self, socket: SocketConnection, channel: ClientChannel, timeout_s: float | None, returns: _Returns
    ) -> None:
        self._socket = socket
        self._channel = channel
        self._timeout_s = timeout_s
        self._returns = returns

    @property
    def returned(self) -> list[ReturnedMessage]:
        """The mandatory messages that no queue has taken so far."""
        return self._returns.messages

    async def declare_queue(self, queue: str, *, durable: bool = False, exclusive: bool = False) -> None:
        """Declare a queue. Raises ResourceLocked if it is another connection's, PreconditionFailed, AccessRefused."""
        await self._ask(QueueDeclare(queue, durable=durable, exclusive=exclusive))

    async def declare_exchange(self, exchange: str, *, durable: bool = False) -> None:
        """Declare a direct exchange. Raises PreconditionFailed, AccessRefused."""
        await self._ask(ExchangeDeclare(exchange, durable=durable))

    async def unbind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        """Remove a binding; that it does not exist is no error. Raises NotFound, AccessRefused."""
        await self._ask(QueueUnbind(queue, exchange, routing_key))

    def delete_queue(self, queue: str, *, if_empty: bool = False) -> None:
        """Delete a queue without waiting for that; nothing is sent if the channel has ended."""
        self._channel.request(QueueDelete(queue, if_empty=if_empty), ignore)

    async def get(self, queue: str) -> Delivery | None:
        """Fetch one message, None if the queue has none ready. It goes back to the queue if the channel ends."""
        reply = await self._ask(BasicGet(queue))
        return reply if isinstance(reply, Delivery) else None

    async def message_count(self, queue: str) -> int:
        """How many messages are ready in a queue, which has to exist: NotFound ends this channel."""
        return cast("QueueDeclareOk", await self._ask(QueueDeclare(queue, passive=True))).message_count

    async def get_some(self, queue: str, count: int, octets: int) -> list[Delivery]:
        """Fetch up to `count` messages that are ready, fewer if they are large: no more are asked for after `octets`.

        At least one is asked for.
        """
        return await in_portions(partial(self.get_many, queue), max(count, 1), octets, lambda one: len(one.body))

    async def get_many(self, queue: str, count: int) -> list[Delivery]:
        """Fetch up to `count` messages that are ready, with one wait for all of them; at least one is asked for."""

        def hand_back(reply: Reply) -> None:
            if isinstance(reply, Delivery):
                reply.nack()

        return await ask_many(
            request_of(self._channel, BasicGet(queue)), max(count, 1), self._timeout_s, on_orphan=hand_back
        )

    async def tx_select(self) -> None:
        """Hold publishes and settlements from now on until `tx_commit`."""
        await self._ask(TxSelect())

    def tx_begin(self) -> None:
        """The same, without waiting: if it fails, `tx_commit` raises the error."""
        self._channel.request(TxSelect(), ignore)

    async def tx_commit(self) -> None:
        """Commit. After ConnectionLost or RequestTimeout the outcome is unknown."""
        await self._ask(TxCommit())

    def publish(
        self, body: bytes, *, exchange: str = "", routing_key: str, properties: BasicProperties | bytes
    ) -> None:
        """Publish a mandatory message."""
        channel = self._channel
        if not channel.usable and channel.close_reason is not None:
            raise error_of(channel.close_reason)
        channel.publisher.publish(body, exchange, routing_key, properties, True, None)  # noqa: FBT003 - the engine's way

    async def _ask(self, method: Method) -> Reply:
        return await ask(request_of(self._channel, method), self._timeout_s)

    @asynccontextmanager
    async def another(self) -> AsyncIterator["SideChannel"]:
        """Open one more on the same socket."""
        async with open_side_channel(self._socket, self._timeout_s) as channel:
            yield channel


@asynccontextmanager
async def open_side_channel(
    socket: SocketConnection, timeout_s: float | None, *, waits: bool = True
) -> AsyncIterator[SideChannel]:
    """Open one, and close it in the end. Raises ConnectionLost, ChannelLimitReached or RequestTimeout."""
    returns = _Returns()
    async with side_channel(socket, timeout_s, returns, waits=waits) as channel:
        yield SideChannel(socket, channel, timeout_s, returns)
