"""A connection of AMQP 1.0, server side: splits its input into frames and passes them to sessions.

The loop in `_process` is the hot path: it recognizes transfers and dispositions by their descriptors, and sessions read
them in place. Everything else is decoded and dispatched by its type.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.connection_end import ConnectionEnd
from waybill.engine.amqp10.server.faults import CONNECTION, Fault, connection_fault
from waybill.engine.amqp10.server.opening import our_open
from waybill.engine.amqp10.server.sasl import SaslLayer, log_in_without_sasl
from waybill.engine.amqp10.server.session import Session
from waybill.engine.amqp10.server.session_host import Accepting, FrameTask, HostedSession, SessionHost
from waybill.engine.amqp10.termini import SESSION_ENDED
from waybill.engine.connection_state import CLOSING, ENDED, FAILED, HEADER, HEADER_TAKEN, LOGGED_IN, OPEN, OPENING, SASL
from waybill.engine.host import Host
from waybill.engine.server_connection import CHOKED
from waybill.model.errors import NotAllowed
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.error import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    FRAMING_ERROR,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    RESOURCE_LIMIT_EXCEEDED,
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
    scan_frame,
)
from waybill.wire.amqp10.message import Header  # noqa: F401 - so that all composite types are known
from waybill.wire.amqp10.performatives import Begin, Close, End, Open, Performative, decode_performative

VIRTUAL_HOST_PREFIX: Final = "vhost:"
DEFAULT_VIRTUAL_HOST: Final = "/"
MIN_IDLE_TIMEOUT_S: Final = 0.02
# The cost of decoding a frame other than a transfer or disposition, and of its octets.
FRAME_UNITS: Final = 9
FRAME_UNIT_BITS: Final = 4


class Connection(SessionHost):
    """One peer. See `ServerConnection` for what it shares with other protocols.

    `max_frame_size`: what we take. `peer_max_frame_size`: what the peer takes.
    """

    def __init__(
        self, host: Host, transport: object, peer_address: str, now: float, certificate_user: str, *, has_sasl: bool
    ) -> None:
        super().__init__(host, transport, peer_address, now, certificate_user, SASL if has_sasl else OPENING)
        self._excuses = CHOKED
        self.protocol = "AMQP 1-0"
        self.properties: dict[str, object] = {}
        self.max_frame_size: i64 = MIN_MAX_FRAME_SIZE
        self.channel_max: i64 = host.limits.channel_max
        self.sessions: dict[i64, Session] = {}
        self._has_sent_open = False
        self._frame = FrameFacts()
        self._ending: set[i64] = set()
        self._draining: list[HostedSession] = []
        # Whether the unit of the last disposition covers the next.
        self._has_paid = False
        self._accepting: Accepting | None = None
        self._tasks: deque[FrameTask] = deque()
        self._sasl: SaslLayer | None = None
        if has_sasl:
            self.send(SASL_HEADER)
            self._sasl = SaslLayer(self)
            self._sasl.start()
        else:
            self.send(AMQP_HEADER)

    # --- for the base ---

    def take(self, data: bytes) -> i64:
        o: i64 = 0
        try:
            if not self._tasks or self.has_done_tasks():
                o = self._process(data, o)
            self.accept_all()
        except Fault as fault:
            self._hang_up(fault.error)
        except FrameError as error:
            # The end of the frame is unknown, so nothing after it can be read.
            self._hang_up(Error(FRAMING_ERROR, str(error)))
        return o

    def begin(self, task: FrameTask) -> None:
        runtime = self.host.runtime
        if self.is_over:
            runtime.begin(task)
            return
        if self._tasks or runtime.work_left <= 0 or not task.work():
            self._tasks.append(task)
            self.wait_for_turn()

    def has_done_tasks(self) -> bool:
        while self._tasks:
            task = self._tasks.popleft()
            if not task.attempt():
                self._tasks.appendleft(task)
                self.wait_for_turn()
                return False
        return True

    def prepared_units(self) -> i64:
        return self.transactions.units()

    def fail_session(self, session: HostedSession, error: Exception) -> None:
        if isinstance(error, Fault):
            if error.scope == CONNECTION:
                self._close(error.error)
            else:
                self.end_session(session.channel, error.error)
        elif isinstance(error, DecodeError):
            self.end_session(session.channel, Error(DECODE_ERROR, str(error)))
        else:
            raise error

    def end_batch(self) -> None:
        if self._draining:
            draining = self._draining
            self._draining = []
            for session in draining:
                session.finish_drains()
        super().end_batch()
        if self._draining:
            self.host.mark_dirty(self)

    def wake_consumers(self) -> None:
        for session in self.sessions.values():
            session.wake_consumers()

    def send_heartbeat(self) -> None:
        self.send(EMPTY_FRAME)

    def peer_is_silent(self) -> None:
        self._hang_up(Error(RESOURCE_LIMIT_EXCEEDED, "no frame came from the peer within the idle time-out"))

    def not_open(self) -> Exception:
        return connection_fault(NOT_ALLOWED, "the connection is not open")

    def fail_with_internal_error(self) -> None:
        self._close(Error(INTERNAL_ERROR, "an error in the broker; see its log"))

    # --- for the node ---

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
        elif self.state != CLOSING:
            self.advance(ENDED)

    # --- for sessions ---

    def link_count(self) -> int:
        return sum(len(session.links) for session in self.sessions.values())

    def settling_count(self) -> int:
        return sum(session.links.settling_count() for session in self.sessions.values())

    def draining(self, session: HostedSession) -> None:
        if session not in self._draining:
            self._draining.append(session)
        self.host.mark_dirty(self)

    def accepting(self, accepting: Accepting) -> None:
        self.accept_all()
        self._accepting = accepting

    def accept_all(self) -> None:
        accepting = self._accepting
        if accepting is not None:
            self._accepting = None
            accepting.accept_all()

    def end_session(self, channel: i64, error: Error | None) -> None:
        """End a session from our side. Its frames are dropped until the peer's end."""
        session = self.sessions.pop(channel, None)
        if session is None:
            return
        self.accept_all()
        self._end(session)
        self._ending.add(channel)
        if error is not None:
            self.report("session ended", f"session {channel}: {error.condition} {error.description or ''}")
        self.send_performative(channel, End(error))

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
                runtime.work_left -= 1 + (facts.end - o) // BYTES_PER_UNIT
                o = facts.end
                if facts.type != FRAME_AMQP:
                    raise connection_fault(FRAMING_ERROR, "a SASL frame in an open connection")
                body = facts.body
                if o - body > 3 and data[body] == 0 and data[body + 1] == 0x53:
                    code: i64 = data[body + 2]
                    if code != descriptors.DISPOSITION and self._accepting is not None:
                        self.accept_all()
                    if code == descriptors.TRANSFER or code == descriptors.DISPOSITION:  # noqa: PLR1714 - native integers
                        if code == descriptors.DISPOSITION:
                            # Two cost a unit.
                            self._has_paid = not self._has_paid
                            if self._has_paid:
                                runtime.work_left += 1
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
            elif not self._takes_input:
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
        except (Fault, DecodeError) as error:
            self.fail_session(session, error)

    def _take_header(self, header: bytes) -> None:
        """Take the protocol header after the SASL layer."""
        if header != AMQP_HEADER:
            self.send(AMQP_HEADER)
            self.advance(ENDED)
            return
        self.send(AMQP_HEADER)
        self.advance(HEADER_TAKEN)

    def _take_early_or_late(self, kind: i64, channel: i64, data: bytes, start: i64, end: i64) -> None:
        """Take a frame of the SASL layer, before open, or after our close."""
        try:
            if self.state == SASL:
                sasl = self._sasl
                if kind == FRAME_AMQP or sasl is None:
                    raise connection_fault(FRAMING_ERROR, "expected a SASL frame")
                sasl.take(data, int(start), int(end))
                if sasl.is_over and self.advance(LOGGED_IN):
                    self._sasl = None
                return
            if kind != FRAME_AMQP:
                raise connection_fault(FRAMING_ERROR, "a SASL frame outside of the SASL layer")
            if start == end:
                return
            self._take_outside(channel, data, start, end)
        except DecodeError as error:
            if self.state == SASL:
                self.advance(ENDED)
            elif self.state == OPENING:
                self._close(Error(DECODE_ERROR, str(error)))

    def _take_outside(self, channel: i64, data: bytes, start: i64, end: i64) -> None:
        if self.state == CLOSING:
            code, _ = descriptors.read_descriptor(data, start, end)
            if code == descriptors.CLOSE:
                self.advance(ENDED)
            return
        performative, _ = decode_performative(data, start, end)
        if not isinstance(performative, Open):
            self._close(Error(NOT_ALLOWED, f"expected open, got {performative.NAME}"))
        elif channel != 0:
            # 2.4.1: "The open frame can only be sent on channel 0."
            self._close(Error(FRAMING_ERROR, f"open must be sent on channel 0, not {channel}"))
        else:
            self._open(performative)

    def _take_frame(self, channel: i64, data: bytes, start: i64, end: i64) -> None:
        """Take any frame of an open connection."""
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
            self.advance(ENDED)
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
            # With another form of its descriptor.
            self._take_hot(session, code, data, start, end)
            return
        try:
            session.take(performative)
        except (Fault, DecodeError) as error:
            self.fail_session(session, error)

    def _take_malformed(
        self, session: Session | None, channel: i64, data: bytes, start: i64, end: i64, error: Error
    ) -> None:
        """The frame has no valid performative: end the session or connection that it concerns."""
        try:
            code, _ = descriptors.read_descriptor(data, start, end)
        except DecodeError:
            code = descriptors.UNKNOWN
        if descriptors.ATTACH <= code <= descriptors.END and session is not None:
            self.end_session(session.channel, error)
        elif not (descriptors.ATTACH <= code <= descriptors.END and channel in self._ending):
            self._close(error)

    # --- open and close ---

    def _open(self, peer: Open) -> None:
        limits = self.host.limits
        self.container_id = peer.container_id
        self.properties = peer.properties or {}
        self._send_open()
        if peer.max_frame_size < MIN_MAX_FRAME_SIZE:
            self._close(Error(FRAMING_ERROR, f"max-frame-size must be at least {MIN_MAX_FRAME_SIZE}"))
            return
        self.max_frame_size = limits.frame_max
        self.peer_max_frame_size = min(peer.max_frame_size, limits.frame_max)
        self.channel_max = min(peer.channel_max, limits.channel_max)
        if peer.idle_time_out:
            self.send_interval_s = max(peer.idle_time_out / 1000.0, MIN_IDLE_TIMEOUT_S) / 2
        self.receive_timeout_s = float(limits.heartbeat_s)
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
        self.opened(virtual_host)

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
        self.host.runtime.counters.channels_opened += 1
        session.answer_begin()

    def _close(self, error: Error) -> None:
        """Send the error to the peer and wait for its close; before open, the error cannot be sent."""
        if self.state == OPENING and not self._has_sent_open:
            self._send_open()
        if self.advance(FAILED) and self.state == CLOSING:
            reason = f"{error.condition} {error.description or ''}"
            self.report("connection closed", reason, is_expected=error.condition == CONNECTION_FORCED)
            self.send_performative(0, Close(error))

    def _hang_up(self, error: Error) -> None:
        """Tell the peer of an error and wait for nothing."""
        self._close(error)
        self.advance(ENDED)

    def give_back(self) -> None:
        """After pending frames are executed, its sessions end."""
        self.accept_all()
        sessions = list(self.sessions.values())
        self.sessions = {}
        tasks = self._tasks
        self._tasks = deque()
        queues = self._virtual_host.queues_of(self) if self._virtual_host is not None else []
        self.host.runtime.begin(ConnectionEnd(self, tasks, sessions, queues))
