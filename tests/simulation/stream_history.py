"""The reference model of one stream: an offset is one message, for ever."""

from dataclasses import dataclass

from tests.simulation.message import NEVER, Message
from tests.simulation.queues import QueueSpec
from tests.simulation.violation import Violation


@dataclass
class StreamReader:
    """One consumer of a stream. `start`: what it asked for, at `asked_at`; `end_then`: the end that was known then.

    `next_offset` is what must come next, negative before the first delivery.
    """

    start: object
    end_then: int
    next_offset: int = -1


class StreamHistory:
    """What readers have seen of a stream. `damage_is_known`: what was lost with a bad record is no promise."""

    def __init__(self, queue: QueueSpec) -> None:
        self.queue = queue
        self.by_offset: dict[int, Message] = {}
        self.offsets: dict[str, int] = {}
        self.end = 0

    def open(self, start: object) -> StreamReader:
        return StreamReader(start, self.end)

    def read(self, reader: StreamReader, offset: int, message: Message) -> None:
        """A reader got the message at an offset."""
        what = f"offset {offset} of {self.queue.name}"
        known = self.by_offset.setdefault(offset, message)
        if known is not message:
            raise Violation("an offset is one message for ever", f"{what}: {known.key}, then {message.key}")
        if self.offsets.setdefault(message.key, offset) != offset:
            raise Violation("a message is in a stream once", f"{message.key}: {self.offsets[message.key]} and {offset}")
        self.end = max(self.end, offset + 1)
        if reader.next_offset < 0:
            self._check_start(reader, offset, what)
        elif offset != reader.next_offset and (self.queue.max_bytes is None or offset < reader.next_offset):
            raise Violation("a stream is read in order, without a gap", f"{what} instead of {reader.next_offset}")
        reader.next_offset = offset + 1

    def _check_start(self, reader: StreamReader, offset: int, what: str) -> None:
        start = reader.start
        keeps_all = self.queue.max_bytes is None
        message = self.by_offset[offset]
        is_right = True
        if start == "first":
            is_right = offset == 0 or not keeps_all
        elif start == "last":
            is_right = offset >= reader.end_then - 1
        elif start == "next":
            is_right = offset >= reader.end_then
        elif isinstance(start, int):
            is_right = offset == start or (offset > start and not keeps_all)
        elif isinstance(start, float):
            before = self.by_offset.get(offset - 1)
            # The node cannot have noted a time beyond the confirm, nor one before the publish.
            # In a transaction that is the time of the publish, which is not the order of the offsets.
            is_first = before is None or before.transaction is not None or before.routed_after < start
            is_right = message.confirmed_at >= start and (is_first or not keeps_all)
        if not is_right:
            raise Violation("a stream is read from where the reader asks", f"{what} for {start}")

    def check(self, messages: list[Message], first_offset: int, message_count: int) -> None:
        """At the end, when somebody has read it all from its beginning: is anything missing or out of order?"""
        if self.queue.max_bytes is not None:
            # Retention may have gone on while the reader was on its way.
            first_offset = max(first_offset, self.end - message_count)
        read_count = sum(offset >= first_offset for offset in self.by_offset)
        if read_count < message_count:
            raise Violation("a stream can be read to its end", f"{self.queue.name}: {read_count} of {message_count}")
        newest_route = -1.0
        newest: dict[str, int] = {}
        for offset in sorted(self.by_offset):
            message = self.by_offset[offset]
            if message.confirmed_at < newest_route or message.number <= newest.get(message.channel, -1):
                raise Violation("a stream keeps the order of its publishers", f"{message.key} at {offset}")
            newest_route = max(newest_route, message.routed_after)
            newest[message.channel] = message.number
        for message in messages:
            if message.is_confirmed and message.key not in self.offsets:
                self._check_dropped(message, first_offset)

    def _check_dropped(self, message: Message, first_offset: int) -> None:
        """Retention drops the oldest: nothing older may be left."""
        is_older_left = any(
            offset >= first_offset and other.confirmed_at < message.routed_after
            for offset, other in self.by_offset.items()
            if other.confirmed_at < NEVER
        )
        if self.queue.max_bytes is None or is_older_left:
            raise Violation("a confirmed message stays in its stream", f"{message.key} in {self.queue.name}: lost")
