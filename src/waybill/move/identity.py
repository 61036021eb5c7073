"""Identifies brokers by an id in a durable queue, and locks a broker for one move at a time.

AMQP reads a queue by taking a message and giving it back. While another reader has the message, and until the broker
notices that a killed reader is gone, the queue looks empty. So a queue that must have a message is read again until it
is there: a second id, or an empty ledger, would lead to messages left behind or sent twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final
from uuid import uuid4

from waybill.client import BasicProperties, ClientError, Connection, Delivery, Inspector, ResourceLocked
from waybill.move.errors import MoveFailed
from waybill.ojs.spec.headers import PERSISTENT

LOCK_ATTEMPTS: Final = 120
LOCK_PAUSE_SECONDS: Final = 0.25
"""A killed move keeps its lock until the broker detects the lost connection, which takes a busy broker seconds."""

_log = logging.getLogger("waybill.move")


async def lock(connection: Connection, name: str) -> None:
    """Lock out other moves as long as this connection lasts. Raises MoveFailed."""
    for attempt in range(LOCK_ATTEMPTS):
        try:
            async with connection.side_channel() as channel:
                await channel.declare_queue(name, exclusive=True)
        except ResourceLocked:
            if not attempt:
                _log.info("waiting: another move holds the queue %s at %s", name, connection.address)
            if attempt + 1 < LOCK_ATTEMPTS:
                await asyncio.sleep(LOCK_PAUSE_SECONDS)
        else:
            return
    raise MoveFailed(f"another move is using {connection.address}: it holds the queue {name}")


async def unlock(connection: Connection, name: str) -> None:
    """Let others have the lock before this connection ends."""
    async with await connection.channel() as channel:
        await channel.delete_queue(name)


async def identity(connection: Connection, name: str, arguments: Mapping[str, object]) -> str:
    """Return the id of a broker, made when it is first asked for, in a queue with `arguments`. Raises MoveFailed."""
    # Commands for different queues share the id.
    await lock(connection, f"{name}.lock")
    try:
        known = await known_identity(connection, name)
        if known is not None:
            return known
        made = uuid4().hex
        async with await connection.channel() as channel:
            await channel.declare_queue(name, durable=True, arguments=dict(arguments))
            properties = BasicProperties(delivery_mode=PERSISTENT)
            try:
                await channel.publish(made.encode(), routing_key=name, properties=properties, mandatory=True)
            except ClientError:
                # An empty queue would be taken for one whose message somebody else has just taken.
                await _remove(connection, name)
                raise
        return made
    finally:
        if connection.is_open:
            await unlock(connection, f"{name}.lock")


async def _remove(connection: Connection, name: str) -> None:
    with suppress(ClientError):
        async with connection.side_channel() as channel:
            channel.delete_queue(name, if_empty=True)


async def known_identity(connection: Connection, name: str) -> str | None:
    """Return the id of a broker, None if it has none yet. Raises MoveFailed."""
    if await Inspector(connection).queue(name) is None:
        return None
    found = await read_kept(connection, name)
    if found is None:
        raise MoveFailed(
            f"the queue {name} at {connection.address} is empty, or another connection has its message: if no move or "
            "shovel is running, delete the queue and try again"
        )
    return found.body.decode(errors="replace")


async def read_kept(connection: Connection, queue: str) -> Delivery | None:
    """Read the message that a queue keeps, without removing it; waits while another reader has it.

    None if there is none after half a minute.
    """
    for attempt in range(LOCK_ATTEMPTS):
        if attempt:
            await asyncio.sleep(LOCK_PAUSE_SECONDS)
        async with connection.side_channel() as channel:
            # Requeued when the channel closes.
            found = await channel.get(queue)
        if found is not None:
            return found
        if not attempt:
            _log.info("waiting: another connection has the message of %s at %s", queue, connection.address)
    return None
