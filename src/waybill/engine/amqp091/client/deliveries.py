"""Decodes the deliveries of one channel and passes them to the consumers.

`take` runs once a message. It is longer than other functions and knows the layout of frames, since calls would cost
more than the work. Anything unusual takes the slow path, frame by frame, which ends in `deliver`.

    method frame:  01 | channel 2 | size 4 | class, method 4 | consumer tag | delivery tag 8 | ... | CE
    header frame:  02 | channel 2 | size 4 | class, weight 4 | body size 8 | properties | CE
    body frame:    03 | channel 2 | size 4 | body | CE
"""

from collections.abc import Callable
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.client.content import ContentAssembly
from waybill.engine.amqp091.client.delivery import Delivery, Route
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.events import ChannelEvents
from waybill.engine.amqp091.client.settlement import Settlement
from waybill.wire.amqp091.frames import FRAME_BODY, FRAME_END, FRAME_HEADER
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicDeliver
from waybill.wire.amqp091.reply_codes import COMMAND_INVALID

MAX_TAG: Final = 2**63 - 2
"""No server counts further, and larger tags do not fit signed 64-bit integers."""
ROUTES_KEPT: Final = 1024

DeliveryCallback = Callable[[Delivery], None]


class ConsumerEntry:
    """A consumer of the channel."""

    def __init__(self, consumer_tag: str, callback: DeliveryCallback, no_ack: bool) -> None:  # noqa: FBT001
        self.consumer_tag = consumer_tag
        self.callback = callback
        self.no_ack = no_ack


class Deliveries:
    """The consumers of one channel, by tag."""

    def __init__(self, number: int, assembly: ContentAssembly, settlement: Settlement, events: ChannelEvents) -> None:
        self.last_tag: i64 = 0
        self._assembly = assembly
        self._size_max: i64 = assembly.size_max
        self._settlement = settlement
        self._events = events
        self._consumers: dict[bytes, ConsumerEntry] = {}
        self._routes: dict[bytes, Route] = {}
        # Type and channel of a frame as the upper 24 bits of its first eight octets.
        self._header_mark: i64 = FRAME_HEADER << 16 | number
        self._body_mark: i64 = (FRAME_BODY << 16 | number) << 32

    def add_consumer(self, method: BasicConsume, callback: DeliveryCallback) -> None:
        self._consumers[_key(method.consumer_tag)] = ConsumerEntry(method.consumer_tag, callback, method.no_ack)

    def remove_consumer(self, consumer_tag: str) -> None:
        self._consumers.pop(_key(consumer_tag), None)

    def clear(self) -> None:
        """The channel is closed."""
        self._consumers.clear()

    def take(self, data: bytes, position: i64, method_end: i64) -> i64:
        """Take a whole basic.deliver with its content at `position`; the position after it.

        0 if it is incomplete or unusual: then it is read frame by frame.
        """
        total: i64 = len(data)
        header = method_end + 1
        if header + 22 > total or not self._settlement.usable or self._assembly.busy:
            return 0
        mark = read_i64_be(data, header)
        header_end = header + 7 + ((mark >> 8) & 0xFFFFFFFF)
        if mark >> 40 != self._header_mark or header_end < header + 21 or header_end >= total:
            return 0
        body_size = read_i64_be(data, header + 11)
        after = header_end + 1
        body = b""
        if body_size:
            body_end = after + 7 + body_size
            if body_size < 0 or body_size > self._size_max or body_end >= total:
                return 0
            if read_i64_be(data, after) >> 8 != self._body_mark | body_size:
                return 0
            body = data[after + 7 : body_end]
            if data[body_end] != FRAME_END:
                return 0
            after = body_end + 1
        tag_end = position + 12 + i64(data[position + 11])
        if data[header_end] != FRAME_END or tag_end + 11 > method_end:
            return 0
        consumer = self._consumers.get(data[position + 12 : tag_end])
        if consumer is None:
            return 0
        tag = read_i64_be(data, tag_end)
        if tag < 0 or tag > MAX_TAG:
            return 0
        route_octets = data[tag_end + 8 : method_end]
        route = self._routes.get(route_octets)
        if route is None:
            route = self._learn_route(data[position + 7 : method_end], route_octets)
        self.last_tag = tag
        settlement = self._settlement
        if consumer.no_ack:
            settlement.forget(tag)
        delivery = Delivery(settlement, consumer.consumer_tag, tag, route, data[header + 19 : header_end], body)
        try:
            consumer.callback(delivery)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            self._events.callback_failed(delivery, error)
        return after

    def deliver(self, method: BasicDeliver, properties: bytes, body: bytes) -> None:
        """Take a delivery that arrived frame by frame."""
        self.last_tag = method.delivery_tag
        route = (method.redelivered, method.exchange, method.routing_key)
        delivery = Delivery(self._settlement, method.consumer_tag, method.delivery_tag, route, properties, body)
        consumer = self._consumers.get(_key(method.consumer_tag))
        if consumer is None:
            # The consumer is gone, but the server did not know when it sent this.
            self._settlement.nack(method.delivery_tag, requeue=True, multiple=False)
            return
        if consumer.no_ack:
            self._settlement.forget(method.delivery_tag)
        try:
            consumer.callback(delivery)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            self._events.callback_failed(delivery, error)

    def _learn_route(self, payload: bytes, octets: bytes) -> Route:
        method = decode_method(payload)
        if not isinstance(method, BasicDeliver):
            raise ProtocolViolation(COMMAND_INVALID, "not a delivery")
        route = (method.redelivered, method.exchange, method.routing_key)
        if len(self._routes) >= ROUTES_KEPT:
            self._routes.clear()
        self._routes[octets] = route
        return route


def _key(consumer_tag: str) -> bytes:
    return consumer_tag.encode("utf-8", "surrogateescape")
