"""A client connection, without I/O. Its states are a table in `states.py`.

Heartbeats (0-9-1, 4.2.7). The time is checked twice per interval: if nothing was written since the last check, a
heartbeat is sent; if nothing was read for two intervals, the connection ends.
"""

from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.client.channel import ClientChannel
from waybill.engine.amqp091.client.errors import ProtocolViolation
from waybill.engine.amqp091.client.events import ChannelEvents, CloseReason, ConnectionEvents, Initiator
from waybill.engine.amqp091.client.handshake import ClientLogin, negotiate
from waybill.engine.amqp091.client.input import Input
from waybill.engine.amqp091.client.output import Output
from waybill.engine.amqp091.client.settings import ConnectionSettings
from waybill.engine.amqp091.client.states import CONNECTION_STATES, ENDED, SENT_CLOSE, ConnectionState
from waybill.wire.amqp091.errors import DecodeError
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_METHOD,
    FRAME_MIN_SIZE,
    FRAME_OVERHEAD,
    HEARTBEAT_FRAME,
    PROTOCOL_HEADER,
    method_frame,
)
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods import decode_method
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
)
from waybill.wire.amqp091.reply_codes import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_IMPLEMENTED,
    REPLY_SUCCESS,
    UNEXPECTED_FRAME,
)

BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_ACK: Final = 60 << 16 | 80
MISSED_INTERVALS: Final = 2
TLS_ALERT: Final = 0x15


