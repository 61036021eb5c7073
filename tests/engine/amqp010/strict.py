"""A strict client of AMQP 0-10 without input or output: octets in, octets out, and a check of every rule on the way.

    client = StrictClient()
    wire(client.take_output()); client.receive(octets)

What breaks a rule raises BrokenRule: a control that only servers take, a completion of what was never sent, a message
without credit, a second result. Everything else is kept for the test: `controls` by channel, and in each session
`results`, `exceptions`, `transfers`, `completed`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tests.wire.amqp010.frame_parser import Assembled, FrameParser
from waybill.wire.amqp010.class_connection import ConnectionTuneOk
from waybill.wire.amqp010.class_execution import ExecutionException, ExecutionResult
from waybill.wire.amqp010.class_message import (
    DeliveryProperties,
    MessageAccept,
    MessageCancel,
    MessageFlow,
    MessageProperties,
    MessageReject,
    MessageRelease,
    MessageSetFlowMode,
    MessageStop,
    MessageSubscribe,
    MessageTransfer,
)
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
from waybill.wire.amqp010.codec import decode_command, decode_control, encode_command, encode_control
from waybill.wire.amqp010.constants import FLOW_WINDOW, UNIT_BYTE, UNIT_MESSAGE
from waybill.wire.amqp010.frames import MAX_FRAME_SIZE, PROTOCOL_HEADER
from waybill.wire.amqp010.message_header import MessageHeader, decode_header, encode_header
from waybill.wire.amqp010.sequence import MASK, serial_less
from waybill.wire.amqp010.struct import Command, Control
from waybill.wire.amqp010.types import Ranges

UNLIMITED: Final = 0xFFFFFFFF


def serial_add(number: int, count: int) -> int:
    """The id that comes `count` after `number`; before it, if `count` is negative."""
    return (number + count) & MASK


class BrokenRule(AssertionError):
    """The server did what the specification forbids."""


def check(condition: object, rule: str) -> None:
    """Raise BrokenRule unless the condition holds."""
    if not condition:
        raise BrokenRule(rule)


def ids_of(ranges: Ranges) -> list[int]:
    """The numbers in a set, in its order."""
    found: list[int] = []
    for first, last in ranges:
        number = first
        found.append(number)
        while number != last:
            number = serial_add(number, 1)
            found.append(number)
    return found


def ranges_of(ids: Iterable[int]) -> Ranges:
    """A set with as few ranges as can be; `ids` in their order."""
    found: list[tuple[int, int]] = []
    for number in ids:
        if found and serial_add(found[-1][1], 1) == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return tuple(found)


@dataclass
class Transfer:
    """A message that came. `id` is that of its command."""

    id: int
    command: MessageTransfer
    header: MessageHeader
    body: bytes

    @property
    def delivery(self) -> DeliveryProperties:
        """What the server says of this delivery."""
        assert self.header.delivery is not None
        return self.header.delivery

    @property
    def properties(self) -> MessageProperties:
        """What the publisher said of the message."""
        return self.header.properties or MessageProperties()


@dataclass
class Subscription:
    """What the server may send to one destination."""

    accept_mode: int
    mode: int = FLOW_WINDOW
    messages: int = 0
    octets: int = 0
    given: list[int] = field(default_factory=lambda: [0, 0])

    def grant(self, unit: int, value: int) -> None:
        """As message.flow does."""
        if unit == UNIT_MESSAGE:
            self.messages = UNLIMITED if UNLIMITED in {value, self.messages} else self.messages + value
        elif unit == UNIT_BYTE:
            self.octets = UNLIMITED if UNLIMITED in {value, self.octets} else self.octets + value

    def spend(self, size: int) -> None:
        """A message has come."""
        check(self.messages > 0, "a message comes within the credit in messages")
        check(self.octets == UNLIMITED or self.octets >= size, "a message comes within the credit in octets")
        if self.messages != UNLIMITED:
            self.messages -= 1
        if self.octets != UNLIMITED:
            self.octets -= size


class StrictSession:
    """One session: its state outlives the channel that carries it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.channel = -1
        self.is_attached = False
        self.client: StrictClient | None = None
        self.next_id = 0
        self.unconfirmed: dict[int, tuple[Command, bool, bytes | None, bytes | None]] = {}
        self.expected_id: int | None = None
        self.sent: set[int] = set()
        self.completed: set[int] = set()
        self.results: dict[int, object] = {}
        self.exceptions: list[ExecutionException] = []
        self.commands: deque[tuple[int, Command]] = deque()
        self.transfers: deque[Transfer] = deque()
        self.subscriptions: dict[str, Subscription] = {}
        self.executed: list[int] = []
        self.detach_code: int | None = None
        self.granted_timeout: int | None = None
        self.expected: Ranges | None = None
        self.completes_by_itself = True

    # --- out ---

    def send(
        self,
        command: Command,
        *,
        sync: bool = False,
        header: bytes | None = None,
        body: bytes | None = None,
    ) -> int:
        """Send a command. Returns its id."""
        number = self.next_id
        self.next_id = serial_add(number, 1)
        self.sent.add(number)
        self.unconfirmed[number] = (command, sync, header, body)
        self._note(command)
        if self.is_attached:
            self._write(number)
        return number

    def _write(self, number: int) -> None:
        command, sync, header, body = self.unconfirmed[number]
        client = self._client()
        client.write(encode_command(self.channel, command, client.max_frame_size, sync=sync, header=header, body=body))

    def publish(
        self,
        body: bytes,
        *,
        exchange: str = "",
        key: str = "",
        properties: MessageProperties | None = None,
        accept_mode: int = 1,
        sync: bool = False,
        **delivery: object,
    ) -> int:
        """Send a message. `delivery` are more fields of delivery-properties."""
        structs = [DeliveryProperties(routing_key=key, **delivery)]  # type: ignore[arg-type]
        header = encode_header(*structs) if properties is None else encode_header(*structs, properties)
        return self.send(MessageTransfer(exchange, accept_mode, 0), sync=sync, header=header, body=body)

    def control(self, control: Control) -> None:
        """Send a control of the session."""
        client = self._client()
        client.write(encode_control(self.channel, control, client.max_frame_size))

    def complete(self, *numbers: int, timely_reply: bool = False) -> None:
        """Tell that commands of the server are executed."""
        self.executed += [number for number in numbers if number not in self.executed]
        self.control(SessionCompleted(ranges_of(self.executed), timely_reply=timely_reply))

    def accept(self, *transfers: Transfer) -> int:
        """Accept messages, and complete them."""
        ids = [one.id for one in transfers]
        number = self.send(MessageAccept(ranges_of(ids)))
        self.complete(*ids)
        return number

    def _note(self, command: Command) -> None:
        if isinstance(command, MessageSubscribe):
            self.subscriptions[command.destination or ""] = Subscription(command.accept_mode)
        elif isinstance(command, MessageCancel):
            # What is on its way may still come.
            pass
        elif isinstance(command, MessageFlow) and (command.destination or "") in self.subscriptions:
            self.subscriptions[command.destination or ""].grant(command.unit, command.value or 0)
        elif isinstance(command, MessageSetFlowMode) and (command.destination or "") in self.subscriptions:
            one = self.subscriptions[command.destination or ""]
            one.mode, one.messages, one.octets = command.flow_mode, 0, 0
        elif isinstance(command, MessageStop):
            pass

    def _client(self) -> "StrictClient":
        assert self.client is not None
        return self.client

    # --- in ---

    def take_control(self, control: Control) -> None:
        """Take a control that concerns the session."""
        if isinstance(control, SessionCommandPoint):
            check(control.command_offset == 0, "nobody sends fragments of commands")
            self.expected_id = control.command_id
        elif isinstance(control, SessionCompleted):
            self._take_completed(control)
        elif isinstance(control, SessionFlush):
            if control.completed:
                self.control(SessionCompleted(ranges_of(self.executed)))
            if control.confirmed:
                self.control(SessionConfirmed(ranges_of(self.executed)))
            if control.expected:
                number = self.expected_id
                self.control(SessionExpected(() if number is None else ((number, number),)))
        elif isinstance(control, SessionKnownCompleted):
            known = set(ids_of(control.commands))
            check(known <= set(self.executed), "what is known to be complete was complete")
            self.executed = [number for number in self.executed if number not in known]
        elif isinstance(control, SessionTimeout):
            self.granted_timeout = control.timeout or 0
        elif isinstance(control, SessionRequestTimeout):
            self.control(SessionTimeout(control.timeout))
        elif isinstance(control, SessionExpected):
            self._take_expected(control)
        elif isinstance(control, SessionConfirmed):
            check(set(ids_of(control.commands)) <= self.sent, "what is confirmed was sent")
        elif isinstance(control, SessionGap):
            assert self.expected_id is not None
            for number in ids_of(control.commands):
                if number == self.expected_id:
                    self.expected_id = serial_add(number, 1)

    def _take_completed(self, control: SessionCompleted) -> None:
        ids = set(ids_of(control.commands))
        check(ids <= self.sent, f"only what was sent is completed: {sorted(ids - self.sent)}")
        failed = {one.command_id for one in self.exceptions}
        check(not ids & failed, "a command that failed is not completed")
        self.completed |= ids
        for number in ids:
            self.unconfirmed.pop(number, None)
        if control.timely_reply:
            self.control(SessionKnownCompleted(control.commands))

    def _take_expected(self, control: SessionExpected) -> None:
        """The server says what it has of a session that went on: send the rest again."""
        self.expected = control.commands
        if not control.commands:
            return
        first = control.commands[-1][0]
        check(first in self.sent or first == self.next_id, "the server expects what it has not got")
        again = sorted(
            (number for number in self.sent if not serial_less(number, first)),
            key=lambda number: serial_add(number, -first),
        )
        again = [number for number in again if number in self.unconfirmed]
        self.control(SessionCommandPoint(again[0] if again else self.next_id, 0))
        for number in again:
            self._write(number)

    def take_command(self, one: Assembled) -> None:
        """Take a command of the server."""
        command, sync = decode_command(one.payload)
        check(command.TAKEN_BY_CLIENT, f"{command.NAME} is for servers")
        check(self.expected_id is not None, "session.command-point comes before the first command")
        assert self.expected_id is not None
        number = self.expected_id
        self.expected_id = serial_add(number, 1)
        is_done = self.completes_by_itself
        if isinstance(command, MessageTransfer):
            self._take_transfer(number, command, one)
            is_done = False
        elif isinstance(command, ExecutionResult):
            check(command.command_id in self.sent, "a result is that of a command")
            check(command.command_id not in self.completed, "a result comes before the completion")
            check(command.command_id not in self.results, "a command has one result")
            self.results[command.command_id] = command.value
        elif isinstance(command, ExecutionException):
            check(command.command_id not in self.completed, "an exception comes before the completion")
            self.exceptions.append(command)
        else:
            if isinstance(command, (MessageAccept, MessageReject, MessageRelease)):
                check(set(ids_of(command.transfers)) <= self.sent, "what is accepted was sent")
            self.commands.append((number, command))
        if is_done:
            self.executed.append(number)
        if sync:
            self.control(SessionCompleted(ranges_of(self.executed)))

    def _take_transfer(self, number: int, command: MessageTransfer, one: Assembled) -> None:
        destination = command.destination or ""
        check(destination in self.subscriptions, f"{destination!r} is a destination of a subscription")
        body = one.body or b""
        subscription = self.subscriptions[destination]
        if subscription.mode != FLOW_WINDOW:
            subscription.spend(len(body))
        check(command.accept_mode == subscription.accept_mode, "the accept-mode is that of the subscription")
        self.transfers.append(Transfer(number, command, decode_header(one.header or b""), body))


