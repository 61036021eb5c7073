"""A connection of AMQP 0-9-1, server side: splits its input into frames and passes them to channels.

The loop in `_process` is the hottest code of the broker. A publish is recognized by comparing its method frame with the
last one; header and body are then taken as one slice, which is all that is ever done with them. Acknowledgements are
read in place. Everything else is decoded and dispatched by method.
"""

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.server.assembly import Assembly
from waybill.engine.amqp091.server.channel import ACK_FRAME_SIZE, Channel
from waybill.engine.amqp091.server.channel_host import ChannelHost, ChannelTask
from waybill.engine.amqp091.server.channel_routes import ChannelRoute, ChannelRoutes
from waybill.engine.amqp091.server.dispatch import HANDLERS
from waybill.engine.amqp091.server.faults import (
    ACK,
    BASIC,
    EXCHANGE,
    PUBLISH,
    QUEUE,
    Fault,
    connection_fault,
    fault_of,
    read_method,
)
from waybill.engine.amqp091.server.handshake import Handshake
from waybill.engine.amqp091.server.publish_route import INCOMPLETE
from waybill.engine.amqp091.server.task import Closing, Leaving
from waybill.engine.amqp091.server.throttle import Throttle
from waybill.engine.connection_state import CLOSING, ENDED, FAILED, OPEN, OPENING, PEER_CLOSED
from waybill.engine.delivery.drain import drain
from waybill.engine.host import Host
from waybill.engine.server_connection import BLOCKED, WAITS_FOR_TURN
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    method_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicNack, BasicReject
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from waybill.wire.amqp091.reply_codes import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    UNEXPECTED_FRAME,
)

ACK_ID: Final = 60 << 16 | 80
PUBLISH_ID: Final = 60 << 16 | 40
DECLARE: Final = 10
"""The method id of queue.declare and exchange.declare."""
ACK_ARGUMENTS_SIZE: Final = 10
# The cost of decoding a frame that is not recognized by its bytes, and its arguments.
FRAME_UNITS: Final = 4
TOPOLOGY_UNITS: Final = 12
FRAME_UNIT_BITS: Final = 5
BODY_UNIT_BITS: Final = 13
NOT_EXPECTED: Final = 0
"""The end of the recognized frames if there are none."""
PUBLISH_UNIT_BITS: Final = 10
CLOSE_OK_FRAME: Final = method_frame(0, ConnectionCloseOk())


