"""Credit of a link by which the peer sends (1.0, 2.6.7): how many deliveries it may still send."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.target import TargetNode
from waybill.model.timers import Timer
from waybill.wire.amqp10.performatives import Flow

CREDIT: Final = 1024
WRAP: Final = 0xFFFFFFFF
OUTRUN: Final = 4096
"""With this many ready messages, a sender counts as faster than the consumers of its queue."""
OUTRUN_PAUSE_S: Final = 0.01


class LinkCredit(Timer):
    """`left`: the link-credit. `delivery_count`: the sender's, modulo 2^32.

    `waits`: publishers wait while there is an alarm (`Host.alarm`), and for consumers that they outrun.
    """

    def __init__(self, session: LinkHost, handle: i64, delivery_count: i64, target: TargetNode, *, waits: bool) -> None:
        self.left: i64 = 0
        self.delivery_count: i64 = delivery_count
        self._session = session
        self._handle: i64 = handle
        self._target = target
        self._waits = waits
        # Deliveries that the peer may have sent before it learned that its credit was revoked.
        self._revoked: i64 = 0
        self._is_pausing = False
        self._is_closed = False

    @property
    def allows_delivery(self) -> bool:
        return self.left + self._revoked > 0

    def grant(self) -> None:
        """Give the peer full credit, now or when it no longer has to wait."""
        if self._is_closed:
            return
        host = self._session.connection.host
        if self._waits:
            if host.alarm:
                return
            if self._target.is_outrunning(OUTRUN):
                if not self._is_pausing:
                    self._is_pausing = True
                    host.runtime.timers.schedule(host.runtime.now + OUTRUN_PAUSE_S, self)
                return
        self._restore()

    def _restore(self) -> None:
        self.left = CREDIT
        self._revoked = 0
        self.send_flow()

    def fire(self, now: float) -> None:
        self._is_pausing = False
        if not self._is_closed and not self._session.connection.host.alarm:
            # The queue does not matter now: a pause slows the sender down, it never stops it.
            self._restore()

    def alarm_changed(self) -> None:
        if not self._waits:
            return
        if self._session.connection.host.alarm:
            self._revoked += self.left
            self.left = 0
            self.send_flow()
        else:
            self.grant()

    def use(self) -> None:
        """A delivery is complete."""
        self.delivery_count = (self.delivery_count + 1) & WRAP
        if self.left > 0:
            self.left -= 1
        else:
            self._revoked -= 1
        if self.left < CREDIT // 2:
            self.grant()

    def take_flow(self, flow: Flow) -> None:
        """The sender's state. The credit that it skipped is used up (2.6.7)."""
        if flow.delivery_count is not None:
            count: i64 = flow.delivery_count
            skipped = (count - self.delivery_count) & WRAP
            if 0 < skipped <= self.left + self._revoked:
                self.left = max(self.left - skipped, 0)
                self.delivery_count = count
                if self.left < CREDIT // 2:
                    self.grant()
        if flow.echo:
            self.send_flow()

    def send_flow(self) -> None:
        self._session.send_flow(self._handle, self.delivery_count, self.left)

    def close(self) -> None:
        """The link is detached."""
        self._is_closed = True