class StrictClient:
    """One connection, with its sessions by channel."""

    def __init__(self) -> None:
        self.parser = FrameParser()
        self.sessions: dict[int, StrictSession] = {}
        self.controls: deque[Control] = deque()
        self.max_frame_size = MAX_FRAME_SIZE
        self.has_header = False
        self.header = b""
        self._output = bytearray()
        self._before = b""

    def start(self) -> None:
        """Send the protocol header."""
        self.write(PROTOCOL_HEADER)

    def write(self, octets: bytes) -> None:
        """Add to the output."""
        self._output += octets

    def take_output(self) -> bytes:
        """What is to be sent."""
        octets = bytes(self._output)
        self._output.clear()
        return octets

    def control(self, control: Control) -> None:
        """Send a control of the connection."""
        self.write(encode_control(0, control, self.max_frame_size))
        if isinstance(control, ConnectionTuneOk):
            self.max_frame_size = control.max_frame_size or MAX_FRAME_SIZE

    def attach(self, session: StrictSession, channel: int, *, force: bool = False) -> None:
        """Ask for a session on a channel. What it sends meanwhile waits for `attached`."""
        session.client = self
        session.channel = channel
        session.detach_code = None
        session.expected = None
        self.sessions[channel] = session
        session.control(SessionAttach(session.name, force=force))

    def receive(self, octets: bytes) -> None:
        """Take what came. Raises BrokenRule, FrameError, DecodeError."""
        if not self.has_header:
            self._before += octets
            if len(self._before) < len(PROTOCOL_HEADER):
                return
            self.has_header = True
            self.header = self._before[: len(PROTOCOL_HEADER)]
            octets = self._before[len(PROTOCOL_HEADER) :]
        self.parser.receive(octets)
        while (one := self.parser.next()) is not None:
            self._take(one)

    def _take(self, one: Assembled) -> None:
        if not one.is_control:
            check(one.channel in self.sessions, f"channel {one.channel} has a session")
            check(self.sessions[one.channel].is_attached, "commands come between attached and detached")
            self.sessions[one.channel].take_command(one)
            return
        control = decode_control(one.payload)
        check(control.TAKEN_BY_CLIENT, f"{control.NAME} is for servers")
        if not control.NAME.startswith("session."):
            check(one.channel == 0, "controls of the connection come on channel 0")
            self.controls.append(control)
            return
        check(one.channel in self.sessions, f"channel {one.channel} has a session")
        session = self.sessions[one.channel]
        if isinstance(control, SessionAttached):
            check(control.name == session.name, "the session attached is the one asked for")
            session.is_attached = True
        elif isinstance(control, SessionDetached):
            session.is_attached = False
            session.detach_code = control.code
            del self.sessions[one.channel]
        elif isinstance(control, SessionDetach):
            session.is_attached = False
            session.detach_code = 0
            session.control(SessionDetached(session.name))
            del self.sessions[one.channel]
        else:
            session.take_control(control)

    def lost(self) -> None:
        """The connection is gone; its sessions can be attached again by another one."""
        for session in self.sessions.values():
            session.is_attached = False
            session.client = None
            session.expected_id = session.expected_id
        self.sessions.clear()
