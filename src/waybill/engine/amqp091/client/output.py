"""The engine's output, and the notification when there is some."""

from typing import Final

from waybill.engine.amqp091.client.delivery import Settler
from waybill.engine.amqp091.client.events import ConnectionEvents

FULL_AT_BYTES: Final = 128 * 1024


class Output:
    """Collects frames in order until they are drained.

    While `announced`, the owner of the transport knows that there is output, or will call `drain` anyway.
    """

    def __init__(self, events: ConnectionEvents) -> None:
        self._events = events
        self._parts: list[bytes] = []
        self._size = 0
        self._pending: list[Settler] = []
        self.announced = True
        self.idle = True
        """Nothing was written since this was last set."""

    def write(self, frames: bytes) -> None:
        """Append whole frames."""
        self._parts.append(frames)
        self._size += len(frames)
        if not self.announced:
            self.announced = True
            self._events.output_ready()
        if self._size >= FULL_AT_BYTES:
            self._events.output_full()

    def add_pending(self, channel: Settler) -> None:
        """`channel` has acknowledgements to write at the next `drain`."""
        self._pending.append(channel)
        if not self.announced:
            self.announced = True
            self._events.output_ready()

    def drain(self) -> bytes:
        """Take all of it."""
        if self._pending:
            pending = self._pending
            self._pending = []
            self.announced = True
            for channel in pending:
                channel.flush_acks()
        self.announced = False
        self._size = 0
        if not self._parts:
            return b""
        self.idle = False
        data = b"".join(self._parts)
        self._parts = []
        return data
