"""Back-pressure on publishers during an alarm. The protocol has no method for it, so the connection is not read."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.server_connection import BLOCKED

ALARM_GRACE_BYTES: Final = 1 << 20
"""How much is still read during an alarm from a publisher that holds messages: its acceptances may end the alarm."""


class Throttle:
    """Of one connection."""

    def __init__(self, connection: SessionHost) -> None:
        self._connection = connection
        self._is_blocked = False
        self._is_in_alarm = False
        self._grace: i64 = 0

    def read_in_alarm(self, size: i64) -> None:
        self._grace -= size

    def alarm_changed(self) -> None:
        connection = self._connection
        host = connection.host
        if not host.alarm:
            self._is_in_alarm = False
            if self._is_blocked:
                self._is_blocked = False
                connection.resume_reading(BLOCKED)
            return
        if not connection.has_published:
            return
        if not self._is_in_alarm:
            self._is_in_alarm = True
            self._grace = ALARM_GRACE_BYTES if connection.holds_messages() else i64(0)
        if not host.has_room_for_grace:
            self._grace = 0
        if self._grace <= 0 and not self._is_blocked:
            self._is_blocked = True
            connection.pause_reading(BLOCKED)
