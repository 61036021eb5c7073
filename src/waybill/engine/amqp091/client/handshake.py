"""The client's decisions during the handshake."""

from typing import TYPE_CHECKING, Final

from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.wire.amqp091.reply_codes import ACCESS_REFUSED, NOT_IMPLEMENTED
from waybill.wire.sasl import amqplain, external, plain
from waybill.wire.sasl.errors import MalformedResponse

if TYPE_CHECKING:
    from waybill.wire.sasl import scram

SCRAM: Final = "SCRAM-SHA-256"


class ClientLogin:
    """One attempt to log in by the mechanism of `settings`. Every method raises ProtocolViolation."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._exchange: scram.ClientExchange | None = None
        self._has_responded = False

    def begin(self, offered: str) -> bytes:
        """The initial response, if the server offers the mechanism."""
        settings = self._settings
        if settings.mechanism not in offered.split():
            raise ProtocolViolation(NOT_IMPLEMENTED, f"the server offers {offered!r}, not {settings.mechanism}")
        if settings.mechanism == external.NAME:
            return external.build_response()
        if settings.mechanism == amqplain.NAME:
            return amqplain.build_response(settings.user, settings.password)
        if settings.mechanism == SCRAM:
            from waybill.wire.sasl import scram  # noqa: PLC0415 - few use it, and the others start faster

            try:
                self._exchange = scram.ClientExchange(settings.user, settings.password, settings.nonce)
            except MalformedResponse as error:
                raise ProtocolViolation(ACCESS_REFUSED, str(error)) from None
            return self._exchange.first
        return plain.build_response(settings.user, settings.password)

    def respond(self, challenge: bytes) -> bytes:
        """The answer to a challenge of the server."""
        exchange = self._exchange
        if exchange is None or exchange.is_proved:
            raise ProtocolViolation(
                NOT_IMPLEMENTED, f"an unexpected SASL challenge: {self._settings.mechanism} has none"
            )
        try:
            if self._has_responded:
                exchange.verify(challenge)
                return b""
            self._has_responded = True
            return exchange.respond(challenge)
        except MalformedResponse as error:
            raise ProtocolViolation(ACCESS_REFUSED, str(error)) from None

    def finish(self) -> None:
        """The server has accepted the login. With SCRAM it must also have proved its own identity."""
        if self._exchange is not None and not self._exchange.is_proved:
            raise ProtocolViolation(ACCESS_REFUSED, "the server does not prove that it knows the password")


def negotiate(ours: int, theirs: int) -> int:
    """The smaller of two limits where 0 means none (0-9-1, connection.tune-ok)."""
    if ours == 0 or theirs == 0:
        return max(ours, theirs)
    return min(ours, theirs)
