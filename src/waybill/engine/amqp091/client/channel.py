"""One incarnation of a channel: from channel.open to its close, never reopened.

    OPENING --channel.open-ok--> OPEN --close()--> CLOSING --channel.close-ok--> CLOSED
       |                          |                   |
       +--------------------------+-------------------+--- channel.close, connection gone --> CLOSED

Requests may be sent at once, before the open is answered and before each other's answers: the server works on a
channel in order. Answers of one kind come in that order too, but not those of all kinds: RabbitMQ's queues answer
basic.consume and basic.cancel themselves, and then a later request may be answered first. So an answer belongs to the
first request of its kind, for those two with the same consumer tag.

`take_delivery` and `publish` run once a message. They are longer than other functions and know the layout of frames,
since calls would cost more than the work.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from waybill.engine.amqp091.client.acknowledgements import Acknowledgements
from waybill.engine.amqp091.client.confirms import Confirms
from waybill.engine.amqp091.client.content import ContentAssembly
from waybill.engine.amqp091.client.delivery import NO_PROPERTIES, Delivery, ReturnedMessage, Route, Settler
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, Initiator
from waybill.engine.amqp091.client.output import Output
from waybill.wire.amqp091.errors import EncodeError
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    method_frame,
    write_body_frames,
)
from waybill.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    Method,
    decode_method,
)
from waybill.wire.amqp091.properties import BasicProperties
from waybill.wire.amqp091.reply_codes import COMMAND_INVALID, REPLY_SUCCESS, SYNTAX_ERROR

MAX_TAG: Final = 2**63 - 1
"""No server counts further, and larger ones do not fit the numbers in use."""
TAGGED: Final = (BasicAck, BasicNack, BasicDeliver, BasicGetOk)
ROUTE_CACHE_LIMIT: Final = 1024
DELIVERY_CACHE_LIMIT: Final = 1024
END_OCTET: Final = b"\xce"
ACK_START_SIZE: Final = 11

Reply = Method | Delivery | CloseReason
"""What comes of a request: the server's answer, for basic.get with a message the delivery, or why there is none."""

DeliveryCallback = Callable[[Delivery], None]


