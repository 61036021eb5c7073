"""Sessions and the channels that carry them: attach, detach, time-outs, and the controls of an attached session."""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.faults import Fault, connection_fault
from waybill.engine.amqp010.server.session import Session
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.server.tasks import Ending
from waybill.engine.amqp010.sessions import TIMEOUT_MAX_S
from waybill.model.footprint import SESSION_BYTES
from waybill.model.runtime import Chore
from waybill.wire.amqp010.class_execution import ExecutionException
from waybill.wire.amqp010.class_session import (
    SessionAttach,
    SessionAttached,
    SessionCommandPoint,
    SessionCompleted,
    SessionConfirmed,
    SessionDetach,
    SessionDetached,
    SessionExpected,
    SessionFlush,
    SessionGap,
    SessionKnownCompleted,
    SessionRequestTimeout,
    SessionTimeout,
)
from waybill.wire.amqp010.constants import (
    CLOSE_CONNECTION_FORCED,
    CLOSE_FRAMING_ERROR,
    DETACH_NORMAL,
    DETACH_NOT_ATTACHED,
    DETACH_SESSION_BUSY,
    DETACH_TRANSPORT_BUSY,
    DETACH_UNKNOWN_IDS,
)
from waybill.wire.amqp010.sequence import MASK
from waybill.wire.amqp010.struct import Control

NAME_OCTETS_MAX: Final = 1024


