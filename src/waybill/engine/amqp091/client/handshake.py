"""The client's decisions during the handshake."""

from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.wire.amqp091.reply_codes import NOT_IMPLEMENTED
from waybill.wire.sasl import amqplain, external, plain


def choose_login(settings: ConnectionSettings, offered: str) -> bytes:
    """The initial response of the mechanism of `settings`. Raises ProtocolViolation if the server does not offer it."""
    if settings.mechanism not in offered.split():
        raise ProtocolViolation(NOT_IMPLEMENTED, f"the server offers {offered!r}, not {settings.mechanism}")
    if settings.mechanism == external.NAME:
        return external.build_response()
    if settings.mechanism == amqplain.NAME:
        return amqplain.build_response(settings.user, settings.password)
    return plain.build_response(settings.user, settings.password)


def negotiate(ours: int, theirs: int) -> int:
    """The smaller of two limits where 0 means none (0-9-1, connection.tune-ok)."""
    if ours == 0 or theirs == 0:
        return max(ours, theirs)
    return min(ours, theirs)
