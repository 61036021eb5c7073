"""One channel of a connection: from channel.open to its close, never reopened. `states.py` has its life as a table."""

from collections.abc import Callable
from typing import Final

from waybill.engine.amqp091.client.confirms import Confirms
from waybill.engine.amqp091.client.content import ContentAssembly
from waybill.engine.amqp091.client.deliveries import MAX_TAG, Deliveries, DeliveryCallback
from waybill.engine.amqp091.client.delivery import Delivery, ReturnedMessage
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, Initiator
from waybill.engine.amqp091.client.output import Output
from waybill.engine.amqp091.client.publisher import Publisher
from waybill.engine.amqp091.client.requests import PendingRequests, Reply
from waybill.engine.amqp091.client.settlement import Settlement
from waybill.engine.amqp091.client.states import CHANNEL_STATES, ENDED, SENT_CLOSE, ChannelState
from waybill.wire.amqp091.frames import method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetOk,
    BasicNack,
    BasicRecoverOk,
    BasicReturn,
)
from waybill.wire.amqp091.methods_channel import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
)
from waybill.wire.amqp091.methods_confirm import ConfirmSelect
from waybill.wire.amqp091.reply_codes import COMMAND_INVALID, REPLY_SUCCESS, SYNTAX_ERROR

TAGGED: Final = (BasicAck, BasicNack, BasicDeliver, BasicGetOk)


