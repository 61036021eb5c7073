"""The client's errors. Each has its scope and, if the broker gave one, the reply code.

- `ClientError`: the base of all
  - `ConnectFailed`: no connection could be made; `AuthenticationFailed` is one of them
  - `ConnectionLost`: the connection was lost while this was in flight; the outcome is unknown
  - `ConnectionClosed`: the program closed the connection, or reconnecting was given up
  - `RequestTimeout`: the broker did not answer in time; `PublishTimeout`: it accepted no publishes for that long
  - `ChannelClosed`: the channel was closed, by the program or (see below) after an error
  - `ChannelLimitReached`: the connection has no free channel number
  - `MessageReturned`: a mandatory message found no queue
  - `MessageNacked`: the broker refused a message; `QueueFull` is the usual reason
  - `ProtocolError`: the broker refused what we asked, one class for each reply code
    - closing the channel (`ChannelClosed` too): `ContentTooLarge` 311, `NoConsumers` 313, `AccessRefused` 403,
      `NotFound` 404, `ResourceLocked` 405, `PreconditionFailed` 406
    - closing the connection: `ConnectionForced` 320, `InvalidPath` 402, `FrameError` 501, `SyntaxViolation` 502,
      `CommandInvalid` 503, `ChannelViolation` 504, `UnexpectedFrame` 505, `ResourceExhausted` 506, `NotAllowed` 530,
      `NotSupported` 540, `InternalError` 541
"""

from enum import Enum
from typing import Final

from waybill.engine.amqp091.client.delivery import ReturnedMessage
from waybill.engine.amqp091.client.events import CloseReason, Initiator
from waybill.wire.amqp091.methods import METHODS
from waybill.wire.amqp091.reply_codes import CONNECTION_FORCED, REPLY_SUCCESS


class Scope(Enum):
    """What an error ends."""

    MESSAGE = "message"
    CHANNEL = "channel"
    CONNECTION = "connection"


class ClientError(Exception):
    """Base of all errors of the client. `code` is the broker's reply code, 0 if there is none."""

    scope: Scope = Scope.CONNECTION
    code: int = 0


class WrongEventLoop(ClientError, RuntimeError):
    """An object was used from another thread or event loop. Nothing was done."""


class ConnectFailed(ClientError):
    """No connection could be made. The text never holds the password."""


class AuthenticationFailed(ConnectFailed):
    """The broker does not accept the login."""

    code = 403


class ConnectionClosed(ClientError):
    """The program closed the connection, or reconnecting was given up."""


class ConnectionLost(ClientError):
    """The connection was lost. Whether the broker executed the requests in flight is unknown."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class RequestTimeout(ClientError):
    """The broker did not answer in time. The outcome is unknown; a late answer is still recorded."""

    scope = Scope.CHANNEL


class PublishTimeout(ClientError):
    """The broker accepted no publishes for `blocked_timeout` (connection.blocked or channel.flow). Nothing was sent."""

    scope = Scope.MESSAGE


class ChannelClosed(ClientError):
    """The channel was closed: by the program, unless it is one of the subclasses."""

    scope = Scope.CHANNEL


class ChannelLimitReached(ClientError):
    """All channel numbers that the broker allows for a connection are in use."""


class MessageReturned(ClientError):
    """A mandatory message reached no queue (basic.return). `message`: the returned message."""

    scope = Scope.MESSAGE

    def __init__(self, message: ReturnedMessage) -> None:
        super().__init__(
            f"{message.reply_code} {message.reply_text}: exchange {message.exchange!r}, "
            f"routing key {message.routing_key!r}"
        )
        self.code = message.reply_code
        self.message = message


class MessageNacked(ClientError):
    """The broker refused a message (basic.nack)."""

    scope = Scope.MESSAGE


class QueueFull(MessageNacked):
    """A queue that the message was routed to is full and refuses more (x-overflow: reject-publish).

    basic.nack gives no reason: a broker that failed to store a message sends it too. In both cases, publish again
    later.
    """


class ProtocolError(ClientError):
    """The broker closed a channel or the connection because of a request. `method`: the refused one."""

    def __init__(self, code: int, text: str, scope: Scope = Scope.CHANNEL, method: str = "") -> None:
        super().__init__(text or f"reply code {code}")
        self.code = code
        self.text = text
        self.scope = scope
        self.method = method


class ChannelRefused(ProtocolError, ChannelClosed):
    """A soft error of the protocol (0-9-1, 1.1): it closes the channel, which reopens by itself for the next call."""


class ContentTooLarge(ChannelRefused):
    """311."""


class NoConsumers(ChannelRefused):
    """313."""


class ConnectionForced(ProtocolError):
    """320: an operator or a shutdown closed the connection."""


class InvalidPath(ProtocolError):
    """402."""


class AccessRefused(ChannelRefused):
    """403: the user may not do this."""


class NotFound(ChannelRefused):
    """404: no such queue or exchange."""


class ResourceLocked(ChannelRefused):
    """405: another connection holds the queue exclusively."""


class PreconditionFailed(ChannelRefused):
    """406: it exists with other properties, or a delivery tag is unknown."""


class FrameError(ProtocolError):
    """501."""


class SyntaxViolation(ProtocolError):
    """502."""


class CommandInvalid(ProtocolError):
    """503."""


class ChannelViolation(ProtocolError):
    """504."""


class UnexpectedFrame(ProtocolError):
    """505."""


class ResourceExhausted(ProtocolError):
    """506."""


class NotAllowed(ProtocolError):
    """530: no such virtual host, or the broker forbids this use of it."""


class NotSupported(ProtocolError):
    """540."""


class InternalError(ProtocolError):
    """541."""


BY_CODE: Final[dict[int, type[ProtocolError]]] = {
    311: ContentTooLarge,
    313: NoConsumers,
    320: ConnectionForced,
    402: InvalidPath,
    403: AccessRefused,
    404: NotFound,
    405: ResourceLocked,
    406: PreconditionFailed,
    501: FrameError,
    502: SyntaxViolation,
    503: CommandInvalid,
    504: ChannelViolation,
    505: UnexpectedFrame,
    506: ResourceExhausted,
    530: NotAllowed,
    540: NotSupported,
    541: InternalError,
}

METHOD_NAMES: Final = {(method.CLASS_ID, method.METHOD_ID): method.NAME for method in METHODS}


def error_of(reason: CloseReason) -> ClientError:
    """The error for a request that was not answered before its channel or connection was closed."""
    if reason.initiator is Initiator.CLIENT and reason.code == REPLY_SUCCESS:
        return ChannelClosed(reason.text) if reason.number else ConnectionClosed(reason.text)
    if reason.initiator is Initiator.TRANSPORT or reason.code in {0, REPLY_SUCCESS, CONNECTION_FORCED}:
        return ConnectionLost(reason.text, reason.code)
    scope = Scope.CHANNEL if reason.number else Scope.CONNECTION
    method = METHOD_NAMES.get((reason.class_id, reason.method_id), "")
    return BY_CODE.get(reason.code, ProtocolError)(reason.code, reason.text, scope, method)


def publish_error_of(reason: CloseReason) -> ClientError:
    """The error for a publish in flight: ConnectionLost, unless the program closed the connection."""
    error = error_of(reason)
    if reason.number == 0 and not isinstance(error, ConnectionClosed):
        return ConnectionLost(str(error), reason.code)
    return error
