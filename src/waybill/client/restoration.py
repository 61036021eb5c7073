"""Declaring things again on a new socket, and asking aside from the channels of the user."""

import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from waybill.client.declarations import Declarations
from waybill.client.errors import ChannelClosed, ChannelLimitReached, ConnectionLost
from waybill.client.requests import ask, ignore, request_of
from waybill.client.socket_connection import SocketConnection
from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.engine.amqp091.client.requests import Reply
from waybill.wire.amqp091.methods import Method, QueueBind, QueueDeclare, QueueDeclareOk

log: Final = logging.getLogger("waybill.client")

Step = tuple[str, Method]
"""A method, and for a queue the name that the user knows it by."""


@asynccontextmanager
async def side_channel(connection: SocketConnection, timeout_s: float | None) -> AsyncIterator[ClientChannel]:
    """A channel for a few requests, closed afterwards in any case.

    Raises ConnectionLost, ChannelLimitReached, ChannelClosed or RequestTimeout.
    """
    if connection.ended.done():
        raise ConnectionLost("the connection ended")
    channel = connection.engine.open_channel(ChannelEvents())
    if channel is None:
        raise ChannelLimitReached(f"all {connection.engine.channel_max} channels are in use")
    try:
        await ask(channel.open, timeout_s)
        yield channel
    except BaseException:
        channel.close(ignore)
        raise
    await ask(channel.close, timeout_s)


async def ask_all(connection: SocketConnection, methods: tuple[Method, ...], timeout_s: float | None) -> Reply | None:
    """Request one thing after the other on a side channel; the last reply. Raises as `side_channel` does."""
    reply: Reply | None = None
    async with side_channel(connection, timeout_s) as channel:
        for method in methods:
            reply = await ask(request_of(channel, method), timeout_s)
    return reply


async def restore_all(connection: SocketConnection, declarations: Declarations, timeout_s: float | None) -> None:
    """Declare exchanges, queues and bindings again; what the broker refuses is logged and left as it is.

    Raises ConnectionLost and what else `side_channel` raises.
    """
    steps: list[Step] = [("", method) for method in declarations.exchanges()]
    steps += declarations.queues()
    await _declare_all(connection, declarations, steps, timeout_s)
    # Only now are the new names of server-named queues known.
    await _declare_all(connection, declarations, [("", method) for method in declarations.bindings()], timeout_s)


async def restore_one(
    connection: SocketConnection, declarations: Declarations, name: str, timeout_s: float | None
) -> None:
    """Declare a queue and its bindings again, or see that it exists if it was never declared here.

    Raises ChannelClosed and what else `side_channel` raises.
    """
    recorded = dict(declarations.queues()).get(name)
    async with side_channel(connection, timeout_s) as channel:
        if recorded is None:
            passive = QueueDeclare(declarations.current_name(name), passive=True)
            await ask(request_of(channel, passive), timeout_s)
            return
        await _declare(channel, declarations, (name, recorded), timeout_s)
        current = declarations.current_name(name)
        for binding in declarations.bindings():
            if isinstance(binding, QueueBind) and binding.queue == current:
                await ask(request_of(channel, binding), timeout_s)


async def _declare_all(
    connection: SocketConnection, declarations: Declarations, steps: list[Step], timeout_s: float | None
) -> None:
    waiting = deque(steps)
    while waiting:
        step: Step | None = None
        try:
            async with side_channel(connection, timeout_s) as channel:
                while waiting:
                    step = waiting.popleft()
                    await _declare(channel, declarations, step, timeout_s)
        except ChannelClosed as error:
            if step is None:
                raise  # Not over a declaration: this broker opens no channels.
            log.error("could not declare again: %s: %s", step[1], error)  # noqa: TRY400 - the broker's text says it all


async def _declare(channel: ClientChannel, declarations: Declarations, step: Step, timeout_s: float | None) -> None:
    name, method = step
    reply = await ask(request_of(channel, method), timeout_s)
    if isinstance(method, QueueDeclare) and isinstance(reply, QueueDeclareOk) and not method.queue:
        declarations.queue_renamed(name, reply.queue)
