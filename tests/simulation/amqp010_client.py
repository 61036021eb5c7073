"""A random 0-10 client that speaks real frames and tells the ledger all that it does and sees.

It is the engine for one end of the simulated network, with one session, which outlives it (`amqp010_session`). What
needs an answer on the way to an attached session is a conversation of the connection; all that is said in the session
is a conversation of that. What it does on its own account is in `amqp010_actions`.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from tests.simulation.actor import Actor, Choice, Peer
from tests.simulation.amqp010_frames import FrameCodec, Received, read_message, unwrapped
from tests.simulation.amqp010_session import REMEMBERED, Sent, Session, Taken
from tests.simulation.ledger import Arrival
from tests.simulation.violation import Violation
from tests.wire.amqp010.frame_parser import Assembled
from waybill.testing.virtual_clock import Event
from waybill.wire.amqp010.class_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionHeartbeat,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_execution import ExecutionException, ExecutionResult
from waybill.wire.amqp010.class_message import MessageAccept, MessageReject, MessageTransfer
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
from waybill.wire.amqp010.codec import decode_command, decode_control
from waybill.wire.amqp010.constants import (
    CLOSE_CONNECTION_FORCED,
    CLOSE_NORMAL,
    DETACH_NORMAL,
    DETACH_SESSION_BUSY,
    ERROR_NOT_FOUND,
    ERROR_RESOURCE_LIMIT_EXCEEDED,
)
from waybill.wire.amqp010.struct import Control

NO_ERROR: Final = "a correct client gets no error"
LOW_ON_DISK: Final = "the node is low on disk"
SESSION: Final = "session"
BUSY_S: Final = 0.2

Awaited = type[Control] | tuple[type[Control], ...]
Handshake = Generator[Awaited, Any, None]
Action = Callable[["Client"], None]
Opening = Callable[[Session], Any]


class Client(Peer):
    """`actions` are those that the habits of its actor weigh, by name; `restless` those that end when calm comes.

    `opening` is the conversation that a new session begins with, `leaving` the last one of all.
    """

    def __init__(
        self,
        actor: Actor,
        name: str,
        actions: dict[str, Action],
        restless: frozenset[str],
        opening: Opening,
        leaving: Opening,
    ) -> None:
        self.actor = actor
        self.name = name
        self.random = actor.random
        self.ledger = actor.ledger
        self.closed = False
        self.flush: Callable[[], None] = lambda: None
        self.is_running = False
        self.began_in_calm = False
        self._actions = actions
        self._opening = opening
        self._leaving = leaving
        weights = actor.habits.weights
        self._choice = Choice(weights)
        self._calm_choice = Choice({name: weight for name, weight in weights.items() if name not in restless})
        self._received_at = self._sent_at = self.now
        self._heartbeat_s = 0
        self._next_act: Event | None = None
        self._is_lost = False
        self._is_closing = False
        self._is_leaving = False
        self._has_given_up = False
        self._codec = FrameCodec()
        self._channel = self.random.randint(0, 9)
        self._exception: ExecutionException | None = None
        kept = actor.kept.get(SESSION)
        self.session = kept if isinstance(kept, Session) else self._new_session()
        self._talk: Handshake | None = None
        self._awaits: Awaited = ()
        self._converse(self._open_connection())

    def _new_session(self) -> Session:
        kept = self.actor.kept.get(SESSION)
        number = kept.number + 1 if isinstance(kept, Session) else 1
        session = Session(self.actor, number)
        self.actor.kept[SESSION] = session
        return session

    @property
    def now(self) -> float:
        return self.actor.clock.now()

    # --- engine ---

    def receive_data(self, data: bytes, now: float) -> None:
        self._received_at = now
        for one in self._codec.decode(data):
            if one.is_control:
                self._take_control(decode_control(one.payload))
            else:
                self._take_command(one)

    def data_to_send(self) -> bytes:
        data = self._codec.data_to_send()
        if data:
            self._sent_at = self.now
        return data

    def connection_lost(self, now: float) -> None:
        del now
        self._is_lost = True
        self.is_running = False
        if self.session.carrier is self:
            self.session.carrier = None
        self.actor.lost(self, orderly=self.closed and self._is_closing and not self._has_given_up)

    def next_timeout(self) -> float | None:
        if not self._heartbeat_s:
            return None
        return min(self._sent_at + self._heartbeat_s / 2, self._received_at + self._heartbeat_s * 2)

    def handle_timeout(self, now: float) -> None:
        if now >= self._received_at + self._heartbeat_s * 2:
            if self.began_in_calm:
                raise Violation("a living peer sends heartbeats", self.name)
            self.closed = self._has_given_up = True
        elif now >= self._sent_at + self._heartbeat_s / 2:
            self._codec.heartbeat()

    def pause_writing(self) -> None: ...
    def resume_writing(self, now: float) -> None: ...

    def control(self, control: Control) -> None:
        """A control of the session; nothing once it is being detached."""
        if self.session.carrier is self:
            self._send(control)

    def _send(self, control: Control) -> None:
        self._codec.control(self._channel, control)

    def write(self, one: Sent) -> None:
        """A command of the session."""
        self._codec.command(self._channel, one.command, one.header, one.body, sync=one.sync)

    # --- controls ---

    def _take_control(self, control: Control) -> None:
        if isinstance(control, ConnectionHeartbeat):
            return
        if isinstance(control, self._awaits):
            self._answered(control)
        elif isinstance(control, ConnectionClose):
            self._codec.control(0, ConnectionCloseOk())
            self.closed = True
            if control.reply_code != CLOSE_CONNECTION_FORCED:
                raise Violation(NO_ERROR, f"{self.name}: {control}")
        elif not self._take_session_control(control):
            raise Violation(NO_ERROR, f"{self.name}: unexpected {control}")

    def _take_session_control(self, control: Control) -> bool:
        session = self.session
        if isinstance(control, SessionCompleted):
            if control.timely_reply or self.random.random() < 0.05:
                self.control(SessionKnownCompleted(control.commands))
            for one in session.take_completed(control.commands):
                session.answered(one)
        elif isinstance(control, SessionKnownCompleted):
            session.take_known(control.commands)
        elif isinstance(control, SessionFlush):
            self._take_flush(control)
        elif isinstance(control, SessionConfirmed):
            session.counts(control.commands)
        elif isinstance(control, SessionCommandPoint):
            self._take_point(control)
        elif isinstance(control, SessionGap):
            raise Violation(REMEMBERED, f"{session.name}: {control}")
        elif isinstance(control, SessionDetach):
            self._take_detach()
        else:
            # The broker was asked how far it is.
            return isinstance(control, SessionExpected)
        return True

    def _take_flush(self, flush: SessionFlush) -> None:
        session = self.session
        if flush.completed:
            session.complete()
        if flush.confirmed:
            self.control(SessionConfirmed(()))
        if flush.expected:
            number = session.next_in & 0xFFFFFFFF
            self.control(SessionExpected(() if session.next_in < 0 else ((number, number),)))

    def _take_point(self, point: SessionCommandPoint) -> None:
        """What the broker sends next: after a loss what did not come yet, and perhaps some of what did."""
        session = self.session
        if session.next_in < 0:
            session.next_in = session.highest_in = (1 << 32) + point.command_id
            return
        session.next_in = unwrapped(point.command_id, session.highest_in)
        if session.next_in > session.highest_in:
            raise Violation(REMEMBERED, f"{session.name}: {point} instead of {session.highest_in}")

    def _take_detach(self) -> None:
        """The broker has ended the session, and has said why."""
        error, self._exception = self._exception, None
        session = self.session
        if error is None:
            raise Violation(NO_ERROR, f"{self.name}: the session was ended without a reason")
        self._check_error(error)
        self._send(SessionDetached(session.wire_name))
        session.ended()
        self.is_running = False
        if self._is_closing:
            self.actor.kept.clear()
            self._converse(self._close_connection())
            return
        self.session = self._new_session()
        self._converse(self._attach())

    def _check_error(self, error: ExecutionException) -> None:
        """What may hit a correct client: its queue was deleted, or is full, or the disk is nearly."""
        text, code = error.description or "", error.error_code
        ledger = self.ledger
        if code == ERROR_NOT_FOUND and any(
            name in text for name in [queue.name for queue in ledger.queues.values() if queue.is_volatile]
        ):
            return
        if LOW_ON_DISK in text and ledger.is_disk_scarce:
            return
        if code == ERROR_RESOURCE_LIMIT_EXCEEDED and "a queue is full" in text and error.command_id is not None:
            sent = self.session.sent.get(unwrapped(error.command_id, self.session.next_out))
            if sent is not None and sent.message is not None:
                ledger.refuse(sent.message)
                return
        raise Violation(NO_ERROR, f"{self.name}: {error}")

    # --- commands ---

    def _take_command(self, one: Assembled) -> None:
        session = self.session
        if session.next_in < 0:
            raise Violation(REMEMBERED, f"{self.name}: a command comes before its session is attached")
        command, _ = decode_command(one.payload)
        count = session.next_in
        session.next_in += 1
        if count < session.highest_in:
            return  # It was executed before.
        session.highest_in = session.next_in
        if isinstance(command, MessageTransfer):
            self._take_transfer(count, command, read_message(one))
        elif isinstance(command, ExecutionResult):
            session.results[unwrapped(command.command_id, session.next_out)] = command.value
        elif isinstance(command, ExecutionException):
            self._exception = command
        elif isinstance(command, (MessageAccept, MessageReject)):
            self._take_disposition(command)
        else:
            raise Violation(NO_ERROR, f"{self.name}: unexpected {command}")
        session.executed.append(count)

    def _take_disposition(self, command: MessageAccept | MessageReject) -> None:
        """What became of transfers with explicit accept-mode."""
        session = self.session
        for first, last in session.counts(command.transfers):
            for count in range(first, last + 1):
                sent = session.sent.get(count)
                if sent is None or sent.message is None or sent.is_answered or not sent.is_explicit:
                    raise Violation("one confirm a message", f"{self.name}: {command}")
                sent.is_answered = True
                if isinstance(command, MessageReject):
                    message = sent.message
                    self.ledger.return_to_publisher(message)
                    if message.transaction is not None:
                        message.transaction.messages.remove(message)

    def _take_transfer(self, count: int, transfer: MessageTransfer, message: Received) -> None:
        session = self.session
        receiving = session.receiving.get(transfer.destination or "")
        if receiving is None:
            raise Violation("a delivery names its consumer", f"{self.name}: {transfer}")
        receiving.take(count, message.size)
        subscription = receiving.subscription
        if transfer.acquire_mode:
            copy = self.ledger.look(subscription.queue, message.body, session.sent_after)
            session.seen[count] = copy
            return
        arrival = Arrival(
            subscription.queue,
            message.body,
            self.now,
            session.sent_after,
            message.redelivered,
            subscription,
            death=message.death,
        )
        copy = self.ledger.deliver(arrival)
        copy.free_deliveries += 1
        if message.message_id != copy.message.key:
            raise Violation("properties pass through", f"{copy} came as {message}")
        if receiving.no_ack:
            copy.settle_sent = True
        else:
            session.taken[count] = Taken(copy, count, message.redelivered)

    # --- the way to an attached session ---

    def _converse(self, talk: Handshake) -> None:
        self._talk = talk
        self._awaits = next(talk)

    def _answered(self, answer: Control) -> None:
        talk = self._talk
        if talk is None:
            return
        try:
            self._awaits = talk.send(answer)
        except StopIteration:
            # Another one may have begun meanwhile.
            if self._talk is talk:
                self._talk = None
                self._awaits = ()

    def _open_connection(self) -> Handshake:
        yield ConnectionStart
        self._codec.control(0, ConnectionStartOk({}, "EXTERNAL", b"", "en_US"))
        tune = yield ConnectionTune
        heartbeat_s = self.actor.habits.heartbeat_s
        size = self.random.choice((4096, tune.max_frame_size))
        self._codec.control(0, ConnectionTuneOk(tune.channel_max, size, heartbeat_s))
        self._codec.max_frame_size = size
        self._heartbeat_s = heartbeat_s
        self._codec.control(0, ConnectionOpen("/"))
        yield ConnectionOpenOk
        yield from self._attach()

    def _attach(self) -> Handshake:
        """Attach the session. One of which the broker knows nothing is over."""
        session = self.session
        force = self.random.random() < 0.5
        self._send(SessionAttach(session.wire_name, force=force))
        answer = yield (SessionAttached, SessionDetached)
        if isinstance(answer, SessionDetached) and answer.code == DETACH_NORMAL:
            # It answers a detach that crossed one of the broker.
            answer = yield (SessionAttached, SessionDetached)
        if isinstance(answer, SessionDetached):
            if answer.code != DETACH_SESSION_BUSY:
                raise Violation(NO_ERROR, f"{self.name}: {answer}")
            self.actor.clock.call_later(BUSY_S, self._attach_again)
            return
        session.carrier = self
        answer = yield (SessionExpected, SessionCommandPoint)
        if isinstance(answer, SessionExpected):
            self._resume(session, answer)
        else:
            if session.is_begun:
                session.ended()
                session = self.session = self._new_session()
                session.carrier = self
            self._take_point(answer)
            yield from self._begin(session)
        self.is_running = True
        self._schedule()

    def _attach_again(self) -> None:
        if not self._is_lost:
            self._converse(self._attach())
            self.flush()

    def _resume(self, session: Session, expected: SessionExpected) -> None:
        again = session.resumed(expected.commands)
        first = again[0].count if again else session.next_out
        self.control(SessionCommandPoint(first & 0xFFFFFFFF, 0))
        for one in again:
            self.write(one)
        session.complete()
        if not session.has_opened:
            session.has_opened = True
            session.converse(self._opening(session))

    def _begin(self, session: Session) -> Handshake:
        """A new session: it is to outlive this connection, and opens with what its habits ask for."""
        timeout_s = self.actor.habits.outlives_s
        session.is_begun = True
        if timeout_s:
            self.control(SessionRequestTimeout(timeout_s))
            yield SessionTimeout
        self.control(SessionCommandPoint(session.next_out & 0xFFFFFFFF, 0))
        session.has_opened = True
        session.converse(self._opening(session))

    def reattach(self) -> None:
        """Detach the session, and attach it again."""
        self.is_running = False
        self._converse(self._reattach())

    def _reattach(self) -> Handshake:
        self.session.carrier = None
        self._send(SessionDetach(self.session.wire_name))
        yield SessionDetached
        yield from self._attach()

    # --- random life ---

    @property
    def is_talking(self) -> bool:
        return self._talk is not None or self.session.talk is not None

    def _schedule(self) -> None:
        pause = self.actor.habits.pause_s * (0.2 + self.random.random())
        if self.actor.is_at_rest:
            pause += 0.5
        if self._next_act is not None:
            self._next_act.cancel()
        self._next_act = self.actor.clock.call_later(pause, self._act)

    def _act(self) -> None:
        if self._is_lost or not self.is_running:
            return
        choice = self._calm_choice if self.actor.is_calm else self._choice
        if choice:
            self._actions[choice.choose(self.random)](self)
        session = self.session
        if self.is_running and len(session.executed) > session.told and self.random.random() < 0.5:
            session.complete(timely_reply=len(session.executed) > 20)
        self.flush()
        if self.is_running:
            self._schedule()

    def begin_close(self) -> None:
        if self._is_lost or self._is_closing:
            return
        if not self.is_running or self.is_talking:
            self.actor.clock.call_later(0.05, self.begin_close)
            return
        if self.actor.is_stopping and not self._is_leaving:
            self._is_leaving = True
            self.session.converse(self._leaving(self.session))
            self.flush()
            self.actor.clock.call_later(0.05, self.begin_close)
            return
        self._is_closing = True
        self.is_running = False
        self._converse(self._close())
        self.flush()

    def _close(self) -> Handshake:
        if self.actor.is_stopping:
            # It would be kept, with all that it holds.
            self.control(SessionRequestTimeout(0))
            yield SessionTimeout
            self.session.carrier = None
            self._send(SessionDetach(self.session.wire_name))
            yield SessionDetached
            self.session.ended()
            self.actor.kept.clear()
        yield from self._close_connection()

    def _close_connection(self) -> Handshake:
        self._codec.control(0, ConnectionClose(CLOSE_NORMAL))
        yield ConnectionCloseOk
        self.closed = True

    # --- questions of the world ---

    @property
    def unconfirmed_count(self) -> int:
        return self.session.unconfirmed

    @property
    def pending_count(self) -> int:
        return self.session.pending_count

    @property
    def outstanding_count(self) -> int:
        return len(self.session.taken)

    @property
    def is_at_rest(self) -> bool:
        session = self.session
        if not self.is_running or self.is_talking or session.prepared:
            return False
        if session.branch is not None and session.branch.settled:
            return False
        return not (session.taken or session.pending_count)

    def check_calm(self) -> None: ...
    def ask_counts(self, counts: dict[str, int]) -> None: ...