class Connection(ChannelHost):
    """One peer. See `ServerConnection` for what it shares with other protocols."""

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str = ""
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, OPENING)
        self._excuses = BLOCKED
        self.protocol = "AMQP 0-9-1"
        self.channels: dict[i64, Channel] = {}
        self._is_deaf = False
        self._next: i64 = 0
        self._routes = ChannelRoutes()
        self._last_route: ChannelRoute | None = None
        # The same route, unless the last messages had different ones.
        self._expected: ChannelRoute | None = None
        self._last_acking: Channel | None = None
        self._closing_channels: set[i64] = set()
        self._task: ChannelTask | None = None
        self._throttle = Throttle(self)
        self._handshake = Handshake(self)
        self._handshake.start()

    # --- for the base ---

    def has_read(self, size: i64) -> None:
        route = self._last_route
        if route is not None and not self._pauses & WAITS_FOR_TURN and route.is_outrunning():
            self.pace()
        if self.host.alarm:
            self._throttle.read_in_alarm(size)
            self.alarm_changed()

    def take(self, data: bytes) -> i64:
        o: i64 = 0
        while not self._is_deaf and self.has_done_tasks():
            try:
                return self._process(data, o)
            except Exception as error:  # noqa: BLE001 - `_fail` knows them all
                self._fail(error)
            o = self._next
            if o < 0:
                # Frames can no longer be told apart, but the connection can still be closed properly.
                self._is_deaf = True
        if self._is_deaf:
            return self._listen_for_goodbye(data)
        return o

    def _listen_for_goodbye(self, data: bytes) -> i64:
        if data.endswith(CLOSE_OK_FRAME):
            self.advance(ENDED)
        return max(len(data) - len(CLOSE_OK_FRAME), 0)

    def _is_logging_in(self) -> bool:
        return self.state == OPENING

    def begin(self, task: ChannelTask) -> None:
        self._task = task
        if not self.has_done_tasks():
            self.wait_for_turn()

    def has_done_tasks(self) -> bool:
        task = self._task
        if task is None:
            return True
        # One that raises is not tried again.
        self._task = None
        if not task.work():
            self._task = task
            return False
        task.finish()
        return True

    def prepared_units(self) -> i64:
        units: i64 = 0
        for channel in self.channels.values():
            if channel.transaction is not None:
                units = max(units, channel.transaction.units)
        return units

    def wake_consumers(self) -> None:
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                if not consumer.is_active:
                    consumer.credit_available()

    def send_heartbeat(self) -> None:
        self.send(HEARTBEAT_FRAME)

    def peer_is_silent(self) -> None:
        self.report("connection closed", f"no heartbeat came for {self.receive_timeout_s:g} s")
        self.advance(ENDED)

    def not_open(self) -> Exception:
        return connection_fault(COMMAND_INVALID, "the connection is not open")

    def fail_with_internal_error(self) -> None:
        self._close_connection(connection_fault(INTERNAL_ERROR, "an error in the broker; see its log"))

    # --- for the node ---

    def alarm_changed(self) -> None:
        if self.state == OPEN:
            self._throttle.alarm_changed(has_published=self._last_route is not None)

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its close-ok."""
        if self.state == OPEN:
            self._fail(connection_fault(CONNECTION_FORCED, reason))
        elif self.state != CLOSING:
            self.advance(ENDED)

    def check_timeouts(self, now: float) -> None:
        for channel in list(self.channels.values()):
            fault = channel.overdue(now)
            if fault is not None:
                self._fail(fault, channel)

    # --- for channels, handshake and throttle ---

    def holds_messages(self) -> bool:
        return any(channel.unsettled_count > 0 for channel in self.channels.values())

    def alarm_told(self, method: Method, now: float) -> None:
        self._last_route = self._expected = None
        # While it was not read, its silence was our doing.
        self._received_at = now
        if self.knows_blocked:
            self.send_method(0, method)

    def refuse_login(self, close: ConnectionClose, *, tells: bool) -> None:
        if tells:
            self.send_method(0, close)
        self.advance(ENDED)

    # --- input ---

    def _process(self, data: bytes, o: i64) -> i64:
        """Take all whole frames, or whole publishes, of `data` from `o` on. Returns the offset of the rest.

        When it raises, `_next` is the start of the next frame, or negative if that is unknown.
        """
        n: i64 = len(data)
        runtime = self.host.runtime
        while n - o >= 8 and runtime.work_left > 0:
            if not self._takes_input:
                return n
            self._next = INCOMPLETE
            end: i64 = NOT_EXPECTED
            route = self._expected
            if route is not None and data[o : o + route.size] == route.octets:
                end = self._take_messages(route, data, o, n)
            if end == NOT_EXPECTED:
                acking = self._last_acking
                if acking is not None and n - o >= ACK_FRAME_SIZE and acking.has_ack(data, o):
                    end = self._take_acks(acking, data, o, n)
                if end <= o:
                    end = self._take_next(data, o, n)
            if end == INCOMPLETE:
                break
            o = end
        return o

    def _take_next(self, data: bytes, o: i64, n: i64) -> i64:
        """Take an unrecognized frame at `o`. Returns where it ends, with the frames taken along."""
        # Type, channel and size of a frame, and the octet after them, as one number.
        head = read_i64_be(data, o)
        size = head >> 8 & 0xFFFFFFFF
        # Eight octets more than frame_max are let through, as in RabbitMQ: AMQPStorm counts payloads by it.
        if size > self.frame_max:
            raise connection_fault(FRAME_ERROR, f"a frame of {size + 8} octets exceeds frame_max {self.frame_max}")
        if n - o < size + 8:
            return INCOMPLETE
        if data[o + size + 7] != FRAME_END:
            raise connection_fault(FRAME_ERROR, "a frame does not end with its end octet")
        self._next = o + size + 8
        kind = head >> 56 & 0xFF
        number = head >> 40 & 0xFFFF
        if kind == FRAME_METHOD and size >= 4 and self.state == OPEN:
            method_id = read_i32_be(data, o + 7)
            if method_id == PUBLISH_ID:
                return self._take_publish(number, data, o, n, size + 8)
            if method_id == ACK_ID and size == ACK_FRAME_SIZE - 8:
                channel = self._channel(number)
                if channel is not None and channel.assembly is None:
                    self._last_acking = channel
                    return self._take_acks(channel, data, o, n)
            if method_id >> 16 == EXCHANGE or method_id >> 16 == QUEUE:
                self.host.runtime.work_left -= TOPOLOGY_UNITS
        unit_bits = BODY_UNIT_BITS if kind == FRAME_BODY else FRAME_UNIT_BITS
        self.host.runtime.work_left -= FRAME_UNITS + (size >> unit_bits)
        self._take_frame(kind, number, data, o, size)
        return o + size + 8

    def _take_acks(self, channel: Channel, data: bytes, o: i64, n: i64) -> i64:
        """Take consecutive basic.ack frames of one channel from `o` on. Returns where they end."""
        last = n - ACK_FRAME_SIZE
        runtime = self.host.runtime
        try:
            while o <= last and runtime.work_left > 0 and channel.assembly is None and channel.has_ack(data, o):
                end = channel.acknowledge_run(data, o, n)
                if end == o:
                    end += ACK_FRAME_SIZE
                    self._next = end
                    channel.acknowledge(data, end - ACK_ARGUMENTS_SIZE)
                o = end
                self._next = o
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(error, channel, BASIC, ACK)
        return o

    def _take_messages(self, route: ChannelRoute, data: bytes, o: i64, n: i64) -> i64:
        """Publish the message at `o`, and following ones that differ only in their bodies.

        Returns where those end that were taken, or as `PublishRoute.content_end` if the first cannot be.
        """
        channel = route.channel
        if not channel.is_open or channel.assembly is not None:
            return 0
        end = route.run_end(data, o, n, one_by_one=channel.transaction is not None) if route.stride > 0 else o
        try:
            if end > o:
                self._next = o + route.stride
                return channel.publish_run(route, data, o, end)
            content = o + route.size
            end = route.content_end(data, content, n)
            if end <= 0:
                return end
            self._next = end
            self.host.runtime.work_left -= (end - content) >> PUBLISH_UNIT_BITS
            channel.publish(route, data, content, end, route.facts)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(error, channel, BASIC, PUBLISH)
        return self._next

    def _take_publish(self, number: i64, data: bytes, o: i64, n: i64, size: i64) -> i64:
        """A basic.publish method frame at `o`. Returns the end of its content, or of the taken part."""
        channel = self._channel(number)
        if channel is None:
            return o + size
        if channel.assembly is not None:
            raise connection_fault(UNEXPECTED_FRAME, "expected content, got basic.publish", BASIC, PUBLISH)
        route = self._routes.of(channel, data[o : o + size])
        self._expected = route if route is self._last_route else None
        self._last_route = route
        end = self._take_messages(route, data, o, n)
        if end != 0:
            return end
        if channel.is_open:
            channel.assembly = Assembly(self, route)
        return o + size

    def _channel(self, number: i64) -> Channel | None:
        """The open channel of that number; None if it waits for close-ok, when everything on it is dropped."""
        channel = self.channels.get(number)
        if channel is not None:
            return channel
        if number in self._closing_channels:
            return None
        if self.state == OPEN:
            raise connection_fault(CHANNEL_ERROR, f"expected 'channel.open' on channel {number}")
        if self.state == CLOSING:
            return None
        raise connection_fault(COMMAND_INVALID, "the connection is not open")

    def _take_frame(self, kind: i64, number: i64, data: bytes, o: i64, size: i64) -> None:
        if kind == FRAME_METHOD:
            self._take_method(number, data[o + 7 : o + 7 + size])
        elif kind == FRAME_HEARTBEAT:
            if number != 0 or size != 0:
                code = FRAME_ERROR if number == 0 else UNEXPECTED_FRAME
                raise connection_fault(code, "a heartbeat frame belongs on channel 0 and has no payload")
        elif kind in {FRAME_HEADER, FRAME_BODY}:
            if number == 0:
                raise connection_fault(UNEXPECTED_FRAME, "content on channel 0")
            channel = self._channel(number)
            if channel is not None:
                try:
                    channel.take_content(kind, data[o : o + size + 8])
                except Exception as error:  # noqa: BLE001 - see `_fail`
                    self._fail(error, channel, BASIC, PUBLISH)
        else:
            raise connection_fault(FRAME_ERROR, f"unknown frame type {kind}")

    def _take_method(self, number: i64, payload: bytes) -> None:
        method = read_method(payload)
        if number == 0:
            self._take_connection_method(method)
            return
        if self.state != OPEN:
            if self.state == OPENING:
                raise connection_fault(COMMAND_INVALID, "the connection is not open", method.CLASS_ID, method.METHOD_ID)
            return
        if isinstance(method, ChannelOpen):
            self._open_channel(number)
            return
        if number in self._closing_channels:
            self._take_closing_method(number, method)
            return
        channel = self._channel(number)
        if channel is None:
            return
        if channel.assembly is not None:
            raise connection_fault(
                UNEXPECTED_FRAME, f"expected content, got {method.NAME}", method.CLASS_ID, method.METHOD_ID
            )
        if isinstance(method, ChannelClose):
            closing = self._remove_channel(channel)
            if closing is not None:
                self.begin(closing)
            return
        handler = HANDLERS.get(method.NAME)
        if handler is None:
            if method.NAME in {"channel.flow-ok", "basic.cancel-ok"}:
                return
            raise connection_fault(
                COMMAND_INVALID, f"{method.NAME} is not for a server", method.CLASS_ID, method.METHOD_ID
            )
        runtime = self.host.runtime
        if runtime.dirty and not isinstance(method, (BasicNack, BasicReject)):
            # Earlier publishes must be routed before a get, a count or a new consumer looks for them.
            drain(runtime)
        try:
            handler(channel, method)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(error, channel, method.CLASS_ID, method.METHOD_ID)

    def _take_connection_method(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            self.send_method(0, ConnectionCloseOk())
            self.advance(PEER_CLOSED)
        elif self.state == CLOSING:
            if isinstance(method, ConnectionCloseOk):
                self.advance(ENDED)
        elif self.state == OPENING:
            self._handshake.step(method)
        elif isinstance(method, ConnectionUpdateSecret):
            # RabbitMQ behaves the same with internal users: a password does not expire, so there is nothing to renew.
            self.send_method(0, ConnectionUpdateSecretOk())
        elif method.NAME not in {"connection.blocked", "connection.unblocked"}:
            raise connection_fault(
                CHANNEL_ERROR, f"{method.NAME} on channel 0 of an open connection", method.CLASS_ID, method.METHOD_ID
            )

    # --- channels ---

    def _open_channel(self, number: i64) -> None:
        if number in self.channels or number in self._closing_channels:
            raise connection_fault(CHANNEL_ERROR, "second 'channel.open' seen", 20, 10)
        # As in RabbitMQ it limits how many there are, not their numbers.
        if self.channel_max and len(self.channels) >= self.channel_max:
            raise connection_fault(NOT_ALLOWED, f"{self.channel_max} channels are open (channel_max)", 20, 10)
        if 0 <= self.user.channel_max <= len(self.channels):
            raise connection_fault(
                NOT_ALLOWED, f"user '{self.user.name}' may open {self.user.channel_max} channels", 20, 10
            )
        self.channels[number] = Channel(self, number)
        self.host.runtime.counters.channels_opened += 1
        self.send_method(int(number), ChannelOpenOk())

    def _take_closing_method(self, number: i64, method: Method) -> None:
        """We have sent channel.close: only the answer, or the peer's own close, counts."""
        if isinstance(method, ChannelClose):
            self.send_method(int(number), ChannelCloseOk())
        elif isinstance(method, ChannelCloseOk):
            self._closing_channels.discard(number)

    def _remove_channel(self, channel: Channel) -> Closing | None:
        self.channels.pop(channel.number, None)
        last = self._last_route
        if last is not None and last.channel is channel:
            self._last_route = self._expected = None
        if self._last_acking is channel:
            self._last_acking = None
        return channel.close()

    # --- the end ---

    def _fail(self, error: Exception, channel: Channel | None = None, class_id: int = 0, method_id: int = 0) -> None:
        """Close what an error concerns: the channel, or the connection. An unexpected error is logged, too."""
        fault = fault_of(error, class_id, method_id)
        if fault is None:
            self.fail_unexpectedly(error)
        elif fault.is_connection_wide:
            self._close_connection(fault)
        elif channel is not None and channel.is_open:
            self._closing_channels.add(channel.number)
            closing = self._remove_channel(channel)
            if closing is not None:
                self.host.runtime.begin(closing)
            # Clients declare passively to learn whether there is such a queue: that is no news.
            if fault.code != NOT_FOUND or fault.method_id != DECLARE:
                self.report("channel closed", f"channel {channel.number}: {fault.code} {fault.text}")
            self.send_method(int(channel.number), ChannelClose(fault.code, fault.text, fault.class_id, fault.method_id))

    def _close_connection(self, fault: Fault) -> None:
        if self.advance(FAILED):
            self.report("connection closed", f"{fault.code} {fault.text}", is_expected=fault.code == CONNECTION_FORCED)
            self.send_method(0, ConnectionClose(fault.code, fault.text, fault.class_id, fault.method_id))

    def give_back(self) -> None:
        """Deliveries go back to their queues; exclusive queues are deleted."""
        runtime = self.host.runtime
        task = self._task
        if task is not None:
            self._task = None
            runtime.go_on_with(task)
        channels = list(self.channels.values())
        self.channels = {}
        self._routes.clear()
        self._last_route = self._expected = None
        self._last_acking = None
        for channel in channels:
            closing = channel.close()
            if closing is not None:
                runtime.begin(closing)
        if self._virtual_host is not None:
            runtime.begin(Leaving(self._virtual_host, self._virtual_host.queues_of(self)))
