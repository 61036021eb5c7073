r"""A connection of AMQP 0-9-1, server side: cuts its input into frames and leads them to channels.

    OPENING --open--> OPEN --fault, or the node stops--> CLOSING --close-ok or time--> CLOSED
                        \--the peer's close--------------------------------------------^

The loop in `_process` is the hottest code of the broker. A publish is recognised by comparing its method frame with the
last one; header and body are then taken as one slice, which is all that is ever done with them. Acknowledgements are
read in place. Everything else is decoded and dispatched by method.
"""

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.engine.access import check_permission, check_topic
from waybill.engine.amqp091.server.channel import ACK, ACK_FRAME_SIZE, BASIC, PUBLISH, Channel
from waybill.engine.amqp091.server.dispatch import HANDLERS
from waybill.engine.amqp091.server.faults import Fault, connection_fault, fault_of, read_method
from waybill.engine.amqp091.server.handshake import FRAME_MIN, Handshake
from waybill.engine.amqp091.server.publish_route import INCOMPLETE, Assembly, PublishRoute
from waybill.engine.amqp091.server.task import Closing, Leaving, Task
from waybill.engine.amqp091.server.throttle import THROTTLE_S, Throttle
from waybill.engine.held import HeldMemory
from waybill.engine.host import Host, Output, ServerEngine, User
from waybill.model.errors import ModelError
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp091.content import ContentFacts, scan
from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    HEARTBEAT_FRAME,
    method_frame,
)
from waybill.wire.amqp091.methods import (
    BasicNack,
    BasicPublish,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
)
from waybill.wire.amqp091.reply_codes import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    FRAME_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    UNEXPECTED_FRAME,
)

OPENING: Final = "opening"
OPEN: Final = "open"
CLOSING: Final = "closing"
CLOSED: Final = "closed"

ACK_ID: Final = 60 << 16 | 80
PUBLISH_ID: Final = 60 << 16 | 40
ACK_ARGUMENTS_SIZE: Final = 10
ROUTE_LIMIT: Final = 16_384
# What it costs to decode a frame that is not taken by its looks, and its arguments.
FRAME_UNITS: Final = 4
FRAME_UNIT_BITS: Final = 5
BODY_UNITS: Final = 2
PUBLISH_UNIT_BITS: Final = 10
KEPT_OUTPUT_BYTES: Final = 1 << 20
CLOSE_OK_FRAME: Final = method_frame(0, ConnectionCloseOk())