class ChannelState(Enum):
    """See the diagram of the module."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"


class Request:
    """A method that waits for its answer, which `reply` is called with once."""

    def __init__(self, method: Method, reply: Callable[[Reply], None]) -> None:
        self.method = method
        self.reply = reply


class ConsumerEntry:
    """A consumer of the channel."""

    def __init__(self, consumer_tag: str, callback: DeliveryCallback, no_ack: bool) -> None:  # noqa: FBT001
        self.consumer_tag = consumer_tag
        self.callback = callback
        self.no_ack = no_ack


class ClientChannel(Settler):
    """A channel; made by `ClientEngine.open_channel`, which has sent channel.open then.

    With `coalesce_acks` the acknowledgements of one turn of the loop are sent as one frame where that means the same.
    """

    def __init__(
        self,
        output: Output,
        number: int,
        frame_max: int,
        events: ChannelEvents,
        release: Callable[[int], None],
        *,
        coalesce_acks: bool,
    ) -> None:
        self._release = release
        self.number = number
        self.events = events
        self.state = ChannelState.OPENING
        self.usable = True
        """Requests and publishes may be sent."""
        self._open = False
        """`state` is OPEN, for the functions that run once a message."""
        self.close_reason: CloseReason | None = None
        self.confirms: Confirms | None = None
        self._output = output
        self._frame_max = frame_max
        self._requests: deque[Request] = deque()
        self._assembly = ContentAssembly()
        self._consumers: dict[bytes, ConsumerEntry] = {}
        self._delivery_routes: dict[bytes, Route] = {}
        self._acknowledgements = Acknowledgements()
        self._last_tag: i64 = 0
        self._coalesce_acks = coalesce_acks
        self._unsent_acks: list[int] = []
        self._publish_frames: dict[tuple[str, str, bool], bytes] = {}
        self._last_properties: BasicProperties | None = None
        self._last_encoded = NO_PROPERTIES
        channel = number.to_bytes(2, "big")
        # Type and channel of a frame as the upper 24 bits of its first eight octets.
        self._header_mark: i64 = FRAME_HEADER << 16 | number
        self._body_mark: i64 = (FRAME_BODY << 16 | number) << 32
        self._header_start = bytes([FRAME_HEADER]) + channel
        self._body_start = bytes([FRAME_END, FRAME_BODY]) + channel
        self._ack_start = method_frame(number, BasicAck())[:ACK_START_SIZE]

    # Our side's calls

    def open(self, reply: Callable[[Reply], None]) -> None:
        self.request(ChannelOpen(), reply)

    def request(self, method: Method, reply: Callable[[Reply], None]) -> None:
        """Send a method that has an answer. `reply` is called at once if the channel is not usable."""
        if not self.usable:
            reply(self._reason())
            return
        self.send_method(method)
        self._requests.append(Request(method, reply))

    def select_confirms(self, reply: Callable[[Reply], None]) -> None:
        """Number all publishes from now on."""
        self.request(ConfirmSelect(), reply)
        if self.confirms is None:
            self.confirms = Confirms()

    def consume(self, method: BasicConsume, callback: DeliveryCallback, reply: Callable[[Reply], None]) -> None:
        """Start a consumer, whose tag is ours to give: its deliveries may follow the answer in the same read."""
        if self.usable:
            key = method.consumer_tag.encode("utf-8", "surrogateescape")
            self._consumers[key] = ConsumerEntry(method.consumer_tag, callback, method.no_ack)
        self.request(method, reply)

    def publish(
        self,
        body: bytes,
        exchange: str,
        routing_key: str,
        properties: BasicProperties | bytes | None,
        mandatory: bool,  # noqa: FBT001 - the bit of basic.publish
        token: object | None,
    ) -> None:
        """Write a message. On a confirm channel `token` comes back with the broker's answer.

        The caller has seen that the channel is usable. Raises EncodeError for names or properties that have no
        encoding; nothing is written then.
        """
        key = (exchange, routing_key, mandatory)
        method = self._publish_frames.get(key)
        if method is None:
            method = self._publish_frame(exchange, routing_key, mandatory)
        if properties is None:
            encoded = NO_PROPERTIES
        elif isinstance(properties, bytes):
            encoded = properties
        else:
            encoded = self._encode(properties)
        if len(encoded) > self._frame_max - FRAME_OVERHEAD - 12:
            # A content header has to fit into one frame; the server would end the connection over it.
            raise EncodeError(f"properties of {len(encoded)} octets do not fit into a frame of {self._frame_max}")
        size: i64 = len(body)
        out = BytesWriter()
        out.write(method)
        out.write(self._header_start)
        # Payload size, class 60 and weight 0, as one number of eight octets.
        write_i64_be(out, (12 + len(encoded)) << 32 | 60 << 16)
        write_i64_be(out, size)
        out.write(encoded)
        if 0 < size <= self._frame_max - FRAME_OVERHEAD:
            out.write(self._body_start)
            write_i32_be(out, i32(size))
            out.write(body)
            out.write(END_OCTET)
        else:
            out.write(END_OCTET)
            write_body_frames(out, self.number, body, self._frame_max)
        if self._unsent_acks:
            self.flush_acks()
        self._output.write(out.getvalue())
        confirms = self.confirms
        if confirms is not None:
            confirms.add(token, (exchange, routing_key, encoded, body) if mandatory else None)

    def ack(self, delivery_tag: int, multiple: bool = False) -> bool:  # noqa: FBT001, FBT002 - see Delivery.ack
        if not self._open:
            return False
        acknowledgements = self._acknowledgements
        if multiple:
            if not acknowledgements.settle_up_to(delivery_tag):
                return False
            # What was acknowledged alone and is not sent yet is covered by this one.
            self._unsent_acks = [tag for tag in self._unsent_acks if tag > delivery_tag]
            self.send_method(BasicAck(delivery_tag, multiple=True))
            return True
        if not acknowledgements.settle(delivery_tag):
            return False
        if self._coalesce_acks:
            if not self._unsent_acks:
                self._output.add_pending(self)
            self._unsent_acks.append(delivery_tag)
        else:
            self._output.write(self._ack_start + delivery_tag.to_bytes(8, "big") + b"\x00\xce")
        return True

    def nack(self, delivery_tag: int, requeue: bool, multiple: bool) -> bool:  # noqa: FBT001 - see Delivery.nack
        if not self._open:
            return False
        acknowledgements = self._acknowledgements
        # Acknowledgements that wait must go first, or `multiple` would refuse their deliveries too.
        self.flush_acks()
        if not (acknowledgements.settle_up_to(delivery_tag) if multiple else acknowledgements.settle(delivery_tag)):
            return False
        self.send_method(BasicNack(delivery_tag, multiple=multiple, requeue=requeue))
        return True

    def reject(self, delivery_tag: int, requeue: bool) -> bool:  # noqa: FBT001 - see Delivery.reject
        if not self._open:
            return False
        # As above: one with `multiple` for those around it would take it along.
        self.flush_acks()
        if not self._acknowledgements.settle(delivery_tag):
            return False
        self.send_method(BasicReject(delivery_tag, requeue=requeue))
        return True

    def flush_acks(self) -> None:
        """Write the acknowledgements of this turn of the loop."""
        tags = self._unsent_acks
        if not tags:
            return
        self._unsent_acks = []
        if not self._open:
            return
        up_to, others = self._acknowledgements.compact(tags)
        if up_to:
            self._output.write(method_frame(self.number, BasicAck(up_to, multiple=True)))
        for tag in others:
            self._output.write(self._ack_start + tag.to_bytes(8, "big") + b"\x00\xce")

    def close(self, reply: Callable[[Reply], None]) -> None:
        """End the channel in an orderly way. `reply` gets channel.close-ok or the reason why it was closed already."""
        if not self.usable:
            reply(self._reason())
            return
        self.send_method(ChannelClose(REPLY_SUCCESS, "OK"))
        self.state = ChannelState.CLOSING
        self._open = False
        self.usable = False
        reason = CloseReason(REPLY_SUCCESS, "closed by us", number=self.number, initiator=Initiator.CLIENT)
        self._fail_requests(reason)
        self._requests.append(Request(ChannelClose(), reply))

    def send_method(self, method: Method) -> None:
        if self._unsent_acks:
            self.flush_acks()
        self._output.write(method_frame(self.number, method))

    # The server's side

    def take_delivery(self, data: bytes, position: i64, method_end: i64) -> i64:
        """Take a whole basic.deliver with its content at `position`; the position after it.

        0 if not all of it is there or it looks unusual: then it goes the slow way, frame by frame.

            method frame:  01 | channel 2 | size 4 | class, method 4 | consumer tag | delivery tag 8 | ... | CE
            header frame:  02 | channel 2 | size 4 | class, weight 4 | body size 8 | properties | CE
            body frame:    03 | channel 2 | size 4 | body | CE
        """
        total: i64 = len(data)
        header = method_end + 1
        if header + 22 > total or not self._open or self._assembly.busy:
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
            if body_size < 0 or body_end >= total or read_i64_be(data, after) >> 8 != self._body_mark | body_size:
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
        if tag < 0:
            return 0
        route_octets = data[tag_end + 8 : method_end]
        route = self._delivery_routes.get(route_octets)
        if route is None:
            route = self._learn_route(data[position + 7 : method_end], route_octets)
        self._last_tag = tag
        if consumer.no_ack:
            self._acknowledgements.settle(tag)
        delivery = Delivery(self, consumer.consumer_tag, tag, route, data[header + 19 : header_end], body)
        try:
            consumer.callback(delivery)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            self.events.callback_failed(delivery, error)
        return after

    def take_confirm(self, number: int, multiple: bool) -> None:  # noqa: FBT001 - the bit of basic.ack
        """A basic.ack of the server."""
        tokens = self._settle(number, multiple)
        if tokens:
            self.events.confirmed(tokens)

    def take_method(self, method: Method) -> None:
        """Take any method. Raises ProtocolViolation."""
        if self._assembly.busy:
            self._assembly.require_idle()
        if isinstance(method, ChannelCloseOk):
            self._take_close_ok()
        elif isinstance(method, ChannelClose):
            self._take_close(method)
        elif isinstance(method, TAGGED) and method.delivery_tag > MAX_TAG:
            raise ProtocolViolation(SYNTAX_ERROR, f"{method.NAME} with the delivery tag {method.delivery_tag}")
        elif isinstance(method, BasicAck):
            self.take_confirm(method.delivery_tag, method.multiple)
        elif isinstance(method, BasicNack):
            tokens = self._settle(method.delivery_tag, method.multiple)
            if tokens:
                self.events.refused(tokens)
        elif self.state is ChannelState.CLOSING:
            return
        elif isinstance(method, BasicDeliver | BasicGetOk | BasicReturn):
            self._assembly.start(method)
        elif isinstance(method, BasicCancel):
            self._take_cancel(method)
        elif isinstance(method, ChannelFlow):
            self.send_method(ChannelFlowOk(method.active))
            self.events.flow_changed(method.active)
        else:
            self._take_reply(method)

    def take_header(self, payload: bytes) -> None:
        """Take the payload of a content header frame. Raises ProtocolViolation or DecodeError."""
        if self.state is not ChannelState.CLOSING and self._assembly.take_header(payload):
            self._take_content()

    def take_body(self, payload: bytes) -> None:
        """Take the payload of a content body frame. Raises ProtocolViolation."""
        if self.state is not ChannelState.CLOSING and self._assembly.take_body(payload):
            self._take_content()

    def connection_closed(self, reason: CloseReason) -> None:
        """The connection is no more, and so is the channel."""
        if self.state is not ChannelState.CLOSED:
            self._end(reason)

    # Helpers

    def _publish_frame(self, exchange: str, routing_key: str, mandatory: bool) -> bytes:  # noqa: FBT001
        frame = method_frame(self.number, BasicPublish(exchange, routing_key, mandatory))
        if len(self._publish_frames) >= ROUTE_CACHE_LIMIT:
            self._publish_frames.clear()
        self._publish_frames[exchange, routing_key, mandatory] = frame
        return frame

    def _encode(self, properties: BasicProperties) -> bytes:
        """Encode, unless they equal the ones before. Comparing with a copy finds out when their owner changed them."""
        if properties.headers is not None:
            # A table may hold lists and tables that are changed in place: those are not worth a deep copy.
            return properties.encode()
        if self._last_properties is None or properties != self._last_properties:
            self._last_encoded = properties.encode()
            self._last_properties = BasicProperties(
                properties.content_type,
                properties.content_encoding,
                None,
                properties.delivery_mode,
                properties.priority,
                properties.correlation_id,
                properties.reply_to,
                properties.expiration,
                properties.message_id,
                properties.timestamp,
                properties.type,
                properties.user_id,
                properties.app_id,
            )
        return self._last_encoded

    def _learn_route(self, payload: bytes, octets: bytes) -> Route:
        method = decode_method(payload)
        if not isinstance(method, BasicDeliver):
            raise ProtocolViolation(COMMAND_INVALID, "not a delivery")
        route = (method.redelivered, method.exchange, method.routing_key)
        if len(self._delivery_routes) >= DELIVERY_CACHE_LIMIT:
            self._delivery_routes.clear()
        self._delivery_routes[octets] = route
        return route

    def _settle(self, number: int, multiple: bool) -> list[object]:  # noqa: FBT001 - the bit of basic.ack
        if self.confirms is None:
            raise ProtocolViolation(COMMAND_INVALID, "a confirm on a channel without confirms")
        try:
            return self.confirms.settle(number, multiple)
        except ValueError as error:
            raise ProtocolViolation(COMMAND_INVALID, str(error)) from None

    def _take_reply(self, method: Method) -> None:
        request = self._answered(method)
        if isinstance(method, ChannelOpenOk):
            self.state = ChannelState.OPEN
            self._open = True
        elif isinstance(method, BasicCancelOk):
            self._consumers.pop(method.consumer_tag.encode("utf-8", "surrogateescape"), None)
        elif isinstance(method, BasicRecoverOk):
            # All that was unsettled goes back to its queue, to be delivered again under new tags.
            self._acknowledgements.settle_up_to(self._last_tag)
        request.reply(method)

    def _answered(self, answer: Method) -> Request:
        """Take the request that `answer` is for. Raises ProtocolViolation."""
        for request in self._requests:
            method = request.method
            if not answer.NAME.startswith(method.NAME + "-"):
                continue
            if _consumer_tag(answer) != _consumer_tag(method):
                continue
            self._requests.remove(request)
            return request
        raise ProtocolViolation(COMMAND_INVALID, f"{answer.NAME} answers nothing that was asked")

    def _take_cancel(self, method: BasicCancel) -> None:
        self._consumers.pop(method.consumer_tag.encode("utf-8", "surrogateescape"), None)
        if not method.no_wait:
            self.send_method(BasicCancelOk(method.consumer_tag))
        self.events.consumer_cancelled(method.consumer_tag)

    def _take_content(self) -> None:
        """A method with content is complete."""
        method, properties, body = self._assembly.finish()
        if isinstance(method, BasicDeliver):
            self._deliver(method, properties, body)
        elif isinstance(method, BasicGetOk):
            self._take_get(method, properties, body)
        elif isinstance(method, BasicReturn):
            content = (method.exchange, method.routing_key, properties, body)
            token = None if self.confirms is None else self.confirms.take_returned(content)
            message = ReturnedMessage(method.reply_code, method.reply_text, *content)
            self.events.returned(token, message)

    def _deliver(self, method: BasicDeliver, properties: bytes, body: bytes) -> None:
        self._last_tag = method.delivery_tag
        route = (method.redelivered, method.exchange, method.routing_key)
        delivery = Delivery(self, method.consumer_tag, method.delivery_tag, route, properties, body)
        consumer = self._consumers.get(method.consumer_tag.encode("utf-8", "surrogateescape"))
        if consumer is None:
            # The consumer is gone, but the server did not know when it sent this.
            self.nack(method.delivery_tag, requeue=True, multiple=False)
            return
        if consumer.no_ack:
            self._acknowledgements.settle(method.delivery_tag)
        try:
            consumer.callback(delivery)
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises
            self.events.callback_failed(delivery, error)

    def _take_get(self, method: BasicGetOk, properties: bytes, body: bytes) -> None:
        request = self._answered(method)
        self._last_tag = method.delivery_tag
        route = (method.redelivered, method.exchange, method.routing_key)
        delivery = Delivery(self, "", method.delivery_tag, route, properties, body)
        delivery.message_count = method.message_count
        if isinstance(request.method, BasicGet) and request.method.no_ack:
            self._acknowledgements.settle(method.delivery_tag)
        request.reply(delivery)

    def _take_close(self, method: ChannelClose) -> None:
        self._output.write(method_frame(self.number, ChannelCloseOk()))
        if self.state is ChannelState.CLOSING:
            return  # Both sides closed at once: the answer to our close is still to come.
        reason = CloseReason(method.reply_code, method.reply_text, method.class_id, method.method_id, self.number)
        self._end(reason)

    def _take_close_ok(self) -> None:
        if self.state is not ChannelState.CLOSING:
            raise ProtocolViolation(COMMAND_INVALID, "channel.close-ok on a channel that was not closed")
        request = self._answered(ChannelCloseOk())
        self._end(CloseReason(REPLY_SUCCESS, "closed by us", number=self.number, initiator=Initiator.CLIENT))
        request.reply(ChannelCloseOk())

    def _end(self, reason: CloseReason) -> None:
        self.state = ChannelState.CLOSED
        self._open = False
        self.usable = False
        self.close_reason = reason
        self._consumers.clear()
        self._unsent_acks = []
        self._assembly.abort()
        self._release(self.number)
        self._fail_requests(reason)
        waiting = [] if self.confirms is None else self.confirms.settle_all()
        if waiting:
            self.events.abandoned(waiting, reason)
        self.events.channel_closed(reason)

    def _fail_requests(self, reason: CloseReason) -> None:
        requests = list(self._requests)
        self._requests.clear()
        for request in requests:
            request.reply(reason)

    def _reason(self) -> CloseReason:
        if self.close_reason is not None:
            return self.close_reason
        return CloseReason(REPLY_SUCCESS, "being closed by us", number=self.number, initiator=Initiator.CLIENT)


def _consumer_tag(method: Method) -> str:
    """The consumer that a request or its answer is about, empty for all others."""
    if isinstance(method, BasicConsume | BasicConsumeOk | BasicCancel | BasicCancelOk):
        return method.consumer_tag
    return ""
