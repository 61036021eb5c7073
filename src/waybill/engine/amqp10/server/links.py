"""The links of a session by handle, and the life of a handle (1.0, 2.6.2, 2.6.6).

               attach                 our detach
    FREE ----------------> ATTACHED --------------> DETACHING
      ^                       |                         |
      |    the peer's detach  |                         |
      '-----------------------+-------------------------'

A refused attach passes through ATTACHED immediately: the answer is an attach, and a detach with the reason. While a
handle is DETACHING, its transfers are dropped.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import connection_fault, session_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.outgoing import OutgoingLink
from waybill.wire.amqp10.error import FRAMING_ERROR, HANDLE_IN_USE, NOT_ALLOWED, UNATTACHED_HANDLE

HANDLE_MAX: Final = 1023


class Links:
    """Links of one session by the peer's handles. `incoming`: by which the peer sends.

    `detaching`: handles of links that only the peer has still to detach. `handle_max`: the peer's.
    """

    def __init__(self, handle_max: i64) -> None:
        self.incoming: dict[i64, IncomingLink] = {}
        self.outgoing: dict[i64, OutgoingLink] = {}
        self.detaching: set[i64] = set()
        self._handle_max: i64 = handle_max

    def __len__(self) -> int:
        return len(self.incoming) + len(self.outgoing)

    def check_free(self, handle: i64) -> None:
        """Raises a fault unless the peer may attach a link with this handle."""
        if handle > HANDLE_MAX:
            raise connection_fault(FRAMING_ERROR, f"handle {handle} is beyond handle-max {HANDLE_MAX}")
        if handle in self.incoming or handle in self.outgoing or handle in self.detaching:
            raise session_fault(HANDLE_IN_USE, f"handle {handle} is in use")

    def our_handle(self, wanted: i64) -> i64:
        """A free handle for our end of a link: the peer's own if possible. Raises a session fault if there is none."""
        if wanted <= self._handle_max and not self._is_ours(wanted):
            return wanted
        ours = {int(link.handle) for link in self.incoming.values()}
        ours.update(int(link.handle) for link in self.outgoing.values())
        for handle in range(int(self._handle_max) + 1):
            if handle not in ours:
                return handle
        raise session_fault(NOT_ALLOWED, f"all handles up to handle-max {self._handle_max} are in use")

    def _is_ours(self, handle: i64) -> bool:
        return any(link.handle == handle for link in self.incoming.values()) or any(
            link.handle == handle for link in self.outgoing.values()
        )

    def check_detaching(self, handle: i64) -> None:
        """Raises a session fault for a handle by which nothing may come: no link has it, or had it."""
        if handle not in self.detaching:
            raise session_fault(UNATTACHED_HANDLE, f"no link has the handle {handle}")

    def remove_incoming(self, handle: i64) -> bool:
        """Begin to detach a link from our side. False if there is none."""
        if self.incoming.pop(handle, None) is None:
            return False
        self.detaching.add(handle)
        return True

    def remove_outgoing(self, handle: i64) -> bool:
        if self.outgoing.pop(handle, None) is None:
            return False
        self.detaching.add(handle)
        return True

    def settling_count(self) -> int:
        return sum(len(link.terminus.settling) for link in self.incoming.values())