class ClientChannel:
    """A channel. `ClientEngine.open_channel` creates it; call `open` next.

    With `coalesce_acks` the acknowledgements of one turn of the loop are sent as one frame where that means the same.
    """

    def __init__(
        self,
        output: Output,
        number: int,
        frame_max: int,
        events: ChannelEvents,
        release: Callable[[int], None],
        message_size_max: int,
        *,
        coalesce_acks: bool,
    ) -> None:
        self.number = number
        self.events = events
        self.state = ChannelState.OPENING
        self.usable = True
        """Requests and publishes may be sent: OPENING or OPEN."""
        self.close_reason: CloseReason | None = None
        self._release = release
        self._output = output
        self._requests = PendingRequests()
        self._assembly = ContentAssembly(message_size_max)
        self._settlement = Settlement(output, number, coalesce_acks=coalesce_acks)
        self.publisher = Publisher(output, number, frame_max, self._settlement)
        self.deliveries = Deliveries(number, self._assembly, self._settlement, events)

    # Our side's calls

    def open(self, reply: Callable[[Reply], None]) -> None:
        self.request(ChannelOpen(), reply)

    def request(self, method: Method, reply: Callable[[Reply], None]) -> None:
        """Send a method that has an answer. `reply` is called immediately if the channel is not usable.

        Raises EncodeError for what AMQP cannot express; nothing is sent then.
        """
        if not self.usable:
            reply(self._reason())
            return
        self.send_method(method)
        self._requests.add(method, reply)

    def select_confirms(self, reply: Callable[[Reply], None]) -> None:
        """Number all publishes from now on."""
        self.request(ConfirmSelect(), reply)
        if self.publisher.confirms is None:
            self.publisher.confirms = Confirms()

    def consume(self, method: BasicConsume, callback: DeliveryCallback, reply: Callable[[Reply], None]) -> None:
        """Start a consumer. The client chooses the tag, because deliveries may follow the answer in the same read."""
        self.request(method, reply)
        if self.usable:
            self.deliveries.add_consumer(method, callback)

    @property
    def unconfirmed_count(self) -> int:
        """How many publishes wait for their confirm."""
        confirms = self.publisher.confirms
        return 0 if confirms is None else len(confirms)

    def close(self, reply: Callable[[Reply], None]) -> None:
        """End the channel in an orderly way. `reply` gets channel.close-ok or the reason why it was closed already."""
        if not self.usable:
            reply(self._reason())
            return
        self.send_method(ChannelClose(REPLY_SUCCESS, "OK"))
        self._move(SENT_CLOSE)
        # The rest of a content in transit is dropped, like everything before the reply.
        self._assembly.abort()
        self._requests.fail(self._our_close("closed by us"))
        self._requests.add(ChannelClose(), reply)

    def send_method(self, method: Method) -> None:
        self._settlement.flush_acks()
        self._output.write(method_frame(self.number, method))

    # The server's side

    def take_confirm(self, number: int, multiple: bool) -> None:  # noqa: FBT001 - the bit of basic.ack
        """A basic.ack of the server. Raises ProtocolViolation."""
        if self._assembly.busy:
            self._assembly.require_idle()
        tokens = self.publisher.settle(number, multiple)
        if tokens:
            self.events.confirmed(tokens)

    def take_method(self, method: Method) -> None:
        """Take any method. Raises ProtocolViolation."""
        if self._assembly.busy:
            self._assembly.require_idle()
        if isinstance(method, ChannelCloseOk):
            self._take_close_ok(method)
        elif isinstance(method, ChannelClose):
            self._take_close(method)
        elif isinstance(method, TAGGED) and method.delivery_tag > MAX_TAG:
            raise ProtocolViolation(SYNTAX_ERROR, f"{method.NAME} with the delivery tag {method.delivery_tag}")
        elif isinstance(method, BasicAck):
            self.take_confirm(method.delivery_tag, method.multiple)
        elif isinstance(method, BasicNack):
            tokens = self.publisher.settle(method.delivery_tag, method.multiple)
            if tokens:
                self.events.refused(tokens)
        elif self.state is ChannelState.CLOSING:
            return
        elif isinstance(method, (BasicDeliver, BasicGetOk, BasicReturn)):
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
        """The connection was closed, and the channel with it."""
        if self.state is not ChannelState.CLOSED:
            self._move(ENDED)
            self._end(reason)

    # Helpers

    def _take_reply(self, method: Method) -> None:
        request = self._requests.take(method)
        if isinstance(method, ChannelOpenOk):
            self._move(method.NAME)
        elif self.state is ChannelState.OPENING:
            raise ProtocolViolation(COMMAND_INVALID, f"{method.NAME} on a channel that is {self.state.value}")
        elif isinstance(method, BasicCancelOk):
            self.deliveries.remove_consumer(method.consumer_tag)
        elif isinstance(method, BasicRecoverOk):
            # The broker requeues unsettled deliveries, and delivers them again with new tags.
            self._settlement.settled.settle_up_to(self.deliveries.last_tag)
        request.reply(method)

    def _take_cancel(self, method: BasicCancel) -> None:
        self.deliveries.remove_consumer(method.consumer_tag)
        if not method.no_wait:
            self.send_method(BasicCancelOk(method.consumer_tag))
        self.events.consumer_cancelled(method.consumer_tag)

    def _take_content(self) -> None:
        """A method with content is complete."""
        method, properties, body = self._assembly.finish()
        if isinstance(method, BasicDeliver):
            self.deliveries.deliver(method, properties, body)
        elif isinstance(method, BasicGetOk):
            self._take_get(method, properties, body)
        elif isinstance(method, BasicReturn):
            confirms = self.publisher.confirms
            content = (method.exchange, method.routing_key, properties, body)
            token = None if confirms is None else confirms.take_returned(content)
            message = ReturnedMessage(method.reply_code, method.reply_text, *content)
            self.events.returned(token, message)

    def _take_get(self, method: BasicGetOk, properties: bytes, body: bytes) -> None:
        request = self._requests.take(method)
        self.deliveries.last_tag = method.delivery_tag
        route = (method.redelivered, method.exchange, method.routing_key)
        delivery = Delivery(self._settlement, "", method.delivery_tag, route, properties, body)
        delivery.message_count = method.message_count
        if isinstance(request.method, BasicGet) and request.method.no_ack:
            self._settlement.forget(method.delivery_tag)
        request.reply(delivery)

    def _take_close(self, method: ChannelClose) -> None:
        self._output.write(method_frame(self.number, ChannelCloseOk()))
        self._move(method.NAME)
        if self.state is ChannelState.CLOSED:
            self._end(CloseReason(method.reply_code, method.reply_text, method.class_id, method.method_id, self.number))

    def _take_close_ok(self, method: ChannelCloseOk) -> None:
        self._move(method.NAME)
        request = self._requests.take(method)
        self._end(self._our_close("closed by us"))
        request.reply(method)

    # Ends

    def _move(self, event: str) -> None:
        """Enter the state that `event` leads to. Raises ProtocolViolation if it may not come now."""
        state = CHANNEL_STATES[self.state].get(event)
        if state is None:
            raise ProtocolViolation(COMMAND_INVALID, f"{event} on a channel that is {self.state.value}")
        self.state = state
        self.usable = state is ChannelState.OPENING or state is ChannelState.OPEN
        self._settlement.usable = state is ChannelState.OPEN

    def _end(self, reason: CloseReason) -> None:
        """The channel has become CLOSED: notify all waiters."""
        self.close_reason = reason
        self.deliveries.clear()
        self._settlement.end()
        self._assembly.abort()
        self._release(self.number)
        self._requests.fail(reason)
        confirms = self.publisher.confirms
        waiting = [] if confirms is None else confirms.settle_all()
        if waiting:
            self.events.abandoned(waiting, reason)
        self.events.channel_closed(reason)

    def _our_close(self, text: str) -> CloseReason:
        return CloseReason(REPLY_SUCCESS, text, number=self.number, initiator=Initiator.CLIENT)

    def _reason(self) -> CloseReason:
        return self.close_reason or self._our_close("being closed by us")
