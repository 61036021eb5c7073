"""Back-pressure: on publishers that outrun the consumers of their queues, on peers that ask and do not read answers."""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.model.timers import Timer

if TYPE_CHECKING:
    from waybill.engine.amqp091.server.connection import Connection

THROTTLE_S: Final = 0.01
# Deliveries stop long before; so many more answers pile up only for a peer that asks on and on and reads nothing.
UNREAD_LIMIT: Final = 16 << 20


class Throttle(Timer):
    """Makes a publisher that outruns the consumers of its queue pause after each read.

    Without it the backlog would grow while everybody is at work, only to be written to disk and read back. The pause is
    short and never becomes a stop: a queue whose consumers hang fills up all the same.

    Nothing is read either while too much output waits in a full transport.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._is_pausing = False
        self._is_choked = False
        self._unread: i64 = 0

    def begin(self, now: float) -> None:
        if not self._is_pausing:
            self._is_pausing = True
            self._connection.output.pause_reading()
            self._connection.host.runtime.timers.schedule(now + THROTTLE_S, self)

    def fire(self, now: float) -> None:
        self._is_pausing = False
        self.resume()

    def resume(self) -> None:
        """Read again, unless there is another reason not to."""
        if not (self._is_pausing or self._is_choked or self._connection.is_blocked):
            self._connection.output.resume_reading()

    def wrote(self, size: i64) -> None:
        """So much output more waits in the transport, which was full already."""
        self._unread += size
        if self._unread > UNREAD_LIMIT and not self._is_choked:
            self._is_choked = True
            self._connection.output.pause_reading()

    def release(self) -> None:
        """The transport has room again."""
        self._unread = 0
        if self._is_choked:
            self._is_choked = False
            self.resume()
