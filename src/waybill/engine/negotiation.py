"""Selects the protocol by the first eight bytes of a peer. Later input goes to that protocol's engine.

    | 'A' 'M' 'Q' 'P' | id | major | minor | revision |      0-9-1: 0 0 9 1     1.0: 0 1 0 0     1.0 with SASL: 3 1 0 0
                                                0-10: 1 1 0 10

A header of an unsupported protocol is answered with a supported one, and a close (0-9-1, 4.2.2; 1.0, 2.2): an older
version of 0-x with 0-9-1, any other with the preferred one, 1.0 with SASL.
"""

from typing import Final

from waybill.engine.amqp010.server.connection import Connection as Amqp010Connection
from waybill.engine.amqp091.server.connection import Connection as Amqp091Connection
from waybill.engine.amqp10.server.connection import Connection as Amqp10Connection
from waybill.engine.host import Host
from waybill.engine.server_engine import ServerEngine
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as AMQP010_HEADER
from waybill.wire.amqp091.frames import PROTOCOL_HEADER
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER

HEADERS: Final = (PROTOCOL_HEADER, AMQP_HEADER, SASL_HEADER, AMQP010_HEADER)
OLDER: Final = (b"AMQP\x00\x00", b"AMQP\x01")
"""The beginning of the headers of 0-8, 0-9 and 0-9-1."""

HEADER_SIZE: Final = 8


class Negotiation(ServerEngine):
    """The engine of a connection whose protocol is not known yet.

    Afterwards it forwards everything to the engine of the protocol, until that one is attached to the transport.
    `certificate_user`: the user in the peer's verified TLS certificate, empty for none.
    """

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str = ""
    ) -> None:
        super().__init__(transport)
        self._host = host
        self._peer_address = peer_address
        self._certificate_user = certificate_user
        self._header = b""
        self._refusal = b""
        self._accepted_at = now
        self._deadline = now + host.limits.handshake_timeout_s
        self._is_closed = False
        self._engine: ServerEngine | None = None

    @property
    def closed(self) -> bool:
        return self._is_closed if self._engine is None else self._engine.closed

    def receive_data(self, data: bytes, now: float) -> None:
        if self._engine is not None:
            self._engine.receive_data(data, now)
            return
        if self._is_closed:
            return
        self._header += data
        header = self._header[:HEADER_SIZE]
        if header in HEADERS:
            engine = self._engine_of(header)
            self._engine = engine
            # Its transport serves it from now on, in this place.
            self._host.mark_dirty(engine)
            rest = self._header[HEADER_SIZE:]
            if rest:
                engine.receive_data(rest, now)
        elif len(header) == HEADER_SIZE or not any(known.startswith(header) for known in HEADERS):
            self._refuse()

    def _engine_of(self, header: bytes) -> ServerEngine:
        host, transport, peer = self._host, self.transport, self._peer_address
        if header == PROTOCOL_HEADER:
            return Amqp091Connection(host, transport, peer, self._accepted_at, self._certificate_user)
        if header == AMQP010_HEADER:
            return Amqp010Connection(host, transport, peer, self._accepted_at, self._certificate_user)
        has_sasl = header == SASL_HEADER
        return Amqp10Connection(host, transport, peer, self._accepted_at, self._certificate_user, has_sasl=has_sasl)

    def _refuse(self) -> None:
        self._refusal = PROTOCOL_HEADER if self._header.startswith(OLDER) else SASL_HEADER
        self._is_closed = True
        self._host.mark_dirty(self)

    def end_batch(self) -> None:
        self.is_dirty = False

    def data_to_send(self) -> bytes:
        if self._engine is not None:
            return self._engine.data_to_send()
        refusal = self._refusal
        self._refusal = b""
        return refusal

    def connection_lost(self, now: float) -> None:
        self._is_closed = True
        if self._engine is not None:
            self._engine.connection_lost(now)

    def next_timeout(self) -> float | None:
        if self._engine is not None:
            return self._engine.next_timeout()
        return None if self._is_closed else self._deadline

    def handle_timeout(self, now: float) -> None:
        if self._engine is not None:
            self._engine.handle_timeout(now)
        elif now >= self._deadline:
            self._is_closed = True

    def pause_writing(self) -> None:
        if self._engine is not None:
            self._engine.pause_writing()

    def resume_writing(self, now: float) -> None:
        if self._engine is not None:
            self._engine.resume_writing(now)
