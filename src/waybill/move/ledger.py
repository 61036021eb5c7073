"""The ledger of a move: one message in a queue of the target, which records what has arrived there.

It is written in the transaction that publishes the messages it records, so both exist or neither. The queue holds one
message: a newer one replaces the older. The first one is published before the transit queue exists. So if the ledger
looks empty, another reader has its message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from waybill.client import BasicProperties, Connection, Inspector
from waybill.move.done import Done
from waybill.move.errors import MoveFailed
from waybill.move.identity import read_kept
from waybill.ojs.spec.headers import PERSISTENT

ONE_MESSAGE: Final[dict[str, object]] = {"x-max-length": 1}
PROPERTIES: Final = BasicProperties(content_type="application/json", delivery_mode=PERSISTENT)


class StreamPosition(msgspec.Struct, frozen=True):
    """The last message of a stream that was copied: its offset, and a digest of its body."""

    offset: int
    digest: int


class Record(msgspec.Struct, frozen=True):
    """The arrived messages by number, and the positions of streams."""

    done: Done = msgspec.field(default_factory=Done)
    streams: dict[str, StreamPosition] = {}
    is_careful: bool = False
    """Whether messages are sent one by one, because the target has refused a batch."""

    def encode(self) -> bytes:
        """Return the body of the message."""
        return msgspec.json.encode(self)


async def open_record(connection: Connection, queue: str, arguments: Mapping[str, object], *, is_new: bool) -> Record:
    """Read the ledger without removing it, or make an empty one. Raises MoveFailed.

    `is_new`: nothing has been sent yet, so the ledger may have no message.
    """
    inspector = Inspector(connection)
    found = None if await inspector.queue(queue) is None else await read_kept(connection, queue)
    if found is None:
        if not is_new and await inspector.queue(queue) is not None:
            raise MoveFailed(
                f"the ledger {queue} at {connection.address} is empty, or another connection has its message: close "
                "that connection and try again"
            )
        async with await connection.channel() as channel:
            await channel.declare_queue(queue, durable=True, arguments={**arguments, **ONE_MESSAGE})
            await channel.publish(Record().encode(), routing_key=queue, properties=PROPERTIES, mandatory=True)
        return Record()
    try:
        return msgspec.json.decode(found.body, type=Record)
    except msgspec.DecodeError as error:
        raise MoveFailed(f"the ledger {queue} cannot be read: {error}") from None
