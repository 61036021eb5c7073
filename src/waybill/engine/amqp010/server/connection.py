"""A connection of AMQP 0-10, server side: splits its input into frames and passes them to sessions.

    frames --> `Assembler` --> control: connection, or session as carrier of commands
                           --> command: the session that is attached to the channel (`dispatch`)

Transfers that look like the last one are taken before that, by their octets (`route`).
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp010.server.attachment import Attachments
from waybill.engine.amqp010.server.command_session import UnknownIds
from waybill.engine.amqp010.server.dispatch import take_command
from waybill.engine.amqp010.server.faults import Fault, connection_fault, fault_of
from waybill.engine.amqp010.server.handshake import Handshake
from waybill.engine.amqp010.server.route import COLD, INCOMPLETE, ROUTES_MAX, TransferRoute
from waybill.engine.amqp010.server.session import Session
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.server.settlement import (
    ACCEPT_HEAD_SIZE,
    ONE_RANGE_HEAD,
    ONE_RANGE_SIZE,
    accept_frames,
)
from waybill.engine.amqp010.server.throttle import Throttle
from waybill.engine.connection_state import CLOSING, ENDED, FAILED, OPEN, OPENING, PEER_CLOSED
from waybill.engine.host import Host
from waybill.engine.server_connection import BLOCKED, CHOKED, WAITS_FOR_TURN
from waybill.engine.server_engine import Confirming
from waybill.model.runtime import Chore
from waybill.wire.amqp010.assembly import Assembler
from waybill.wire.amqp010.class_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionHeartbeat,
)
from waybill.wire.amqp010.codec import decode_control, encode_control, wants_sync
from waybill.wire.amqp010.constants import (
    ACCEPT_EXPLICIT,
    CLOSE_CONNECTION_FORCED,
    CLOSE_FRAMING_ERROR,
    MIN_MAX_FRAME_SIZE,
)
from waybill.wire.amqp010.errors import DecodeError, FrameError
from waybill.wire.amqp010.frames import FRAME_HEAD_SIZE, HEARTBEAT_FRAME, PROTOCOL_HEADER
from waybill.wire.amqp010.sequence import MASK, serial_less
from waybill.wire.amqp010.struct import Control
from waybill.wire.amqp010.transfer import ACCEPT_CODE, TRANSFER_CODE, scan_transfer

FRAME_UNITS: Final = 2
FRAME_UNIT_BITS: Final = 12
CONTROL_UNITS: Final = 4
CONNECTION_CLASS: Final = 1
CLOSE_OK_FRAME: Final = encode_control(0, ConnectionCloseOk())
ONE_COMPLETED_HEAD: Final = b"\x02\x0a\x01\x00\x00\x08"
ONE_COMPLETED_SIZE: Final = 14
"""Octets of a session.completed of one range, without `timely-reply`."""
COMMAND_HEAD: Final = 0x0B01
"""Flags and type of the frame of a command with more segments."""


class Connection(SessionHost):
    """One peer. See `ServerConnection` for what it shares with other protocols."""

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str = ""
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, OPENING)
        self._excuses = CHOKED | BLOCKED
        limits = host.limits
        self._assembler = Assembler(
            MIN_MAX_FRAME_SIZE, 0xFFFF, limits.message_size_max, max(limits.held_per_connection_max, 1 << 20) * 2
        )
        self._attachments = Attachments(self)
        self.sessions = self._attachments.sessions
        self._routes: dict[bytes, TransferRoute] = {}
        self._expected: TransferRoute | None = None
        self._accepting: Session | None = None
        self._task: Chore | None = None
        self._flushing: list[Session] = []
        self._is_deaf = False
        self._next: i64 = 0
        self._held_size: i64 = 0
        self._throttle = Throttle(self)
        self.send(PROTOCOL_HEADER)
        self._handshake = Handshake(self, self._assembler)
        self._handshake.start()

    # --- for the base ---

    def has_read(self, size: i64) -> None:
        route = self._expected
        if route is not None and not self._pauses & WAITS_FOR_TURN:
            envelope = route.envelope
            if envelope is not None and envelope.is_outrunning():
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
            if not self._is_deaf:
                o = self._next
        if self._is_deaf:
            return self._listen_for_goodbye(data)
        return o

    def _listen_for_goodbye(self, data: bytes) -> i64:
        if data.endswith(CLOSE_OK_FRAME):
            self.advance(ENDED)
        return max(len(data) - len(CLOSE_OK_FRAME), 0)

    def _is_logging_in(self) -> bool:
        return self.state == OPENING

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def begin(self, task: Chore) -> None:
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
        return True

    def prepared_units(self) -> i64:
        units: i64 = 0
        for session in self.sessions.values():
            if session.is_dtx:
                # It may end any branch of its user.
                return self.host.limits.transaction_units_max
            if session.transaction is not None:
                units = max(units, session.transaction.units)
        return units

    def wake_consumers(self) -> None:
        for session in self.sessions.values():
            session.wake_consumers()

    def end_batch(self) -> None:
        if self._flushing:
            flushing = self._flushing
            self._flushing = []
            for session in flushing:
                if session.connection is self:
                    session.finish_flushes()
            if self._confirming:
                self.settle_confirms()
        super().end_batch()

    def flushing(self, session: Confirming) -> None:
        if isinstance(session, Session) and session not in self._flushing:
            self._flushing.append(session)
        self.host.mark_dirty(self)

    def send_heartbeat(self) -> None:
        self.send(HEARTBEAT_FRAME)

    def peer_is_silent(self) -> None:
        self.advance(ENDED)

    def not_open(self) -> Exception:
        return connection_fault(CLOSE_FRAMING_ERROR, "the connection is not open")

    def fail_with_internal_error(self) -> None:
        self._close(connection_fault(CLOSE_CONNECTION_FORCED, "an error in the broker; see its log"))

    # --- for the node ---

    def alarm_changed(self) -> None:
        if self.state == OPEN:
            self._throttle.alarm_changed()

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its close-ok."""
        if self.state == OPEN:
            self._close(connection_fault(CLOSE_CONNECTION_FORCED, reason))
        elif self.state != CLOSING:
            self.advance(ENDED)

    def check_timeouts(self, now: float) -> None:
        for session in list(self.sessions.values()):
            fault = session.overdue(now)
            if fault is not None:
                self._attachments.fail(session, fault, 0, 0)

    # --- for sessions ---

    def holds_messages(self) -> bool:
        return any(session.unsettled for session in self.sessions.values())

    def stolen(self, channel: i64) -> None:
        self._forget_routes()
        self._attachments.stolen(channel)

    # --- input ---

    def _process(self, data: bytes, o: i64) -> i64:
        """Take all whole frames of `data` from `o` on. Returns the offset of the first octet not taken.

        When it raises, `_next` is where the next frame begins.
        """
        n: i64 = len(data)
        runtime = self.host.runtime
        assembler = self._assembler
        while n - o >= FRAME_HEAD_SIZE and runtime.work_left > 0 and self._task is None:
            if not self._takes_input:
                return n
            self._next = o
            if assembler.size == 0:
                accepting = self._accepting
                if accepting is not None and data[o : o + ACCEPT_HEAD_SIZE] == accepting.accept_head:
                    end = self._take_accepts(accepting, data, o, n)
                    if end > o:
                        o = end
                        continue
                route = self._expected
                if route is None or data[o : o + route.size] != route.octets:
                    route = self._route_at(data, o, n)
                if route is not None:
                    end = self._take_transfers(route, data, o, n)
                    if end == INCOMPLETE:
                        break
                    if end != COLD:
                        o = end
                        continue
            end = assembler.take_frame(data, o)
            if end < 0:
                break
            runtime.work_left -= FRAME_UNITS + ((end - o) >> FRAME_UNIT_BITS)
            self._next = end
            self._count_held()
            o = end
            if assembler.is_complete:
                self._take_assembled()
        return o

    def _take_accepts(self, session: Session, data: bytes, o: i64, n: i64) -> i64:
        if self.sessions.get(session.channel) is not session:
            self._accepting = None
            return o
        try:
            return accept_frames(session, session.accept_head, data, o, n)
        except Exception as error:  # noqa: BLE001 - see `_fail_session`
            self._fail_session(session, error, ACCEPT_CODE)
        return o

    def _count_held(self) -> None:
        """Count unfinished input. Raises a connection fault if it is too much."""
        size = self._assembler.size
        change = size - self._held_size
        if change == 0:
            return
        if change < 0:
            self.held.give_back(-change)
        elif not self.held.add(change):
            # Stop searching for the end of a command that is too long.
            self._is_deaf = True
            raise connection_fault(CLOSE_CONNECTION_FORCED, self.held.refusal())
        self._held_size = size

    def _route_at(self, data: bytes, o: i64, n: i64) -> TransferRoute | None:
        """The route of the transfer whose command frame is at `o`, if that is one and whole; a new one if need be."""
        head = read_i64_be(data, o)
        if head >> 48 & 0xFFFF != COMMAND_HEAD:
            return None
        size = head >> 32 & 0xFFFF
        if size < FRAME_HEAD_SIZE + 4 or n - o < size or size > self.max_frame_size:
            return None
        p = o + FRAME_HEAD_SIZE
        if data[p] << 8 | data[p + 1] != TRANSFER_CODE or head >> 16 & 0xFF != 1:
            return None
        octets = data[o : o + size]
        route = self._routes.get(octets)
        session = self.sessions.get(head & 0xFFFF)
        if route is None or route.session is not session:
            payload = octets[FRAME_HEAD_SIZE:]
            if session is None or self.state != OPEN or wants_sync(payload) or session.is_repeated:
                return None
            facts = self.transfer_facts
            try:
                scan_transfer(payload, facts)
            except DecodeError:
                return None
            is_explicit = facts.has_accept_mode and facts.accept_mode == ACCEPT_EXPLICIT
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            route = TransferRoute(session, octets, facts.destination, is_explicit=is_explicit)
            self._routes[octets] = route
        self._expected = route
        self.has_published = True
        return route

    def _take_transfers(self, route: TransferRoute, data: bytes, o: i64, n: i64) -> i64:
        session = route.session
        if self.sessions.get(route.channel) is not session or session.is_repeated:
            return COLD
        try:
            return route.take(data, o, n)
        except Exception as error:  # noqa: BLE001 - see `_fail_session`
            self._fail_session(session, error, TRANSFER_CODE)
        # The session has ended: its frames are skipped one by one.
        return COLD

    def _take_assembled(self) -> None:
        """A control or command is complete."""
        assembler = self._assembler
        payload = assembler.payload
        channel = assembler.channel
        if assembler.is_control:
            self.host.runtime.work_left -= CONTROL_UNITS + (len(payload) >> 5)
            self._take_control(channel, payload)
            return
        if self.state != OPEN:
            if self.state == OPENING:
                raise connection_fault(CLOSE_FRAMING_ERROR, "a command before the connection is open")
            return
        session = self.sessions.get(channel)
        if session is None:
            self._attachments.not_attached(channel)
            return
        if len(payload) == ONE_RANGE_SIZE and payload.startswith(ONE_RANGE_HEAD):
            self._accepting = session
        try:
            take_command(session, payload, assembler.header, assembler.body)
        except Exception as error:  # noqa: BLE001 - see `_fail_session`
            self._fail_session(session, error, payload[0] << 8 | payload[1] if len(payload) > 1 else 0)

    def _take_control(self, channel: i64, payload: bytes) -> None:
        session = self.sessions.get(channel)
        if session is not None and len(payload) == ONE_COMPLETED_SIZE and payload.startswith(ONE_COMPLETED_HEAD):
            both = read_i64_be(payload, len(ONE_COMPLETED_HEAD))
            if not serial_less(both & MASK, both >> 32 & MASK):
                self._take_completed(session, both >> 32 & MASK, both & MASK)
                return
        try:
            control = decode_control(payload)
        except DecodeError as error:
            raise FrameError(str(error)) from None
        if control.CODE >> 8 == CONNECTION_CLASS:
            if channel != 0:
                raise connection_fault(CLOSE_FRAMING_ERROR, f"{control.NAME} on channel {channel}")
            self._take_connection_control(control)
        elif self.state == OPEN:
            try:
                self._attachments.take(channel, control)
            except UnknownIds:
                self._forget_routes()
                self._attachments.fail_ids(channel)
            except Exception as fault:
                session = self.sessions.get(channel)
                if session is None:
                    raise
                self._fail_session(session, fault, 0)
        elif self.state == OPENING:
            raise connection_fault(CLOSE_FRAMING_ERROR, f"{control.NAME} before the connection is open")

    def _take_completed(self, session: Session, low: i64, high: i64) -> None:
        """session.completed of one range."""
        try:
            session.completed_range(low, high)
        except UnknownIds:
            self._forget_routes()
            self._attachments.fail_ids(session.channel)
        except Exception as fault:  # noqa: BLE001 - see `_fail_session`
            self._fail_session(session, fault, 0)

    def _take_connection_control(self, control: Control) -> None:
        code = control.CODE
        if code == ConnectionClose.CODE:
            self.send_control(0, ConnectionCloseOk())
            self.advance(PEER_CLOSED)
        elif self.state == CLOSING:
            if code == ConnectionCloseOk.CODE:
                self.advance(ENDED)
        elif code == ConnectionHeartbeat.CODE:
            pass
        elif self.state == OPENING:
            self._handshake.step(control)
        else:
            raise connection_fault(CLOSE_FRAMING_ERROR, f"{control.NAME} on an open connection")

    # --- the end ---

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._expected = None
        self._accepting = None

    def _fail_session(self, session: Session, error: Exception, code: int) -> None:
        """End what an error concerns: the session, or the connection. An unexpected error is logged, too."""
        fault = fault_of(error)
        self._forget_routes()
        if fault is None:
            self.fail_unexpectedly(error)
        elif fault.is_connection_wide:
            self._close(fault)
        else:
            self._attachments.fail(session, fault, code >> 8, code & 0xFF)

    def _fail(self, error: Exception) -> None:
        fault = fault_of(error)
        if isinstance(error, FrameError):
            # Frames can no longer be told apart, but the connection can still be closed properly.
            self._is_deaf = True
        if fault is None:
            self.fail_unexpectedly(error)
        elif fault.is_connection_wide:
            self._close(fault)
        else:
            self._close(connection_fault(CLOSE_FRAMING_ERROR, fault.text))

    def _close(self, fault: Fault) -> None:
        if self.advance(FAILED):
            self.send_control(0, ConnectionClose(fault.code, fault.text))

    def give_back(self) -> None:
        """Sessions that may outlive the connection are kept; the others end."""
        task = self._task
        if task is not None:
            self._task = None
            self.host.runtime.go_on_with(task)
        self._forget_routes()
        self._flushing = []
        self.held.give_back(self._held_size)
        self._held_size = 0
        self._attachments.give_back()
