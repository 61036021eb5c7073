"""Repeats declarations on a new socket, and sends requests on channels apart from the program's."""

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
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare, QueueDeclareOk

log: Final = logging.getLogger("waybill.client")

Step = tuple[str, Method]
"""A method and, for a queue, the name that the program knows it by."""


@asynccontextmanager
async def side_channel(
    connection: SocketConnection, timeout_s: float | None, events: ChannelEvents | None = None, *, waits: bool = True
) -> AsyncIterator[ClientChannel]:
    """A channel for a few requests. It is always closed afterwards. Opening and closing can be left unawaited.

    Raises ConnectionLost, ChannelLimitReached, ChannelClosed or RequestTimeout.
    """
    if connection.ended.done():
        raise ConnectionLost("the connection ended")
    channel = connection.engine.open_channel(events or ChannelEvents())
    if channel is None:
        raise ChannelLimitReached(f"all {connection.engine.channel_max} channels are in use")
    try:
        if waits:
            await ask(channel.open, timeout_s)
        else:
            channel.open(ignore)
        yield channel
    except BaseException:
        channel.close(ignore)
        raise
    if waits:
        await ask(channel.close, timeout_s)
    else:
        channel.close(ignore)


async def ask_all(connection: SocketConnection, methods: tuple[Method, ...], timeout_s: float | None) -> Reply | None:
    """Send requests one after the other on a side channel. Returns the last reply. Raises as `side_channel` does."""
    reply: Reply | None = None
    async with side_channel(connection, timeout_s) as channel:
        for method in methods:
            reply = await ask(request_of(channel, method), timeout_s)
    return reply


async def restore_all(connection: SocketConnection, declarations: Declarations, timeout_s: float | None) -> None:
    """Declare exchanges, queues and bindings again. A refusal is logged, and the rest continues.

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
    """Declare a queue and its bindings again; if they were not declared here, check that the queue exists.

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
                raise  # Not because of a declaration: the broker opens no channels.
            log.error("could not repeat a declaration: %s: %s", step[1], error)  # noqa: TRY400 - the broker's text is enough


async def _declare(channel: ClientChannel, declarations: Declarations, step: Step, timeout_s: float | None) -> None:
    name, method = step
    reply = await ask(request_of(channel, method), timeout_s)
    if isinstance(method, QueueDeclare) and isinstance(reply, QueueDeclareOk) and not method.queue:
        declarations.queue_renamed(name, reply.queue)