class Connection(ServerEngine):
    """One peer. `is_stalled`: its output has piled up, so it is given no more messages until that is written."""

    def __init__(self, host: Host, output: Output, peer_address: str, now: float, certificate_user: str = "") -> None:
        super().__init__()
        self.certificate_user = certificate_user
        self.host = host
        self.output = output
        self.peer_address = peer_address
        self.state = OPENING
        self.user = User("", {})
        self.client_properties: dict[str, object] = {}
        self.knows_consumer_cancel = False
        self.knows_blocked = False
        self.channel_max: i64 = 0
        self.frame_max: i64 = FRAME_MIN
        self.heartbeat_s: i64 = 0
        self.channels: dict[i64, Channel] = {}
        self.out = BytesWriter()
        self.facts = ContentFacts()
        self.is_stalled = False
        self.output_high_water: i64 = host.limits.output_high_water
        self._is_transport_full = False
        self._is_held = False
        self._wants_hold = False
        self._hold_mark: i64 = 0
        self._rest = b""
        self._is_deaf = False
        # After its own close a peer hangs up itself: to meet the end of the stream before close-ok would be an error.
        self._is_peer_leaving = False
        self._next: i64 = 0
        self._routes: dict[bytes, PublishRoute] = {}
        self._last_route: PublishRoute | None = None
        # The same, unless the last messages went different ways.
        self._expected: PublishRoute | None = None
        self._last_acking: Channel | None = None
        self._confirming: list[Channel] = []
        self._closing_channels: set[i64] = set()
        self._received_at: float = now
        self._sent_at: float = now
        self._deadline: float = now + host.limits.handshake_timeout_s
        self._virtual_host: VirtualHost | None = None
        self._has_more = False  # The turn was over before all was done that has been read: `_chore`, then `_rest`.
        self._chore: Task | None = None
        self.held = HeldMemory(host.runtime, host.limits.held_per_connection_max)
        self._throttle = Throttle(self)
        self._handshake = Handshake(self)
        self._handshake.start()

    # --- for the transport ---

    @property
    def closed(self) -> bool:
        return self.state == CLOSED and not (self._is_held or self._is_peer_leaving)

    def receive_data(self, data: bytes, now: float) -> None:
        if self.state == CLOSED:
            return
        self._received_at = now
        self.host.runtime.now = now
        if self._is_deaf:
            self._listen_for_goodbye(data)
            return
        if self._rest:
            data = self._rest + data if data else self._rest
            self._rest = b""
        runtime = self.host.runtime
        runtime.begin_read()
        if self.state == OPENING and runtime.logins_left <= 0:
            runtime.work_left = 0  # The passwords of others have taken this turn.
        self._has_more = False
        o: i64 = 0
        while self.has_done_chore():
            try:
                o = self._process(data, o)
                break
            except Fault as fault:
                self._fail(fault)
            except DecodeError as error:
                self._fail(connection_fault(error.reply_code, str(error)))
            o = self._next
            if o < 0:
                # Frames can no longer be told apart; what can is an orderly goodbye.
                self._is_deaf = True
                self._listen_for_goodbye(data)
                return
        if o < len(data) and self.state != CLOSED:
            self._rest = data[o:]
        route = self._last_route
        if runtime.work_left <= 0 and (self._rest or self._chore is not None):
            self._has_more = True
            self._throttle.wait_for_turn()
        elif route is not None and route.is_outrunning():
            self._throttle.begin(now, THROTTLE_S)
        if self.host.alarm:
            self._throttle.read_in_alarm(len(data))
            self.alarm_changed()

    def take_rest(self, now: float) -> None:
        """Go on with what an earlier read brought and its turn was too short for."""
        if self._has_more:
            self.receive_data(b"", now)

    def begin(self, chore: Task) -> None:
        """Do what a frame asks for, and answer. If the turn is too short for it, the frames behind it wait."""
        self._chore = chore
        self.has_done_chore()

    def has_done_chore(self) -> bool:
        chore = self._chore
        if chore is not None and chore.work():
            self._chore = None
            chore.finish()
        return self._chore is None

    def _listen_for_goodbye(self, data: bytes) -> None:
        self._rest = (self._rest + data)[-len(CLOSE_OK_FRAME) :]
        if self._rest == CLOSE_OK_FRAME:
            self._set_closed()

    def data_to_send(self) -> bytes:
        if self._is_held:
            return b""
        out = self.out
        size = len(out)
        if size == 0:
            return b""
        data = out.getvalue()
        if size > KEPT_OUTPUT_BYTES:
            self.out = BytesWriter()
        else:
            out.truncate(0)
        self._sent_at = self.host.runtime.now
        if self._is_transport_full:
            self._throttle.wrote(size)
        elif self.is_stalled:
            self._unstall()
        return data

    def connection_lost(self, now: float) -> None:
        self._set_closed()
        self.held.lost()
        self.host.lost(self)

    def next_timeout(self) -> float | None:
        if self.state == CLOSED and not self._is_peer_leaving:
            return None
        if self.state != OPEN:
            return self._deadline
        if self.heartbeat_s == 0:
            return None
        interval = float(self.heartbeat_s)
        if self._throttle.is_blocked:
            return self._sent_at + interval / 2
        return min(self._sent_at + interval / 2, self._received_at + 2 * interval)

    def handle_timeout(self, now: float) -> None:
        self.host.runtime.now = now
        if self.state != OPEN:
            if now >= self._deadline:
                self._set_closed()
            return
        if self.heartbeat_s == 0:
            return
        interval = float(self.heartbeat_s)
        if now >= self._received_at + 2 * interval and not self._throttle.is_blocked:
            self._set_closed()
        elif now >= self._sent_at + interval / 2:
            self._sent_at = now
            self.send(HEARTBEAT_FRAME)

    def pause_writing(self) -> None:
        self._is_transport_full = self.is_stalled = True
        self.held.transport_is_full()

    def resume_writing(self, now: float) -> None:
        self._is_transport_full = False
        self._throttle.release()
        self._unstall()

    # --- for the node ---

    def flush(self) -> None:
        self.is_dirty = False
        if self._wants_hold:
            self._wants_hold = False
            self._is_held = True
            self._hold_mark += 1
            self.host.runtime.store.wait(self, self._hold_mark)
        if not self._is_held:
            self.output.flush()

    def settle_confirms(self) -> None:
        channels = self._confirming
        self._confirming = []
        for channel in channels:
            channel.settle_confirms()

    def committed(self, mark: i64) -> None:
        """What `hold` waited for is durable: the replies may go."""
        if mark == self._hold_mark:
            self._is_held = False
            self.host.mark_dirty(self)

    def alarm_changed(self) -> None:
        if self.state == OPEN:
            self._throttle.alarm_changed(has_published=self._last_route is not None)

    def alarm_told(self, method: Method, now: float) -> None:
        """Tell the peer of an alarm, or of its end. From now on it counts only what it publishes after that."""
        self._last_route = self._expected = None
        # While nothing was read its silence was ours.
        self._received_at = now
        if self.knows_blocked:
            self.send_method(0, method)

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its close-ok."""
        if self.state == OPEN:
            self._fail(connection_fault(CONNECTION_FORCED, reason))
        elif self.state != CLOSING:
            self._set_closed()

    # --- for channels ---

    @property
    def virtual_host(self) -> VirtualHost:
        virtual_host = self._virtual_host
        if virtual_host is None:
            raise connection_fault(COMMAND_INVALID, "the connection is not open")
        return virtual_host

    @property
    def user_name(self) -> str:
        return self.user.name

    def opened(self, virtual_host: VirtualHost) -> None:
        self._virtual_host = virtual_host
        self.state = OPEN
        self.host.opened(self)

    def check_permission(self, action: str, kind: str, name: str) -> None:
        """Raises `AccessRefused` unless this connection's user may do `action`."""
        check_permission(self.user, self.virtual_host, action, kind, name)

    def check_topic(self, action: str, exchange_name: str, routing_key: str) -> None:
        """Raises `AccessRefused` unless this connection's user may use the routing key at that exchange."""
        check_topic(self.user, self.virtual_host, action, exchange_name, routing_key)

    def check_timeouts(self, now: float) -> None:
        for channel in list(self.channels.values()):
            fault = channel.overdue(now)
            if fault is not None:
                self._fail(fault, channel)

    def send(self, octets: bytes) -> None:
        self.out.write(octets)
        if not self.is_dirty:
            self.host.mark_dirty(self)

    def send_method(self, channel: int, method: Method) -> None:
        self.send(method_frame(channel, method))

    def hold(self) -> None:
        """Keep all output back until what was put in the store so far is durable."""
        self._wants_hold = True

    def confirming(self, channel: Channel) -> None:
        if not self._confirming:
            self.host.mark_confirming(self)
        self._confirming.append(channel)

    def refuse_login(self, close: ConnectionClose, *, tells: bool) -> None:
        """End a connection whose peer could not prove who it is; a peer that cannot read why is just cut off."""
        if tells:
            self.send_method(0, close)
        self._set_closed()

    # --- input ---

    def _process(self, data: bytes, o: i64) -> i64:  # noqa: C901 - the hot loop: see the module's text
        """Take all whole frames, or whole publishes, of `data` from `o` on. Returns the offset of the first not taken.

        When it raises, `_next` is where the next frame begins, or negative if nobody can tell.
        """
        n: i64 = len(data)
        runtime = self.host.runtime
        while n - o >= 8 and runtime.work_left > 0:
            if self.state == CLOSED:
                return n
            self._next = INCOMPLETE
            route = self._expected
            if route is not None and data[o : o + route.size] == route.octets:
                end = self._take_messages(route, data, o, n)
                if end > 0:
                    o = end
                    continue
                if end == INCOMPLETE:
                    break
            acking = self._last_acking
            if acking is not None and n - o >= ACK_FRAME_SIZE and acking.has_ack(data, o):
                end = self._take_acks(acking, data, o, n)
                if end > o:
                    o = end
                    continue
            # Type, channel and size of a frame, and the octet after them, as one number.
            head = read_i64_be(data, o)
            size = head >> 8 & 0xFFFFFFFF
            # Eight octets more than frame_max are let through, as in RabbitMQ: AMQPStorm counts payloads by it.
            if size > self.frame_max:
                raise connection_fault(FRAME_ERROR, f"a frame of {size + 8} octets exceeds frame_max {self.frame_max}")
            if n - o < size + 8:
                break
            if data[o + size + 7] != FRAME_END:
                raise connection_fault(FRAME_ERROR, "a frame does not end with its end octet")
            self._next = o + size + 8
            kind = head >> 56 & 0xFF
            number = head >> 40 & 0xFFFF
            if kind == FRAME_METHOD and size >= 4 and self.state == OPEN:
                method_id = read_i32_be(data, o + 7)
                if method_id == PUBLISH_ID:
                    end = self._take_publish(number, data, o, n, size + 8)
                    if end == INCOMPLETE:
                        break
                    o = end
                    continue
                if method_id == ACK_ID and size == ACK_FRAME_SIZE - 8:
                    channel = self._channel(number)
                    if channel is not None and channel.assembly is None:
                        self._last_acking = channel
                        o = self._take_acks(channel, data, o, n)
                        continue
            runtime.work_left -= BODY_UNITS if kind == FRAME_BODY else FRAME_UNITS + (size >> FRAME_UNIT_BITS)
            self._take_frame(kind, number, data, o, size)
            o += size + 8
        return o

    def _take_acks(self, channel: Channel, data: bytes, o: i64, n: i64) -> i64:
        """Take the basic.ack frames of one channel that stand in a row from `o` on. Returns where they end."""
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
        except ModelError as error:
            self._fail(fault_of(error, BASIC, ACK), channel)
        except Fault as fault:
            self._fail(fault, channel)
        return o

    def _take_messages(self, route: PublishRoute, data: bytes, o: i64, n: i64) -> i64:
        """Publish the message at `o`, and those behind it that differ in their bodies only.

        Returns where those end that were taken, or as `PublishRoute.content_end` if the first cannot be.
        """
        channel = route.channel
        if not channel.is_open or channel.assembly is not None:
            return 0
        end = route.run_end(data, o, n) if route.stride > 0 else o
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
        except ModelError as error:
            self._fail(fault_of(error, BASIC, PUBLISH), channel)
        except Fault as fault:
            self._fail(fault, channel)
        return self._next

    def _take_publish(self, number: i64, data: bytes, o: i64, n: i64, size: i64) -> i64:
        """A basic.publish method frame at `o`. Returns where its content, or what is taken of it, ends."""
        channel = self._channel(number)
        if channel is None:
            return o + size
        if channel.assembly is not None:
            raise connection_fault(UNEXPECTED_FRAME, "expected content, got basic.publish", BASIC, PUBLISH)
        octets = data[o : o + size]
        route = self._routes.get(octets)
        if route is None or route.channel is not channel:
            method = read_method(octets[7:-1])
            assert isinstance(method, BasicPublish)  # noqa: S101 - the caller compared class and method id
            if method.immediate:
                raise connection_fault(NOT_IMPLEMENTED, "immediate=true", BASIC, PUBLISH)
            route = PublishRoute(channel, octets, method.exchange, method.routing_key, mandatory=method.mandatory)
            if len(self._routes) >= ROUTE_LIMIT:
                self._routes.clear()
            self._routes[octets] = route
        self._expected = route if route is self._last_route else None
        self._last_route = route
        end = self._take_messages(route, data, o, n)
        if end != 0:
            return end
        if channel.is_open:
            channel.assembly = Assembly(route)
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
                self._assemble(channel, kind, data[o : o + size + 8])
        else:
            raise connection_fault(FRAME_ERROR, f"unknown frame type {kind}")

    def _assemble(self, channel: Channel, kind: i64, octets: bytes) -> None:
        """One content frame of a message that is taken frame by frame."""
        assembly = channel.assembly
        if assembly is None or assembly.has_header == (kind == FRAME_HEADER):
            raise connection_fault(
                UNEXPECTED_FRAME, "expected method frame, got content" if assembly is None else "content out of order"
            )
        if kind == FRAME_HEADER:
            scan(octets, 0, self.facts)
            assembly.missing = self.facts.body_size
            assembly.has_header = True
        else:
            assembly.take_body(len(octets) - 8)
        try:
            channel.check_piece(assembly.missing, len(octets))
        except Fault as fault:
            self._fail(fault, channel)
            return
        assembly.pieces.write(octets)
        if assembly.missing == 0:
            channel.end_assembly()
            content = assembly.pieces.getvalue()
            scan(content, 0, self.facts)
            try:
                channel.publish(assembly.route, content, 0, len(content), self.facts)
            except ModelError as error:
                self._fail(fault_of(error, BASIC, PUBLISH), channel)
            except Fault as fault:
                self._fail(fault, channel)

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
            # What was published before is not there any more for a get, a count or a later consumer to find.
            runtime.drain()
        try:
            handler(channel, method)
        except ModelError as error:
            self._fail(fault_of(error, method.CLASS_ID, method.METHOD_ID), channel)
        except Fault as fault:
            self._fail(fault, channel)

    def _take_connection_method(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            if self.state != CLOSED:
                self.send_method(0, ConnectionCloseOk())
                is_open = self.state == OPEN
                self._set_closed()
                self._is_peer_leaving = is_open
                self._deadline = self._received_at + self.host.limits.close_timeout_s
        elif self.state == CLOSING:
            if isinstance(method, ConnectionCloseOk):
                self._set_closed()
        elif self.state == OPENING:
            self._handshake.step(method)
        elif isinstance(method, ConnectionUpdateSecret):
            # As in RabbitMQ with users of its own: a password has no time to run out, so there is nothing to renew.
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

    def _fail(self, fault: Fault, channel: Channel | None = None) -> None:
        """Close what the fault concerns: one channel, or everything."""
        if fault.is_connection_wide:
            self._close_connection(fault)
            return
        if channel is None or not channel.is_open:
            return
        self._closing_channels.add(channel.number)
        closing = self._remove_channel(channel)
        if closing is not None:
            self.host.runtime.begin(closing)
        self.send_method(int(channel.number), ChannelClose(fault.code, fault.text, fault.class_id, fault.method_id))

    def _close_connection(self, fault: Fault) -> None:
        if self.state in {CLOSING, CLOSED}:
            return
        self._free()
        self.state = CLOSING
        self._deadline = self._received_at + self.host.limits.close_timeout_s
        self.send_method(0, ConnectionClose(fault.code, fault.text, fault.class_id, fault.method_id))

    def _set_closed(self) -> None:
        self._is_peer_leaving = False
        if self.state != CLOSED:
            self._free()
            self.state = CLOSED
        self.host.mark_dirty(self)

    def _free(self) -> None:
        """Give back everything: deliveries to their queues, exclusive queues to nobody."""
        chore = self._chore
        if chore is not None:
            self._chore = None
            self.host.runtime.go_on_with(chore)
        channels = list(self.channels.values())
        self.channels = {}
        self._routes = {}
        self._last_route = self._expected = None
        self._last_acking = None
        for channel in channels:
            closing = channel.close()
            if closing is not None:
                self.host.runtime.begin(closing)
        if self._virtual_host is not None:
            self.host.runtime.begin(Leaving(self._virtual_host, self._virtual_host.queues_of(self)))

    def _unstall(self) -> None:
        self.is_stalled = False
        for channel in self.channels.values():
            for consumer in channel.consumers.values():
                if not consumer.is_active:
                    consumer.credit_available()
