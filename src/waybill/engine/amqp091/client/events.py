"""The callbacks of the client engine.

The base classes do nothing, so a subclass overrides only what it needs. Every method is called from inside
`receive_data`, `handle_timeout`, `connection_lost` or a call of the user, never later.
"""

from dataclasses import dataclass
from enum import Enum

from mypy_extensions import mypyc_attr

from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage


class Initiator(Enum):
    """Who ended a channel or connection."""

    SERVER = "server"
    CLIENT = "client"
    TRANSPORT = "transport"


@dataclass(frozen=True)
class CloseReason:
    """Why a channel (`number` > 0) or a connection (`number` 0) was closed.

    `code` is a reply code of the protocol, 0 if the transport broke. `class_id` and `method_id` name the method that
    the peer objects to, 0 if it names none.
    """

    code: int
    text: str
    class_id: int = 0
    method_id: int = 0
    number: int = 0
    initiator: Initiator = Initiator.SERVER


@mypyc_attr(allow_interpreted_subclasses=True)
class ConnectionEvents:
    """Events of a connection."""

    def opened(self) -> None:
        """The handshake is done: channels may be opened."""

    def closed(self, reason: CloseReason) -> None:
        """The connection was closed; its channels were notified before. Called once."""

    def blocked(self, reason: str) -> None:
        """The broker accepts no publishes until `unblocked` (connection.blocked)."""

    def unblocked(self) -> None:
        """The broker accepts publishes again (connection.unblocked)."""

    def writing_paused(self) -> None:
        """The transport is above its high-water mark."""

    def writing_resumed(self) -> None:
        """The transport is below its low-water mark again."""

    def output_ready(self) -> None:
        """There is output for the first time since the last `data_to_send`, and not because of `receive_data`."""

    def output_full(self) -> None:
        """The output has grown large and should be written now."""


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelEvents:
    """Events of a channel."""

    def channel_closed(self, reason: CloseReason) -> None:
        """The channel was closed; requests in flight have failed with the same reason. Called once."""

    def confirmed(self, tokens: list[object]) -> None:
        """The broker has accepted the messages with these tokens, in order of publishing."""

    def refused(self, tokens: list[object]) -> None:
        """The broker has refused the messages with these tokens (basic.nack)."""

    def returned(self, token: object | None, message: ReturnedMessage) -> None:
        """A mandatory message was not routed. `token` is None on a channel without confirms."""

    def abandoned(self, tokens: list[object], reason: CloseReason) -> None:
        """The channel ended before the broker confirmed or refused the messages with these tokens."""

    def consumer_cancelled(self, consumer_tag: str) -> None:
        """The broker has cancelled a consumer, for example because its queue was deleted."""

    def flow_changed(self, active: bool) -> None:  # noqa: FBT001 - the argument of channel.flow
        """The broker asks to pause or resume publishing on this channel."""

    def callback_failed(self, delivery: Delivery, error: Exception) -> None:
        """A consumer's callback raised an exception; the delivery stays unsettled."""