class ClientEngine:
    """One connection. Driven by a pump: see `waybill.transport.pump.Engine` for the contract of those methods."""

    def __init__(self, settings: ConnectionSettings, events: ConnectionEvents, now: float) -> None:
        self.settings = settings
        self._login = ClientLogin(settings)
        self.events = events
        self.state = ConnectionState.HEADER_SENT
        self.closed = False
        self.close_reason: CloseReason | None = None
        self.server_properties: dict[str, object] = {}
        self.heartbeat_s = 0
        self.frame_max = settings.frame_max
        self.channel_max = settings.channel_max
        self._output = Output(events)
        self._output.write(PROTOCOL_HEADER)
        self._channels: dict[int, ClientChannel] = {}
        self._next_number = 1
        self._input = Input()
        self._last_received = now
        self._next_look: float | None = None
        self.is_read = True
        """Whether input is taken. Otherwise no silence is the server's."""

    # The pump's side

    def receive_data(self, data: bytes, now: float) -> None:
        if self.closed:
            return
        self._last_received = now
        # The caller that passed input collects the output afterwards.
        self._output.announced = True
        complete = self._input.take(data)
        if not complete:
            return
        try:
            position = self._take_frames(complete, now)
        except DecodeError as error:
            self._fail(error.reply_code, str(error))
        except ProtocolViolation as violation:  # Another name: a compiled variable has one type.
            self._fail(violation.reply_code, str(violation))
        else:
            if position < len(complete) and not self.closed:
                self._input.keep(complete[position:])

    def data_to_send(self) -> bytes:
        return self._output.drain()

    def connection_lost(self, now: float) -> None:
        self._end(CloseReason(0, "connection lost", initiator=Initiator.TRANSPORT))

    def next_timeout(self) -> float | None:
        return self._next_look

    def handle_timeout(self, now: float) -> None:
        if self._next_look is None or now < self._next_look or self.closed:
            return
        if not self.is_read:
            self._last_received = now
        if now - self._last_received > MISSED_INTERVALS * self.heartbeat_s:
            text = f"the server was silent for {now - self._last_received:.1f} s"
            self._end(CloseReason(0, text, initiator=Initiator.TRANSPORT))
            return
        if self._output.idle:
            self._output.write(HEARTBEAT_FRAME)
        self._output.idle = True
        self._next_look = now + self.heartbeat_s / MISSED_INTERVALS

    def pause_writing(self) -> None:
        self.events.writing_paused()

    def resume_writing(self, now: float) -> None:
        self.events.writing_resumed()

    # The user's side

    def open_channel(self, events: ChannelEvents, *, coalesce_acks: bool = False) -> ClientChannel | None:
        """Create a channel with a free number; call its `open` next. None if all numbers are in use.

        Raises ValueError if the connection is not open.
        """
        if self.state is not ConnectionState.OPEN:
            raise ValueError(f"the connection is {self.state.value}")
        number = self._free_number()
        if number == 0:
            return None
        channel = ClientChannel(
            self._output,
            number,
            self.frame_max,
            events,
            self._release,
            self.settings.message_size_max,
            coalesce_acks=coalesce_acks,
        )
        self._channels[number] = channel
        return channel

    def close(self) -> None:
        """Close in an orderly way. `events.closed` follows when the server has answered or the transport is closed."""
        if self.state in {ConnectionState.CLOSING, ConnectionState.CLOSED}:
            return
        if self.state is ConnectionState.OPEN:
            self._send(ConnectionClose(REPLY_SUCCESS, "OK"))
            self._move(SENT_CLOSE)
            self._next_look = None
            self._close_channels(CloseReason(REPLY_SUCCESS, "connection closed by us", initiator=Initiator.CLIENT))
        else:
            self._end(CloseReason(REPLY_SUCCESS, "closed by us during the handshake", initiator=Initiator.CLIENT))

    # Frames

    def _take_frames(self, data: bytes, now: float) -> i64:
        """Take all complete frames; the position after them. Runs once a frame: see the channel's `take_delivery`."""
        position: i64 = 0
        total: i64 = len(data)
        if self.state is ConnectionState.HEADER_SENT and total >= 8 and data[0] != FRAME_METHOD:
            self._refuse_peer(data)
            return total
        largest: i64 = max(self.frame_max, FRAME_MIN_SIZE) - FRAME_OVERHEAD if self.frame_max else 0x7FFFFFFF
        while position + 8 <= total and not self.closed:
            # Type, channel and payload size are the upper 56 bits.
            mark = read_i64_be(data, position)
            size = (mark >> 8) & 0xFFFFFFFF
            kind = mark >> 56
            end = position + 7 + size
            if size > largest:
                raise ProtocolViolation(FRAME_ERROR, f"a frame of {size + FRAME_OVERHEAD} octets")
            if end >= total:
                if kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT):
                    raise ProtocolViolation(FRAME_ERROR, f"unknown frame type {kind}")
                break
            if data[end] != FRAME_END:
                raise ProtocolViolation(FRAME_ERROR, f"a frame ends with {data[end]:#04x}")
            number = (mark >> 40) & 0xFFFF
            if kind == FRAME_METHOD and number and size >= 4:
                method_id = read_i32_be(data, position + 7)
                channel = self._channels.get(number)
                if channel is not None:
                    if method_id == BASIC_DELIVER:
                        after = channel.deliveries.take(data, position, end)
                        if after:
                            position = after
                            continue
                    elif method_id == BASIC_ACK and size == 13 and data[position + 11] < 0x80:
                        channel.take_confirm(read_i64_be(data, position + 11), data[position + 19] & 1 != 0)
                        position = end + 1
                        continue
            self._take_frame(kind, number, data[position + 7 : end], now)
            position = end + 1
        return total if self.closed else position

    def _take_frame(self, kind: i64, number: i64, payload: bytes, now: float) -> None:
        """Take a frame the general way. Raises ProtocolViolation or DecodeError."""
        if kind == FRAME_HEARTBEAT:
            if number:
                raise ProtocolViolation(FRAME_ERROR, f"a heartbeat on channel {number}")
            return
        if number == 0:
            if kind != FRAME_METHOD:
                raise ProtocolViolation(
                    UNEXPECTED_FRAME if kind in (FRAME_HEADER, FRAME_BODY) else FRAME_ERROR, "a frame on channel 0"
                )
            self._take_method(decode_method(payload), now)
            return
        if self.state is ConnectionState.CLOSING:
            return
        channel = self._channels.get(number)
        if channel is None:
            raise ProtocolViolation(CHANNEL_ERROR, f"a frame on channel {number}, which is not open")
        if kind == FRAME_METHOD:
            channel.take_method(decode_method(payload))
        elif kind == FRAME_HEADER:
            channel.take_header(payload)
        elif kind == FRAME_BODY:
            channel.take_body(payload)
        else:
            raise ProtocolViolation(FRAME_ERROR, f"unknown frame type {kind}")

    def _take_method(self, method: Method, now: float) -> None:
        """A method on channel 0."""
        if self.state is ConnectionState.CLOSING and not isinstance(method, (ConnectionClose, ConnectionCloseOk)):
            return
        self._move(method.NAME)
        if isinstance(method, ConnectionStart):
            self._take_start(method)
        elif isinstance(method, ConnectionSecure):
            self._send(ConnectionSecureOk(self._login.respond(method.challenge)))
        elif isinstance(method, ConnectionTune):
            self._take_tune(method, now)
        elif isinstance(method, ConnectionOpenOk):
            self.events.opened()
        elif isinstance(method, ConnectionBlocked):
            self.events.blocked(method.reason)
        elif isinstance(method, ConnectionUnblocked):
            self.events.unblocked()
        elif isinstance(method, ConnectionCloseOk):
            self._end(CloseReason(REPLY_SUCCESS, "closed by us", initiator=Initiator.CLIENT))
        elif isinstance(method, ConnectionClose):
            self._send(ConnectionCloseOk())
            self._end(CloseReason(method.reply_code, method.reply_text, method.class_id, method.method_id))

    def _move(self, event: str) -> None:
        """Enter the state that `event` leads to. Raises ProtocolViolation if it may not come now."""
        state = CONNECTION_STATES[self.state].get(event)
        if state is None:
            raise ProtocolViolation(COMMAND_INVALID, f"{event} while {self.state.value}")
        self.state = state

    def _take_start(self, method: ConnectionStart) -> None:
        if (method.version_major, method.version_minor) != (0, 9):
            version = f"{method.version_major}-{method.version_minor}"
            raise ProtocolViolation(NOT_IMPLEMENTED, f"the server speaks AMQP {version}, not 0-9-1")
        self.server_properties = method.server_properties
        response = self._login.begin(method.mechanisms)
        self._send(ConnectionStartOk(self.settings.client_properties(), self.settings.mechanism, response))

    def _take_tune(self, method: ConnectionTune, now: float) -> None:
        self._login.finish()
        self.channel_max = negotiate(self.settings.channel_max, method.channel_max)
        self.frame_max = max(FRAME_MIN_SIZE, negotiate(self.settings.frame_max, method.frame_max))
        # Unlike in the limits, our 0 takes precedence: it means no heartbeats.
        self.heartbeat_s = negotiate(self.settings.heartbeat_s, method.heartbeat) if self.settings.heartbeat_s else 0
        if self.heartbeat_s:
            self._next_look = now + self.heartbeat_s / MISSED_INTERVALS
        self._send(ConnectionTuneOk(self.channel_max, self.frame_max, self.heartbeat_s))
        self._send(ConnectionOpen(self.settings.virtual_host))

    # Ends

    def _refuse_peer(self, data: bytes) -> None:
        """The peer is no 0-9-1 server: it sent another version's header (0-9-1, 4.2.2) or another protocol."""
        text = f"the server does not speak AMQP 0-9-1, it answered {data[:8]!r}"
        if data[0] == TLS_ALERT:
            text += " (a TLS alert: the port is for amqps)"
        self._end(CloseReason(0, text, initiator=Initiator.SERVER))

    def _fail(self, reply_code: int, text: str) -> None:
        """The server has violated the protocol: tell it why, and close without waiting for its answer."""
        if self.closed:
            return
        self._send(ConnectionClose(reply_code, text.encode(errors="replace")[:200].decode(errors="ignore")))
        self._end(CloseReason(reply_code, text, initiator=Initiator.CLIENT))

    def _end(self, reason: CloseReason) -> None:
        self.closed = True
        if self.close_reason is not None:
            return
        if self.state is not ConnectionState.CLOSED:
            self._move(ENDED)
        self.close_reason = reason
        self._next_look = None
        self._input = Input()
        self._close_channels(reason)
        self.events.closed(reason)

    def _close_channels(self, reason: CloseReason) -> None:
        for channel in list(self._channels.values()):
            channel.connection_closed(reason)
        self._channels.clear()

    def _send(self, method: Method) -> None:
        self._output.write(method_frame(0, method))

    def _release(self, number: int) -> None:
        self._channels.pop(number, None)

    def _free_number(self) -> int:
        """The next free number, in rotation, so that a number is not reused immediately; 0 if there is none."""
        highest = self.channel_max or 0xFFFF
        if len(self._channels) >= highest:
            return 0
        while self._next_number in self._channels or self._next_number > highest:
            self._next_number = self._next_number + 1 if self._next_number < highest else 1
        number = self._next_number
        self._next_number = number + 1
        return number
