"""A client of AMQP 0-10 that tests write by hand, on a node in virtual time. It is strict: see `strict`.

peer = Peer(bench)
peer.open()
session = peer.session(b"s")
session.call(QueueDeclare("q"))
session.publish(b"body", key="q")
session.sync()
"""

from typing import Final, TypeVar

from tests.engine.amqp010.strict import UNLIMITED, StrictClient, StrictSession, Transfer
from tests.engine.amqp091.peer import EngineWire, NodeBench
from waybill.wire.amqp010.class_connection import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from waybill.wire.amqp010.class_execution import ExecutionException, ExecutionSync
from waybill.wire.amqp010.class_message import MessageFlow, MessageSetFlowMode, MessageSubscribe
from waybill.wire.amqp010.class_session import SessionCommandPoint, SessionDetach
from waybill.wire.amqp010.constants import CLOSE_NORMAL, FLOW_CREDIT, UNIT_BYTE, UNIT_MESSAGE
from waybill.wire.amqp010.frames import PROTOCOL_HEADER
from waybill.wire.amqp010.struct import Command, Control

C = TypeVar("C", bound=Control)
PLAIN_GUEST: Final = b"\0guest\0guest"


class RemoteError(Exception):
    """The server ended the session with an exception."""

    def __init__(self, exception: ExecutionException) -> None:
        super().__init__(f"{exception.error_code}: {exception.description}")
        self.exception = exception


class Peer:
    """The client's end of one connection. What it asks for is answered before the call returns, or fails."""

    def __init__(self, bench: NodeBench) -> None:
        self.bench = bench
        self.wire = EngineWire(bench)
        bench.wires.append(self.wire)
        self.client = StrictClient()

    # --- opening and closing ---

    def open(self, virtual_host: str = "/", *, heartbeat: int = 0, max_frame_size: int = 65_535) -> None:
        """The whole handshake, with PLAIN."""
        self.start()
        self.control(ConnectionStartOk({}, "PLAIN", PLAIN_GUEST, "en_US"))
        tune = self.expect(ConnectionTune)
        self.control(ConnectionTuneOk(tune.channel_max or 65_535, max_frame_size, heartbeat))
        self.control(ConnectionOpen(virtual_host))
        self.expect(ConnectionOpenOk)

    def start(self) -> ConnectionStart:
        """The protocol header, and the server's first control."""
        self.client.start()
        self.pump()
        assert self.client.header == PROTOCOL_HEADER
        return self.expect(ConnectionStart)

    def close(self) -> None:
        """Say goodbye. Then it is for us to hang up first."""
        self.control(ConnectionClose(CLOSE_NORMAL))
        self.expect(ConnectionCloseOk)

    def expect_closed(self, code: int) -> str:
        """The server closes the connection with this code; answer."""
        close = self.expect(ConnectionClose)
        assert close.reply_code == code, close
        if not self.wire.is_closed:
            self.control(ConnectionCloseOk())
        assert self.wire.is_closed
        return close.reply_text or ""

    def cut(self) -> None:
        """Lose the connection without a word."""
        self.wire.cut()
        self.client.lost()

    # --- octets ---

    def pump(self) -> None:
        """Send what is to be sent, and take what came, until nothing is left."""
        while True:
            octets = self.client.take_output()
            if octets:
                self.wire.write(octets)
            came = self.wire.read(0.0)
            if came:
                self.client.receive(came)
            elif not octets:
                return

    def write(self, octets: bytes) -> None:
        """Send octets as they are."""
        self.wire.write(octets)
        self.pump()

    def control(self, control: Control) -> None:
        self.client.control(control)
        self.pump()

    def expect(self, kind: type[C]) -> C:
        """The next control of the connection."""
        self.pump()
        assert self.client.controls, f"{kind.NAME} did not come"
        control = self.client.controls.popleft()
        assert isinstance(control, kind), control
        return control

    # --- sessions ---

    def session(
        self, name: bytes = b"session", channel: int = 1, *, force: bool = False, first_id: int = 0
    ) -> "Session":
        """A new session, attached."""
        session = Session(self, name)
        session.next_id = first_id
        self.resume(session, channel, force=force)
        assert session.is_attached, session.detach_code
        session.control(SessionCommandPoint(first_id, 0))
        self.pump()
        return session

    def resume(self, session: "Session", channel: int = 1, *, force: bool = False) -> None:
        """Attach a session that may be older than this connection."""
        session.peer = self
        self.client.attach(session, channel, force=force)
        self.pump()


class Session(StrictSession):
    """One session of a peer."""

    def __init__(self, peer: Peer, name: bytes) -> None:
        super().__init__(name)
        self.peer = peer

    def call(self, command: Command) -> object:
        """Send a command with `sync`. Returns its result, None if it has none. Raises RemoteError."""
        number = self.send(command, sync=True)
        self.peer.pump()
        if self.exceptions:
            raise RemoteError(self.exceptions[0])
        assert number in self.completed, f"{command.NAME} was not completed"
        return self.results.pop(number, None)

    def sync(self) -> None:
        """All commands until now are executed. Raises RemoteError."""
        self.call(ExecutionSync())
        assert self.completed == self.sent

    def subscribe(
        self,
        queue: str,
        destination: str = "d",
        *,
        messages: int = UNLIMITED,
        octets: int = UNLIMITED,
        accept_mode: int = 0,
        acquire_mode: int = 0,
        **fields: object,
    ) -> None:
        """Subscribe, and give credit, which does not come back by itself."""
        self.call(MessageSubscribe(queue, destination, accept_mode, acquire_mode, **fields))  # type: ignore[arg-type]
        self.send(MessageSetFlowMode(destination, FLOW_CREDIT))
        self.flow(destination, messages=messages, octets=octets)

    def flow(self, destination: str = "d", *, messages: int = 0, octets: int = 0) -> None:
        if octets:
            self.send(MessageFlow(destination, UNIT_BYTE, octets))
        if messages:
            self.send(MessageFlow(destination, UNIT_MESSAGE, messages))
        self.peer.pump()

    def take(self) -> Transfer:
        """The next message."""
        self.peer.pump()
        assert self.transfers, "no message came"
        return self.transfers.popleft()

    def take_all(self) -> list[Transfer]:
        self.peer.pump()
        found = list(self.transfers)
        self.transfers.clear()
        return found

    def settle(self, *transfers: Transfer) -> None:
        """Accept messages, and see it done."""
        self.accept(*transfers)
        self.sync()

    def detach(self) -> None:
        self.control(SessionDetach(self.name))
        self.peer.pump()
        assert self.detach_code == 0
