"""The first eight bytes: which protocol a peer speaks. Everything after them goes to that protocol's engine.

    | 'A' 'M' 'Q' 'P' | id | major | minor | revision |      0-9-1: 0 0 9 1     1.0: 0 1 0 0     1.0 with SASL: 3 1 0 0

A header that nobody here speaks is answered with one that is spoken, and a close (0-9-1, 4.2.2; 1.0, 2.2): an older
version of 0-x with 0-9-1, all else with the one that we prefer, 1.0 with SASL.
"""

from typing import Final

from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.amqp10.server.connection import Connection as Amqp10Connection
from waybill.engine.host import Host, Output
from waybill.engine.server_engine import ServerEngine
from waybill.wire.amqp091.frames import PROTOCOL_HEADER
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER

HEADERS: Final = (PROTOCOL_HEADER, AMQP_HEADER, SASL_HEADER)
OLDER: Final = (b"AMQP\x00\x00", b"AMQP\x01")
"""How headers of 0-8, 0-9 and 0-9-1 begin."""

HEADER_SIZE = 8


class Negotiation:
    """The engine of a connection whose protocol is not known yet; then another one takes its place at the transport.

    `certificate_user`: whom the peer's verified TLS certificate names, empty for nobody.
    """

    def __init__(self, host: Host, output: Output, peer_address: str, now: float, certificate_user: str = "") -> None:
        self._host = host
        self._output = output
        self._peer_address = peer_address
        self._certificate_user = certificate_user
        self._header = b""
        self._refusal = b""
        self._accepted_at = now
        self._deadline = now + host.limits.handshake_timeout_s
        self.closed = False

    def receive_data(self, data: bytes, now: float) -> None:
        if self.closed:
            return
        self._header += data
        header = self._header[:HEADER_SIZE]
        if header in HEADERS:
            engine = self._engine_of(header)
            self._output.hand_over(engine)
            rest = self._header[HEADER_SIZE:]
            if rest:
                engine.receive_data(rest, now)
        elif len(header) == HEADER_SIZE or not any(known.startswith(header) for known in HEADERS):
            self._refuse()

    def _engine_of(self, header: bytes) -> ServerEngine:
        host, output, peer = self._host, self._output, self._peer_address
        if header == PROTOCOL_HEADER:
            return Amqp091Connection(host, output, peer, self._accepted_at, self._certificate_user)
        has_sasl = header == SASL_HEADER
        return Amqp10Connection(host, output, peer, self._accepted_at, self._certificate_user, has_sasl=has_sasl)

    def _refuse(self) -> None:
        self._refusal = PROTOCOL_HEADER if self._header.startswith(OLDER) else SASL_HEADER
        self.closed = True
        self._output.flush()

    def data_to_send(self) -> bytes:
        refusal = self._refusal
        self._refusal = b""
        return refusal

    def connection_lost(self, now: float) -> None:
        self.closed = True

    def next_timeout(self) -> float | None:
        return None if self.closed else self._deadline

    def handle_timeout(self, now: float) -> None:
        self.closed = self.closed or now >= self._deadline

    def pause_writing(self) -> None:
        """Nothing is written but a refusal."""

    def resume_writing(self, now: float) -> None:
        """See `pause_writing`."""
