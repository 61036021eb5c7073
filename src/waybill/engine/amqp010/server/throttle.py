"""Back-pressure on publishers: on who outruns the consumers of its queues, and on who publishes in an alarm.

The protocol has nothing to say it with: the connection is not read for a while.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.server_connection import BLOCKED, PACED
from waybill.model.timers import Timer

THROTTLE_S: Final = 0.01
ALARM_GRACE_BYTES: Final = 1 << 20
"""What is still read during an alarm from a publisher that holds messages: its acceptances may be what ends it."""


class Throttle(Timer):
    """Of one connection."""

    def __init__(self, connection: SessionHost) -> None:
        self._connection = connection
        self._is_pausing = False
        self._is_blocked = False
        self._is_in_alarm = False
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
