"""Back-pressure on publishers that are quicker than the consumers of their queues."""

from typing import TYPE_CHECKING, Final

from waybill.model.timers import Timer

if TYPE_CHECKING:
    from waybill.engine.amqp091.server.connection import Connection

THROTTLE_S: Final = 0.01


class Throttle(Timer):
    """Makes a publisher that outruns the consumers of its queue pause after each read.

    Without it the backlog would grow while everybody is at work, only to be written to disk and read back. The pause is
    short and never becomes a stop: a queue whose consumers hang fills up all the same.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._is_pausing = False

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
        if not self._is_pausing and not self._connection.is_blocked:
            self._connection.output.resume_reading()
