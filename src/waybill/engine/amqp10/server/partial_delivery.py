"""Deliveries to the peer in several transfers (1.0, 2.6.14), as the session's window allows."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.link_host import LinkHost, ParkedDelivery
from waybill.wire.amqp10.transfer import TransferFacts, write_transfer

WRAP: Final = 0xFFFFFFFF
HEADER_ROOM: Final = 64
"""A frame with a piece has at most so many octets besides it, and besides the delivery-tag and state."""


class PartialDelivery(ParkedDelivery):
    """The rest of one delivery. The connection holds its payload until all of it is sent or dropped."""

    def __init__(self, session: LinkHost, handle: i64, payload: bytes, offset: i64) -> None:
        self._session = session
        self._handle: i64 = handle
        self._payload = payload
        self._offset: i64 = offset
        self.is_over = False
        session.connection.held.add_anyway(len(payload))

    def send(self) -> bool:
        session = self._session
        connection = session.connection
        facts = TransferFacts()
        facts.handle = self._handle
        size = connection.peer_max_frame_size - HEADER_ROOM
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        while not self.is_over:
            if session.peer_window <= 0:
                return False
            end = self._offset + size
            piece = self._payload[self._offset : end]
            facts.more = end < len(self._payload)
            write_transfer(connection.out, session.channel, facts, None, b"", len(piece))
            connection.out.write(piece)
            count_transfer(session)
            self._offset = end
            if not facts.more:
                self.end()
        return True

    def end(self) -> None:
        """The delivery was sent or dropped."""
        self.is_over = True
        connection = self._session.connection
        held = connection.held
        was_full = held.is_full
        held.give_back(len(self._payload))
        self._payload = b""
        if was_full and not held.is_full:
            connection.wake_consumers()


def count_transfer(session: LinkHost) -> None:
    session.next_outgoing_id = (session.next_outgoing_id + 1) & WRAP
    session.peer_window -= 1


def send_first_piece(
    session: LinkHost, facts: TransferFacts, tag: bytes, state: bytes, payload: bytes
) -> PartialDelivery | None:
    """Send the first transfer of a delivery, and all that the window has room for. Returns what is left, parked."""
    connection = session.connection
    size = connection.peer_max_frame_size - HEADER_ROOM - len(tag) - len(state)
    facts.more = size < len(payload)
    first = payload[: int(size)]
    write_transfer(connection.out, session.channel, facts, tag, state, len(first))
    connection.out.write(first)
    count_transfer(session)
    if not facts.more:
        return None
    rest = PartialDelivery(session, facts.handle, payload, size)
    if rest.send():
        return None
    session.parked.append(rest)
    return rest