class Attachments:
    """The sessions of one connection, by channel. `_detaching`: channels whose session we have ended, by its name."""

    def __init__(self, connection: SessionHost) -> None:
        self.sessions: dict[i64, Session] = {}
        self._connection = connection
        self._detaching: dict[i64, bytes] = {}

    # --- controls ---

    def take(self, channel: i64, control: Control) -> None:
        """A control of class session. Raises a fault, or UnknownIds."""
        if isinstance(control, SessionAttach):
            self._attach(channel, control)
            return
        if isinstance(control, SessionDetached):
            self._detached(channel)
            return
        session = self.sessions.get(channel)
        if isinstance(control, SessionDetach):
            self._detach(channel, session, control.name)
        elif session is None:
            self.not_attached(channel)
        elif isinstance(control, SessionRequestTimeout):
            self._request_timeout(session, control)
        elif isinstance(control, SessionCompleted):
            session.take_completed(control)
        elif isinstance(control, SessionKnownCompleted):
            session.take_known(control.commands)
        elif isinstance(control, SessionConfirmed):
            session.take_confirmed(control.commands)
        elif isinstance(control, SessionFlush):
            session.take_flush(control)
        elif isinstance(control, SessionCommandPoint):
            session.take_point(control)
        elif isinstance(control, SessionGap):
            session.take_gap(control.commands)
        elif isinstance(control, SessionExpected):
            session.take_expected(control)
        elif not isinstance(control, (SessionTimeout, SessionAttached)):
            raise connection_fault(CLOSE_FRAMING_ERROR, f"{control.NAME} is not expected")

    def _attach(self, channel: i64, attach: SessionAttach) -> None:
        connection = self._connection
        name = attach.name
        self._detaching.pop(channel, None)
        if channel > connection.channel_max or len(name) > NAME_OCTETS_MAX:
            raise connection_fault(CLOSE_FRAMING_ERROR, "the channel is beyond channel-max, or the name too long")
        present = self.sessions.get(channel)
        if present is not None:
            if present.name == name:
                connection.send_control(channel, SessionAttached(name))
            else:
                connection.send_control(channel, SessionDetached(name, DETACH_TRANSPORT_BUSY))
            return
        key = (connection.virtual_host.name, connection.user_name, name)
        found = connection.host.sessions.find(key)
        session = found if isinstance(found, Session) else None
        if session is not None:
            holder = session.connection
            if session.pending or (holder is not None and not attach.force):
                connection.send_control(channel, SessionDetached(name, DETACH_SESSION_BUSY))
                return
            if holder is not None:
                holder.stolen(session.channel)
                if not session.is_open:
                    session = None
        if session is None:
            self._check_room()
            session = Session(key, connection)
            connection.host.sessions.add(session)
        self.sessions[channel] = session
        connection.send_control(channel, SessionAttached(name))
        session.attach(connection, channel)

    def _check_room(self) -> None:
        connection = self._connection
        if 0 <= connection.user.channel_max <= len(self.sessions):
            raise connection_fault(
                CLOSE_CONNECTION_FORCED,
                f"user '{connection.user.name}' may attach {connection.user.channel_max} sessions",
            )
        if not connection.held.can_attach(SESSION_BYTES + NAME_OCTETS_MAX):
            raise connection_fault(CLOSE_CONNECTION_FORCED, connection.held.no_room())

    def _request_timeout(self, session: Session, control: SessionRequestTimeout) -> None:
        """How long the session is kept while it is detached; without a number as long as possible."""
        wanted = TIMEOUT_MAX_S if control.timeout is None else control.timeout
        session.timeout_s = min(wanted, TIMEOUT_MAX_S)
        if session.timeout_s == 0:
            session.replay.clear()
            session.unchoke()
        self._connection.send_control(session.channel, SessionTimeout(session.timeout_s))

    def _detach(self, channel: i64, session: Session | None, name: bytes) -> None:
        connection = self._connection
        if session is None or session.name != name:
            if self._detaching.get(channel) == name:
                del self._detaching[channel]
                connection.send_control(channel, SessionDetached(name, DETACH_NORMAL))
                return
            connection.send_control(channel, SessionDetached(name, DETACH_NOT_ATTACHED))
            return
        del self.sessions[channel]
        if session.detach():
            connection.send_control(channel, SessionDetached(name, DETACH_NORMAL))
            return
        ending = session.end()
        if ending is not None:
            connection.begin(Farewell(connection, channel, name, ending))

    def _detached(self, channel: i64) -> None:
        """The answer to our detach, or the peer has lost the session."""
        if self._detaching.pop(channel, None) is None:
            session = self.sessions.pop(channel, None)
            if session is not None and not session.detach():
                self._end(session)

    def not_attached(self, channel: i64) -> None:
        """Handle a frame on a channel without a session."""
        if channel not in self._detaching:
            self._connection.send_control(channel, SessionDetached(b"", DETACH_NOT_ATTACHED))

    # --- the end of sessions ---

    def stolen(self, channel: i64) -> None:
        """The session of a channel is attached elsewhere."""
        session = self.sessions.pop(channel, None)
        if session is None:
            return
        self._connection.send_control(channel, SessionDetached(session.name, DETACH_SESSION_BUSY))
        self._detaching[channel] = session.name
        # A session that may not outlive this connection ends; the other connection gets a new one.
        if not session.detach():
            self._end(session)

    def fail_ids(self, channel: i64) -> None:
        """End the session: the peer named commands that were never sent to it."""
        session = self.sessions.pop(channel, None)
        if session is None:
            return
        self._connection.send_control(channel, SessionDetached(session.name, DETACH_UNKNOWN_IDS))
        self._detaching[channel] = session.name
        self._end(session)

    def fail(self, session: Session, fault: Fault, class_code: int, command_code: int) -> None:
        """A command has failed, or without a class code a control: tell the peer which, and end the session."""
        connection = self._connection
        channel = session.channel
        if self.sessions.get(channel) is not session:
            return
        session.sync_anyway()
        session.send_command(
            ExecutionException(
                error_code=fault.code,
                command_id=int((session.next_in - 1) & MASK) if class_code else None,
                class_code=class_code,
                command_code=command_code,
                field_index=0,
                description=fault.text,
                error_info={},
            )
        )
        del self.sessions[channel]
        connection.send_control(channel, SessionDetach(session.name))
        self._detaching[channel] = session.name
        session.timeout_s = 0
        session.detach()
        self._end(session)

    def _end(self, session: Session) -> None:
        ending = session.end()
        if ending is not None:
            self._connection.host.runtime.begin(ending)

    def give_back(self) -> None:
        """The connection is over."""
        sessions = list(self.sessions.values())
        self.sessions.clear()
        for session in sessions:
            if not session.detach():
                self._end(session)


class Farewell(Chore):
    """Ends a session that the peer has detached, and notifies the peer once its deliveries are requeued."""

    def __init__(self, connection: SessionHost, channel: i64, name: bytes, ending: Ending) -> None:
        self._connection = connection
        self._channel: i64 = channel
        self._name = name
        self._ending = ending

    def work(self) -> bool:
        if not self._ending.work():
            return False
        if not self._connection.is_over:
            self._connection.send_control(self._channel, SessionDetached(self._name, DETACH_NORMAL))
        return True
