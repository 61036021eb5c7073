"""Back-pressure on publishers: on who outruns the consumers of its queues, and on who publishes in an alarm."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ChannelHost
from waybill.engine.server_connection import BLOCKED, PACED
from waybill.model.timers import Timer
from waybill.wire.amqp091.methods import ConnectionBlocked, ConnectionUnblocked

THROTTLE_S: Final = 0.01
# What is still read during an alarm from a publisher that holds messages: its acknowledgements may be what ends it.
ALARM_GRACE_BYTES: Final = 1 << 20


class Throttle(Timer):
    """Makes a publisher that outruns the consumers of its queue pause after each read.

    Without it the backlog would grow while everybody is at work, only to be written to disk and read back. The pause is
    short and never becomes a stop: a queue whose consumers hang fills up all the same.

    In an alarm a publisher is not read at all (connection.blocked). But one that understands connection.blocked and
    holds unsettled messages is read on until it has published for another MiB: were it stopped at once, as in RabbitMQ,
    it could never settle them and end the alarm.
    """

    def __init__(self, connection: ChannelHost) -> None:
        self._connection = connection
        self._is_pausing = False
        self._is_told = False
        self._is_blocked = False
        self._grace: i64 = 0

    def begin(self, now: float) -> None:
        """Pause reading for a moment."""
        if not self._is_pausing:
            self._is_pausing = True
            self._connection.pause_reading(PACED)
            self._connection.host.runtime.timers.schedule(now + THROTTLE_S, self)

    def fire(self, now: float) -> None:
        self._is_pausing = False
        self._connection.resume_reading(PACED)

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
                has_grace = connection.knows_blocked and connection.holds_messages()
                self._grace = ALARM_GRACE_BYTES if has_grace else i64(0)
                connection.alarm_told(ConnectionBlocked(host.alarm), host.runtime.now)
            if not host.has_room_for_grace:
                self._grace = 0
            if self._grace <= 0 and not self._is_blocked:
                self._is_blocked = True
                connection.pause_reading(BLOCKED)
        elif self._is_told:
            self._is_told = False
            connection.alarm_told(ConnectionUnblocked(), host.runtime.now)
            if self._is_blocked:
                self._is_blocked = False
                connection.resume_reading(BLOCKED)
