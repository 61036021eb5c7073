"""Looks through the messages that wait in an AMQP queue for the jobs of some ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from waybill.client import Connection, Delivery, Inspector

AT_A_TIME: Final = 500


class WaitingMessage(msgspec.Struct):
    """The fields that are read from the message of a job."""

    id: str
    type: str = ""
    priority: int = 0
    enqueued_at: str | None = None


Take = Callable[[Delivery, WaitingMessage], Awaitable[bool]]
"""Takes a message that was found; returns whether it has settled it."""


async def find_waiting(connection: Connection, name: str, missing: set[str], most: int, take: Take) -> bool:
    """Show the jobs among `missing` that a queue has to `take`, and remove them from the set.

    Messages that are not settled return to their places. False if `most` of these were looked at and some ids are
    still missing.
    """
    if await Inspector(connection).queue(name) is None:
        return True
    held: dict[Delivery, None] = {}
    async with await connection.channel() as channel:
        try:
            while missing and len(held) < most and (found := await channel.get_many(name, AT_A_TIME)):
                held |= dict.fromkeys(found)
                for delivery in found:
                    message = _read(delivery)
                    if message is None or message.id not in missing:
                        continue
                    if await take(delivery, message):
                        del held[delivery]
                    missing.discard(message.id)
        finally:
            # Newest first: each returns to the head of the queue, unless the broker restores its position anyway.
            for delivery in reversed(held):
                delivery.nack()
    return not missing or len(held) < most


def _read(delivery: Delivery) -> WaitingMessage | None:
    try:
        return msgspec.json.decode(delivery.body, type=WaitingMessage)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
