"""The SASL layer, server side (1.0, 5.3): mechanisms, init, challenges and responses, outcome."""

from waybill.engine.amqp10.server.faults import connection_fault
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.connection_state import ENDED
from waybill.engine.login import Login
from waybill.wire.amqp10.error import FRAMING_ERROR, NOT_ALLOWED
from waybill.wire.amqp10.frames import sasl_frame
from waybill.wire.amqp10.security import (
    SASL_AUTHENTICATION_FAILED,
    SASL_OK,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    decode_sasl,
)


class SaslLayer:
    """One login. `is_over`: the outcome `ok` is sent, and the peer sends a protocol header next."""

    def __init__(self, connection: SessionHost) -> None:
        self._connection = connection
        self._login = _login(connection)
        self._has_begun = False
        self.is_over = False

    def start(self) -> None:
        """Offer the mechanisms."""
        self._connection.send(sasl_frame(SaslMechanisms(self._login.mechanisms).encode()))

    def take(self, data: bytes, start: int, end: int) -> None:
        """Take the body of a SASL frame. Raises a connection fault for an unexpected one, `DecodeError`."""
        body = decode_sasl(data, start, end)
        if isinstance(body, SaslInit) and not self._has_begun:
            self._has_begun = True
            self._connection.mechanism = body.mechanism
            challenge = self._login.begin(body.mechanism, body.initial_response or b"")
        elif isinstance(body, SaslResponse) and self._has_begun:
            challenge = self._login.respond(body.response)
        else:
            raise connection_fault(FRAMING_ERROR, f"{body.NAME} is not expected now")
        if challenge is not None:
            self._connection.send(sasl_frame(SaslChallenge(challenge).encode()))
            return
        user = self._login.user
        if user is None:
            self._refuse()
            return
        self._connection.user = user
        self.is_over = True
        self._connection.send(sasl_frame(SaslOutcome(SASL_OK).encode()))

    def _refuse(self) -> None:
        """Send the outcome without a reason, and close (5.3.3.6)."""
        self._connection.send(sasl_frame(SaslOutcome(SASL_AUTHENTICATION_FAILED).encode()))
        self._connection.advance(ENDED)


def log_in_without_sasl(connection: SessionHost) -> None:
    """Log in a peer that skips the SASL layer, as anonymous. Raises a connection fault if that is not allowed."""
    user = _login(connection).anonymous()
    if user is None:
        raise connection_fault(NOT_ALLOWED, "a login by SASL is required")
    connection.user = user


def _login(connection: SessionHost) -> Login:
    host = connection.host
    return Login(host, "amqp10", connection.peer_address, connection.certificate_user, allows_anonymous=True)
