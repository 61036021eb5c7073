"""Back-pressure: on who outruns the consumers of its queues, asks and reads no answers, or publishes in an alarm."""

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.model.runtime import Chore
from waybill.model.timers import Timer
from waybill.wire.amqp091.methods import ConnectionBlocked, ConnectionUnblocked

if TYPE_CHECKING:
    from waybill.engine.amqp091.server.connection import Connection

THROTTLE_S: Final = 0.01
# Deliveries stop long before; so many more answers pile up only for a peer that asks on and on and reads nothing.
UNREAD_LIMIT: Final = 16 << 20
# What is still read during an alarm from a publisher that holds messages: its acknowledgements may be what ends it.
ALARM_GRACE_BYTES: Final = 1 << 20


class Throttle(Timer):
    """Makes a publisher that outruns the consumers of its queue pause after each read.

    Without it the backlog would grow while everybody is at work, only to be written to disk and read back. The pause is
    short and never becomes a stop: a queue whose consumers hang fills up all the same.

    One that asks for more than a turn has room for (`waybill.model.runtime`) pauses, too, until it is its turn again.
    Nothing is read either while too much output waits in a full transport, and from a publisher in an alarm
    (connection.blocked). But one that understands connection.blocked and holds unsettled messages is read on until it
    has published for another MiB: were it stopped at once, as in RabbitMQ, it could never settle them and end it.
    """

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._is_pausing = False
        self._is_waiting = False
        self._is_choked = False
        self._unread: i64 = 0
        self._is_told = False
        self._grace: i64 = 0
        self.is_blocked = False

    def begin(self, now: float, pause_s: float) -> None:
        if not self._is_pausing:
            self._is_pausing = True
            self._connection.output.pause_reading()
            self._connection.host.runtime.timers.schedule(now + pause_s, self)

    def wait_for_turn(self) -> None:
        """What was read already goes on in the next turn."""
        if not self._is_waiting:
            self._is_waiting = True
            self._connection.output.pause_reading()
            self._connection.host.runtime.go_on_with(_Turn(self))

    def take_turn(self) -> None:
        self._is_waiting = False
        # What a frame asked for was taken, so no alarm and no pause of reading holds it up.
        if not self._connection.has_done_chore():
            self.wait_for_turn()
            return
        self.resume()

    def fire(self, now: float) -> None:
        self._is_pausing = False
        self.resume()

    def resume(self) -> None:
        """Read again, unless there is another reason not to; but first what was read already."""
        if not self._has_reason_to_wait():
            self._connection.take_rest(self._connection.host.runtime.now)
        if not self._has_reason_to_wait():
            self._connection.output.resume_reading()

    def _has_reason_to_wait(self) -> bool:
        return self._is_pausing or self._is_waiting or self._is_choked or self.is_blocked

    def wrote(self, size: i64) -> None:
        """So much output more waits in the transport, which was full already."""
        self._unread += size
        if self._unread > UNREAD_LIMIT and not self._is_choked:
            self._is_choked = True
            self._connection.output.pause_reading()

    def release(self) -> None:
        """The transport has room again."""
        self._unread = 0
        self._connection.held.transport_has_room()
        if self._is_choked:
            self._is_choked = False
            self.resume()

    # --- alarms ---

    def read_in_alarm(self, size: i64) -> None:
        """So much was read while there is an alarm. `alarm_changed` must follow."""
        self._grace -= size

    def alarm_changed(self, *, has_published: bool) -> None:
        """There is an alarm, or it is over. `has_published`: since the peer was told, or at all."""
        connection = self._connection
        host = connection.host
        if host.alarm:
            if not has_published:
                return
            if not self._is_told:
                self._is_told = True
                self._grace = ALARM_GRACE_BYTES if connection.knows_blocked and _holds_messages(connection) else i64(0)
                connection.alarm_told(ConnectionBlocked(host.alarm), host.runtime.now)
            if not host.has_room_for_grace:
                self._grace = 0
            if self._grace <= 0 and not self.is_blocked:
                self.is_blocked = True
                connection.output.pause_reading()
        elif self._is_told:
            self._is_told = False
            connection.alarm_told(ConnectionUnblocked(), host.runtime.now)
            if self.is_blocked:
                self.is_blocked = False
                self.resume()


class _Turn(Chore):
    """The turn of a connection that has more to do."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle

    def work(self) -> bool:
        self._throttle.take_turn()
        return True


def _holds_messages(connection: "Connection") -> bool:
    return any(channel.unsettled_count > 0 for channel in connection.channels.values())
