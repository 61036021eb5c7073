"""Messages as the user receives them: plain objects, because one is created for every message."""

from typing import Final

from waybill.wire.amqp091.properties import BasicProperties

NO_PROPERTIES: Final = b"\x00\x00"

Route = tuple[bool, str, str]
"""Redelivered, exchange and routing key, which consecutive deliveries often share."""


class Settler:
    """The interface of the channel for deliveries."""

    usable: bool

    def ack(self, delivery_tag: int, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - see Delivery.ack
        raise NotImplementedError

    def nack(self, delivery_tag: int, requeue: bool, multiple: bool) -> bool:  # noqa: FBT001 - see Delivery.nack
        raise NotImplementedError

    def reject(self, delivery_tag: int, requeue: bool) -> bool:  # noqa: FBT001 - see Delivery.reject
        raise NotImplementedError

    def flush_acks(self) -> None:
        raise NotImplementedError


class Delivery:
    """One delivered message.

    `delivery_tag` counts the deliveries of its channel from 1. `message_count` is what basic.get found left in the
    queue, -1 for a consumer's delivery.
    """

    def __init__(
        self,
        settler: Settler,
        consumer_tag: str,
        delivery_tag: int,
        route: Route,
        encoded_properties: bytes,
        body: bytes,
    ) -> None:
        self._settler = settler
        self._route = route
        self.consumer_tag = consumer_tag
        self.delivery_tag = delivery_tag
        self.encoded_properties = encoded_properties
        self.body = body
        self._properties: BasicProperties | None = None
        self.message_count = -1

    @property
    def redelivered(self) -> bool:
        """It may have been delivered before."""
        return self._route[0]

    @property
    def exchange(self) -> str:
        return self._route[1]

    @property
    def routing_key(self) -> str:
        return self._route[2]

    @property
    def properties(self) -> BasicProperties:
        """Decoded when first asked for. Raises DecodeError for a property list that is malformed."""
        properties = self._properties
        if properties is None:
            properties = self._properties = BasicProperties.decode(self.encoded_properties)
        return properties

    @property
    def is_current(self) -> bool:
        """Whether the channel of the delivery is still open. Otherwise the broker has requeued the delivery."""
        return self._settler.usable

    def ack(self, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - the bit of basic.ack
        """Acknowledge it (`multiple`: and all before it on this channel).

        False, and nothing is sent, if it is already settled or its channel is closed, in which case the broker
        redelivers it. The acknowledgement is written at the end of this turn of the loop.
        """
        return self._settler.ack(self.delivery_tag, multiple)

    def nack(self, requeue: bool = True, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - bits of basic.nack
        """Refuse it: back to the queue, or with `requeue=False` to the dead letter exchange. Returns as `ack` does."""
        return self._settler.nack(self.delivery_tag, requeue, multiple)

    def reject(self, requeue: bool = True) -> bool:  # noqa: FBT001, FBT002 - the bit of basic.reject
        """As `nack`, but with the method of plain 0-9-1."""
        return self._settler.reject(self.delivery_tag, requeue)

    def __repr__(self) -> str:
        return (
            f"<Delivery {self.delivery_tag} for {self.consumer_tag!r} from {self.exchange!r} "
            f"with {self.routing_key!r}, {len(self.body)} bytes>"
        )


class _NoChannel(Settler):
    """Takes the place of a delivery's channel."""

    def __init__(self) -> None:
        self.usable = True

    def ack(self, delivery_tag: int, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - see Delivery.ack
        return False

    def nack(self, delivery_tag: int, requeue: bool, multiple: bool) -> bool:  # noqa: FBT001 - see Delivery.nack
        return False

    def reject(self, delivery_tag: int, requeue: bool) -> bool:  # noqa: FBT001 - see Delivery.reject
        return False

    def flush_acks(self) -> None:
        return


def copied_delivery(
    encoded_properties: bytes, body: bytes, *, consumer_tag: str = "", redelivered: bool = True
) -> Delivery:
    """Return a stored message as a delivery; it needs no settlement with a broker."""
    return Delivery(_NoChannel(), consumer_tag, 0, (redelivered, "", ""), encoded_properties, body)


class ReturnedMessage:
    """A message that the broker could not route (basic.return). `reply_code` 312 is NO_ROUTE."""

    def __init__(
        self, reply_code: int, reply_text: str, exchange: str, routing_key: str, encoded_properties: bytes, body: bytes
    ) -> None:
        self.reply_code = reply_code
        self.reply_text = reply_text
        self.exchange = exchange
        self.routing_key = routing_key
        self.encoded_properties = encoded_properties
        self.body = body

    @property
    def properties(self) -> BasicProperties:
        """Decoded at each call. Raises DecodeError."""
        return BasicProperties.decode(self.encoded_properties)

    def __repr__(self) -> str:
        return f"<ReturnedMessage {self.reply_code} {self.reply_text}: {self.exchange!r} {self.routing_key!r}>"
