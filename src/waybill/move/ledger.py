"""The ledger of a move: one message in a queue of the target, which records what has arrived there.

It is written in the transaction that publishes the messages it records, so both exist or neither. The queue holds one
message: a newer one replaces the older.
"""

from __future__ import annotations

from typing import Final

import msgspec

from waybill.client import BasicProperties, Connection
from waybill.move.done import Done
from waybill.move.errors import MoveFailed
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


async def read_record(connection: Connection, queue: str) -> Record:
    """Read the ledger without removing it; an empty record if there is none. Raises MoveFailed."""
    async with connection.side_channel() as channel:
        # Requeued when the channel closes, a line below.
        found = await channel.get(queue)
    if found is None:
        return Record()
    try:
        return msgspec.json.decode(found.body, type=Record)
    except msgspec.DecodeError as error:
        raise MoveFailed(f"the ledger {queue} cannot be read: {error}") from None
