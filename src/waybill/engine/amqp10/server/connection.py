r"""A connection of AMQP 1.0, server side: cuts its input into frames and leads them to sessions.

    HEADER --SASL header--> SASL --outcome ok--> HEADER --AMQP header--> OPENING --open--> OPEN
    OPEN --fault, or the node stops--> CLOSING --close, or time--> CLOSED
      \--the peer's close------------------------------------------^

The loop in `_process` is the hot code: transfers and dispositions are recognised by their descriptor and read in place
by their session. Everything else is decoded and dispatched by its type.
"""

from collections import deque
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.access import check_permission, check_topic
from waybill.engine.amqp10.server.faults import CONNECTION, Fault, connection_fault, link_fault
from waybill.engine.amqp10.server.opening import our_open
from waybill.engine.amqp10.server.sasl import SaslLayer, log_in_without_sasl
from waybill.engine.amqp10.server.session import Session
from waybill.engine.amqp10.server.task import Ending, SessionTask
from waybill.engine.amqp10.server.transaction import LinkTransaction
from waybill.engine.amqp10.termini import SESSION_ENDED, Terminus
from waybill.engine.held import HeldMemory
from waybill.engine.host import Host, Output, ServerEngine, User
from waybill.model.errors import NotAllowed
from waybill.model.runtime import BYTES_PER_UNIT, Chore
from waybill.model.virtual_host import VirtualHost
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.error import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_UNKNOWN_ID,
    UNAUTHORIZED_ACCESS,
    Error,
)
from waybill.wire.amqp10.errors import DecodeError, FrameError
from waybill.wire.amqp10.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    FRAME_AMQP,
    MIN_MAX_FRAME_SIZE,
    PROTOCOL_HEADER_SIZE,
    SASL_HEADER,
    FrameFacts,
    frame,
    scan_frame,
)
from waybill.wire.amqp10.message import Header  # noqa: F401 - so that all composite types are known
from waybill.wire.amqp10.performatives import Begin, Close, End, Open, Performative, decode_performative
from waybill.wire.amqp10.sections import MessageFacts
from waybill.wire.amqp10.transactions import TransactionalState
from waybill.wire.amqp10.transfer import TransferFacts
from waybill.wire.amqp10.types import Described

HEADER: Final = "header"
SASL: Final = "sasl"
OPENING: Final = "opening"
OPEN: Final = "open"
CLOSING: Final = "closing"
CLOSED: Final = "closed"

KEPT_OUTPUT_BYTES: Final = 1 << 20
# Deliveries stop long before; so many more answers pile up only for a peer that asks on and on and reads nothing.
UNREAD_LIMIT: Final = 16 << 20
VIRTUAL_HOST_PREFIX: Final = "vhost:"
DEFAULT_VIRTUAL_HOST: Final = "/"
MIN_IDLE_TIMEOUT_S: Final = 0.02
# What it costs to decode a frame that is no transfer or disposition, and its fields.
FRAME_UNITS: Final = 8
FRAME_UNIT_BITS: Final = 4


