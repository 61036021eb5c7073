"""Back-pressure on publishers during an alarm."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp091.server.channel_host import ChannelHost
from waybill.engine.server_connection import BLOCKED
from waybill.wire.amqp091.methods_connection import ConnectionBlocked, ConnectionUnblocked

# How much is still read during an alarm from a publisher that holds messages: its acknowledgements may end the alarm.
ALARM_GRACE_BYTES: Final = 1 << 20


class Throttle:
    """Stops a publisher during an alarm: it is not read, and is notified (connection.blocked).

    But a publisher that understands connection.blocked and holds unsettled messages is still read until it has
    published another MiB: if it were stopped immediately, as in RabbitMQ, it could never settle them and end the alarm.
    """

    def __init__(self, connection: ChannelHost) -> None:
        self._connection = connection
        self._is_told = False
        self._is_blocked = False
        self._grace: i64 = 0

    def read_in_alarm(self, size: i64) -> None:
        """Count octets that were read during an alarm. Call `alarm_changed` next."""
        self._grace -= size

    def alarm_changed(self, *, has_published: bool) -> None:
        """The alarm was raised or cleared. `has_published`: since the peer was notified, or ever."""
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