class Connection(ServerEngine):
    """One peer. `is_stalled`: its output has piled up, so it is given no more messages until that is written.

    What the peer may send is limited by `max_frame_size`, what it takes by `peer_max_frame_size`.
    """

    def __init__(
        self, host: Host, output: Output, peer_address: str, now: float, certificate_user: str, *, has_sasl: bool
    ) -> None:
        super().__init__()
        self.certificate_user = certificate_user
        self.host = host
        self.output = output
        self.peer_address = peer_address
        self.state = OPENING
        self.user = User("", {})
        self.container_id = ""
        self.properties: dict[str, object] = {}
        self.max_frame_size: i64 = MIN_MAX_FRAME_SIZE
        self.peer_max_frame_size: i64 = MIN_MAX_FRAME_SIZE
        self.channel_max: i64 = host.limits.channel_max
        self.sessions: dict[i64, Session] = {}
        self.suspended: list[Terminus] = []
        self.transactions: dict[bytes, LinkTransaction] = {}
        self.transaction_count = 0
        self.transaction_units: i64 = 0
        self.held = HeldMemory(host.runtime, host.limits.held_per_connection_max)
        self.out = BytesWriter()
        self.transfer_facts = TransferFacts()
        self.message_facts = MessageFacts()
        self.is_stalled = False
        self.output_high_water: i64 = host.limits.output_high_water
        self._has_sent_open = False
        self._frame = FrameFacts()
        self._unread: i64 = 0
        self._is_transport_full = False
        self._is_choked = False
        self._is_waiting = False
        self._is_held = False
        self._wants_hold = False
        self._hold_mark: i64 = 0
        self._rest = b""
        self._ending: set[i64] = set()
        self._confirming: list[Session] = []
        self._draining: list[Session] = []
        self._accepting: Session | None = None
        self._tasks: deque[SessionTask] = deque()
        self.is_over = False
        self._received_at: float = now
        self._sent_at: float = now
        self._deadline: float = now + host.limits.handshake_timeout_s
        self._peer_timeout_s: float = 0.0
        self._virtual_host: VirtualHost | None = None
        self._sasl: SaslLayer | None = None
        if has_sasl:
            self.send(SASL_HEADER)
            self.state = SASL
            self._sasl = SaslLayer(self)
            self._sasl.start()
        else:
            self.send(AMQP_HEADER)

    # --- for the transport ---

    @property
    def closed(self) -> bool:
        return self.state == CLOSED and not self._is_held

    def receive_data(self, data: bytes, now: float) -> None:
        if self.state == CLOSED:
            return
        self._received_at = now
        self.host.runtime.now = now
        if self._rest:
            data = self._rest + data if data else self._rest
            self._rest = b""
        runtime = self.host.runtime
        runtime.begin_read()
        if self.state == SASL and runtime.logins_left <= 0:
            runtime.work_left = 0  # The passwords of others have taken this turn.
        o: i64 = 0
        try:
            if not self._tasks or self._has_done_tasks():
                o = self._process(data, o)
            self.accept_all()
        except Fault as fault:
            self._close(fault.error)
            self._set_closed()
        except FrameError as error:
            # Frames can no longer be told apart: say so, and hang up.
            self._close(Error(FRAMING_ERROR, str(error)))
            self._set_closed()
        if o < len(data) and self.state != CLOSED:
            self._rest = data[o:]
            if runtime.work_left <= 0:
                self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self.output.pause_reading()
            self.host.runtime.go_on_with(_Turn(self))

    def begin(self, task: SessionTask) -> None:
        """Do what a frame asks for. If the turn is too short for it, the frames behind it wait."""
        runtime = self.host.runtime
        if self.is_over:
            runtime.begin(task)
            return
        if self._tasks or runtime.work_left <= 0 or not task.work():
            self._tasks.append(task)
            self._wait_for_turn()

    def _has_done_tasks(self) -> bool:
        while self._tasks:
            task = self._tasks.popleft()
            if not task.attempt():
                self._tasks.appendleft(task)
                self._wait_for_turn()
                return False
        return True

    def fail_session(self, session: Session, error: Exception) -> None:
        """A task of a session has failed."""
        if isinstance(error, Fault):
            self._fail(error, session)
        else:
            self.end_session(session, Error(DECODE_ERROR, str(error)))

    def take_turn(self) -> None:
        """Go on with what was read, and the turn was too short for."""
        self._is_waiting = False
        if not self._is_choked:
            self.output.resume_reading()
        self.receive_data(b"", self.host.runtime.now)

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
            self._unread += size
            if self._unread > UNREAD_LIMIT and not self._is_choked:
                self._is_choked = True
                self.output.pause_reading()
        elif self.is_stalled:
            self._unstall()
        return data

    def connection_lost(self, now: float) -> None:
        self._set_closed()
        self.held.lost()
        self.host.lost(self)

    def next_timeout(self) -> float | None:
        if self.state == CLOSED:
            return None
        if self.state != OPEN:
            return self._deadline
        at: float = 0.0
        if self.host.limits.heartbeat_s:
            at = self._received_at + self.host.limits.heartbeat_s
        if self._peer_timeout_s > 0.0:
            send_at = self._sent_at + self._peer_timeout_s / 2
            at = send_at if at == 0.0 else min(at, send_at)
        return at if at > 0.0 else None

    def handle_timeout(self, now: float) -> None:
        self.host.runtime.now = now
        if self.state != OPEN:
            if now >= self._deadline:
                self._set_closed()
            return
        heartbeat_s = float(self.host.limits.heartbeat_s)
        if heartbeat_s > 0.0 and now >= self._received_at + heartbeat_s and not self._is_choked:
            self._close(Error(RESOURCE_LIMIT_EXCEEDED, "nothing came from the peer during the idle time-out"))
            self._set_closed()
        elif self._peer_timeout_s > 0.0 and now >= self._sent_at + self._peer_timeout_s / 2:
            self._sent_at = now
            self.send(EMPTY_FRAME)

    def pause_writing(self) -> None:
        self._is_transport_full = self.is_stalled = True
        self.held.transport_is_full()

    def resume_writing(self, now: float) -> None:
        self._is_transport_full = False
        self.held.transport_has_room()
        self._unread = 0
        if self._is_choked:
            self._is_choked = False
            self._received_at = now
            if not self._is_waiting:
                self.output.resume_reading()
        self._unstall()

    # --- for the node ---

    def flush(self) -> None:
        self.is_dirty = False
        if self._draining:
            draining = self._draining
            self._draining = []
            for session in draining:
                session.finish_drains()
            self.is_dirty = False
        if self._wants_hold:
            self._wants_hold = False
            self._is_held = True
            self._hold_mark += 1
            self.host.runtime.store.wait(self, self._hold_mark)
        if not self._is_held:
            self.output.flush()

    def settle_confirms(self) -> None:
        sessions = self._confirming
        self._confirming = []
        for session in sessions:
            session.settle_confirms()

    def committed(self, mark: i64) -> None:
        """What `hold` waited for is durable: the answers may go."""
        if mark == self._hold_mark:
            self._is_held = False
            self.host.mark_dirty(self)

    def alarm_changed(self) -> None:
        """While there is an alarm, senders get no credit."""
        for session in self.sessions.values():
            session.alarm_changed()

    def check_timeouts(self, now: float) -> None:
        timeout_s = self.host.limits.consumer_timeout_s
        if timeout_s > 0:
            self.host.runtime.work_left -= len(self.sessions) >> 2
            for session in list(self.sessions.values()):
                session.release_late(now, timeout_s)

    def shut_down(self, reason: str) -> None:
        """The node stops: tell the peer, and wait for its close."""
        if self.state == OPEN:
            self._close(Error(CONNECTION_FORCED, reason))
        elif self.state not in {CLOSING, CLOSED}:
            self._set_closed()

    # --- for sessions ---

    @property
    def virtual_host(self) -> VirtualHost:
        virtual_host = self._virtual_host
        if virtual_host is None:
            raise connection_fault(NOT_ALLOWED, "the connection is not open")
        return virtual_host

    @property
    def user_name(self) -> str:
        return self.user.name

    def transaction(self, state: Composite | Described | None) -> LinkTransaction:
        """The transaction that a state names. Raises a link fault if there is none."""
        if isinstance(state, COMPOSITE) and isinstance(state, TransactionalState):
            transaction = self.transactions.get(state.txn_id)
            if transaction is not None:
                return transaction
            raise link_fault(TRANSACTION_UNKNOWN_ID, f"no transaction {state.txn_id!r} is declared")
        raise link_fault(ILLEGAL_STATE, "a transactional state is needed")

    def check_permission(self, action: str, kind: str, name: str) -> None:
        """Raises `AccessRefused` unless this connection's user may do `action`."""
        check_permission(self.user, self.virtual_host, action, kind, name)

    def check_topic(self, action: str, exchange_name: str, routing_key: str) -> None:
        """Raises `AccessRefused` unless this connection's user may use the routing key at that exchange."""
        check_topic(self.user, self.virtual_host, action, exchange_name, routing_key)

    def send(self, octets: bytes) -> None:
        self.out.write(octets)
        if not self.is_dirty:
            self.host.mark_dirty(self)

    def send_performative(self, channel: i64, performative: Performative) -> None:
        self.send(frame(int(channel), performative.encode()))

    def hold(self) -> None:
        """Keep all output back until what was put in the store so far is durable."""
        self._wants_hold = True
        self.host.mark_dirty(self)

    def confirming(self, session: Session) -> None:
        if not self._confirming:
            self.host.mark_confirming(self)
        self._confirming.append(session)

    def draining(self, session: Session) -> None:
        """Call `finish_drains` of the session once the queues had their turn."""
        if session not in self._draining:
            self._draining.append(session)
        self.host.mark_dirty(self)

    def accepting(self, session: Session) -> None:
        """The session collects accepted deliveries as long as nothing else comes."""
        self.accept_all()
        self._accepting = session

    def accept_all(self) -> None:
        session = self._accepting
        if session is not None:
            self._accepting = None
            session.accept_all()

    def cut_off(self) -> None:
        """Close without AMQP's goodbye: there is no connection yet that could be closed."""
        self._set_closed()

    def end_session(self, session: Session, error: Error | None) -> None:
        """End a session from our side; until the peer's end comes, all that is sent on it is dropped."""
        if self.sessions.pop(session.channel, None) is None:
            return
        self.accept_all()
        self._end(session)
        self._ending.add(session.channel)
        self.send_performative(session.channel, End(error))

    def _end(self, session: Session) -> None:
        end = session.close(SESSION_ENDED)
        if end is not None:
            self.begin(end)

    # --- input ---

    def _process(self, data: bytes, o: i64) -> i64:
        """Take all whole frames of `data` from `o` on. Returns the offset of the first octet not taken."""
        n: i64 = len(data)
        facts = self._frame
        runtime = self.host.runtime
        while n - o >= 8 and runtime.work_left > 0:
            if self.state == OPEN:
                if not scan_frame(data, o, self.max_frame_size, facts):
                    break
                runtime.work_left -= 2 + (facts.end - o) // BYTES_PER_UNIT
                o = facts.end
                if facts.type != FRAME_AMQP:
                    raise connection_fault(FRAMING_ERROR, "a SASL frame in an open connection")
                body = facts.body
                if o - body > 3 and data[body] == 0 and data[body + 1] == 0x53:
                    code: i64 = data[body + 2]
                    if code != descriptors.DISPOSITION and self._accepting is not None:
                        self.accept_all()
                    if code == descriptors.TRANSFER or code == descriptors.DISPOSITION:  # noqa: PLR1714 - native integers
                        session = self.sessions.get(facts.channel)
                        if session is not None:
                            self._take_hot(session, code, data, body, o)
                            continue
                if body < o:
                    self.accept_all()
                    runtime.work_left -= FRAME_UNITS + (o - body >> FRAME_UNIT_BITS)
                    self._take_frame(facts.channel, data, body, o)
            elif self.state == HEADER:
                self._take_header(data[o : o + PROTOCOL_HEADER_SIZE])
                o += PROTOCOL_HEADER_SIZE
            elif self.state == CLOSED:
                return n
            else:
                if not scan_frame(data, o, self.max_frame_size, facts):
                    break
                o = facts.end
                self._take_early_or_late(facts.type, facts.channel, data, facts.body, o)
        return o

    def _take_hot(self, session: Session, code: i64, data: bytes, start: i64, end: i64) -> None:
        """A transfer or a disposition."""
        try:
            if code == descriptors.TRANSFER:
                session.take_transfer(data, start, end)
            else:
                session.take_disposition(data, start, end)
        except DecodeError as error:
            self.end_session(session, Error(DECODE_ERROR, str(error)))
        except Fault as fault:
            self._fail(fault, session)

    def _fail(self, fault: Fault, session: Session) -> None:
        if fault.scope == CONNECTION:
            self._close(fault.error)
        else:
            self.end_session(session, fault.error)

    def _take_header(self, header: bytes) -> None:
        """The header after the SASL layer."""
        if header != AMQP_HEADER:
            self.send(AMQP_HEADER)
            self._set_closed()
            return
        self.send(AMQP_HEADER)
        self.state = OPENING

    def _take_early_or_late(self, kind: i64, channel: i64, data: bytes, start: i64, end: i64) -> None:
        """A frame of the SASL layer, before open, or after our close."""
        try:
            if self.state == SASL:
                sasl = self._sasl
                if kind == FRAME_AMQP or sasl is None:
                    raise connection_fault(FRAMING_ERROR, "a SASL frame is needed")
                sasl.take(data, int(start), int(end))
                if sasl.is_over and self.state == SASL:
                    self._sasl = None
                    self.state = HEADER
                return
            if kind != FRAME_AMQP:
                raise connection_fault(FRAMING_ERROR, "a SASL frame outside of the SASL layer")
            if start == end:
                return
            self._take_outside(channel, data, start, end)
        except DecodeError as error:
            if self.state == SASL:
                self._set_closed()
            elif self.state == OPENING:
                self._refuse_open(Error(DECODE_ERROR, str(error)))

    def _take_outside(self, channel: i64, data: bytes, start: i64, end: i64) -> None:
        if self.state == CLOSING:
            code, _ = descriptors.read_descriptor(data, start, end)
            if code == descriptors.CLOSE:
                self._set_closed()
            return
        performative, _ = decode_performative(data, start, end)
        if not isinstance(performative, Open):
            self._refuse_open(Error(NOT_ALLOWED, f"open is needed first, not {performative.NAME}"))
        elif channel != 0:
            # 2.4.1: "The open frame can only be sent on channel 0."
            self._refuse_open(Error(FRAMING_ERROR, f"open comes on channel 0, not {channel}"))
        else:
            self._open(performative)

    def _refuse_open(self, error: Error) -> None:
        self._close(error)

    def _take_frame(self, channel: i64, data: bytes, start: i64, end: i64) -> None:
        """Any frame of an open connection."""
        session = self.sessions.get(channel)
        try:
            performative, payload = decode_performative(data, start, end)
        except DecodeError as error:
            self._take_malformed(session, channel, data, start, end, Error(DECODE_ERROR, str(error)))
            return
        if payload < end and performative.CODE != descriptors.TRANSFER:
            self._close(Error(FRAMING_ERROR, f"octets after {performative.NAME}"))
            return
        if isinstance(performative, Close):
            self.send_performative(0, Close())
            self._set_closed()
        elif isinstance(performative, Open):
            self._close(Error(NOT_ALLOWED, "the connection is open already"))
        elif isinstance(performative, Begin):
            self._begin(channel, performative)
        elif session is None:
            if channel not in self._ending:
                self._close(Error(NOT_ALLOWED, f"no session on channel {channel}"))
            elif isinstance(performative, End):
                self._ending.discard(channel)
        elif isinstance(performative, End):
            del self.sessions[channel]
            self._end(session)
            self.send_performative(channel, End())
        else:
            self._take_by_session(session, performative, data, start, end)

    def _take_by_session(self, session: Session, performative: Performative, data: bytes, start: i64, end: i64) -> None:
        code = performative.CODE
        if code == descriptors.TRANSFER or code == descriptors.DISPOSITION:  # noqa: PLR1714 - native integers
            # By another form of its descriptor.
            self._take_hot(session, code, data, start, end)
            return
        try:
            session.take(performative)
        except Fault as fault:
            self._fail(fault, session)

    def _take_malformed(
        self, session: Session | None, channel: i64, data: bytes, start: i64, end: i64, error: Error
    ) -> None:
        """A frame's body is no performative, or one with wrong fields: what it would have concerned ends."""
        try:
            code, _ = descriptors.read_descriptor(data, start, end)
        except DecodeError:
            code = descriptors.UNKNOWN
        if descriptors.ATTACH <= code <= descriptors.END and session is not None:
            self.end_session(session, error)
        elif not (descriptors.ATTACH <= code <= descriptors.END and channel in self._ending):
            self._close(error)

    # --- open and close ---

    def _open(self, peer: Open) -> None:
        limits = self.host.limits
        self.container_id = peer.container_id
        self.properties = peer.properties or {}
        self._send_open()
        if peer.max_frame_size < MIN_MAX_FRAME_SIZE:
            self._close(Error(FRAMING_ERROR, f"max-frame-size is {MIN_MAX_FRAME_SIZE} at least"))
            return
        self.max_frame_size = limits.frame_max
        self.peer_max_frame_size = min(peer.max_frame_size, limits.frame_max)
        self.channel_max = min(peer.channel_max, limits.channel_max)
        if peer.idle_time_out:
            self._peer_timeout_s = max(peer.idle_time_out / 1000.0, MIN_IDLE_TIMEOUT_S)
        name = peer.hostname or ""
        name = name.removeprefix(VIRTUAL_HOST_PREFIX) if name.startswith(VIRTUAL_HOST_PREFIX) else DEFAULT_VIRTUAL_HOST
        try:
            if not self.user.name:
                log_in_without_sasl(self)
            self._enter(name)
        except Fault as fault:
            self._close(fault.error)

    def _enter(self, name: str) -> None:
        """Raises a connection fault if the user may not be there."""
        virtual_host = self.host.virtual_host(name)
        if virtual_host is None:
            raise connection_fault(NOT_FOUND, f"vhost {name} not found")
        if name not in self.user.permissions:
            raise connection_fault(UNAUTHORIZED_ACCESS, f"access to vhost '{name}' refused for user '{self.user.name}'")
        try:
            self.host.check_connection_limits(self.user, name)
        except NotAllowed as error:
            raise connection_fault(RESOURCE_LIMIT_EXCEEDED, str(error)) from None
        self._virtual_host = virtual_host
        self.state = OPEN
        self.host.opened(self)

    def _send_open(self) -> None:
        self._has_sent_open = True
        self.send_performative(0, our_open(self.host))

    def _begin(self, channel: i64, begin: Begin) -> None:
        if channel in self.sessions:
            self._close(Error(NOT_ALLOWED, f"there is a session on channel {channel}"))
            return
        if channel > self.channel_max:
            self._close(Error(FRAMING_ERROR, f"channel {channel} is beyond channel-max {self.channel_max}"))
            return
        if channel in self._ending:
            self._close(Error(NOT_ALLOWED, f"the session on channel {channel} has not ended"))
            return
        if 0 <= self.user.channel_max <= len(self.sessions):
            self._close(
                Error(RESOURCE_LIMIT_EXCEEDED, f"user '{self.user.name}' may begin {self.user.channel_max} sessions")
            )
            return
        session = Session(self, channel, begin)
        self.sessions[channel] = session
        session.answer_begin()

    def _close(self, error: Error) -> None:
        if self.state in {CLOSING, CLOSED}:
            return
        if self.state in {SASL, HEADER}:
            self._set_closed()
            return
        if not self._has_sent_open:
            self._send_open()
        self._free()
        self.state = CLOSING
        self._deadline = self._received_at + self.host.limits.close_timeout_s
        self.send_performative(0, Close(error))

    def _set_closed(self) -> None:
        if self.state == CLOSED:
            return
        self._free()
        self.state = CLOSED
        self.host.mark_dirty(self)

    def _free(self) -> None:
        """Give back everything that sessions hold."""
        self.accept_all()
        if self.is_over:
            return
        # Nothing is delivered, and nothing is said, from now on.
        self.is_over = True
        self.is_stalled = True
        sessions = list(self.sessions.values())
        self.sessions = {}
        tasks = self._tasks
        self._tasks = deque()
        queues = self._virtual_host.queues_of(self) if self._virtual_host is not None else []
        self.host.runtime.begin(Ending(self, tasks, sessions, queues))

    def _unstall(self) -> None:
        if self.is_over:
            return
        self.is_stalled = False
        self.wake_links()

    def wake_links(self) -> None:
        """Deliveries may go on, in all sessions."""
        for session in self.sessions.values():
            session.wake_links()


class _Turn(Chore):
    """The turn of a connection that has more to do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def work(self) -> bool:
        self._connection.take_turn()
        return True
