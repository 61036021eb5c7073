"""A node with the peers of a script, fed read by read, and how long and how much of everything each turn takes.

It does what `waybill.broker.commit_loop` does around a node, without a loop: one read, then work until nothing is left.
Whatever happens without a return to the loop is one stretch: nobody else is served meanwhile.
"""

import ctypes
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Final

from tests.search.answers import Answers
from tests.search.script import AMQP010, AMQP091, AMQP10, FEED, LOSE, OPEN, STALL, WAIT, Script, Step
from waybill.engine.server_engine import ServerEngine
from waybill.model.operator_log import OperatorLog
from waybill.node.node import FORMATS, Node, NodeOptions
from waybill.storage.journal import Journal
from waybill.storage.memory import MemoryStore
from waybill.testing.simulated_disk import SimulatedDisk
from waybill.wire.amqp010.class_connection import ConnectionOpen as ConnectionOpen010
from waybill.wire.amqp010.class_connection import ConnectionStartOk as ConnectionStartOk010
from waybill.wire.amqp010.class_connection import ConnectionTuneOk as ConnectionTuneOk010
from waybill.wire.amqp010.class_session import SessionAttach, SessionCommandPoint
from waybill.wire.amqp010.codec import encode_control
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as AMQP010_HEADER
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueBind, QueueDeclare
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER, sasl_frame
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.performatives import Begin, Open
from waybill.wire.amqp10.security import SaslInit

START_TIME: Final = 1_700_000_000.0
MEMORY_LIMIT_BYTES: Final = 256 << 20
DISK_BYTES: Final = 1 << 32
HIGH_WATER_BYTES: Final = 1 << 20
"""As in `transport.pump`: what a peer that does not read lets pile up before its engine is told."""
TURNS_MAX: Final = 100_000
BLOCK_BYTES: Final = 64
"""Of a small object in memory, about."""

ATTACKER: Final = "CN=attacker"
BYSTANDER: Final = "CN=bystander"
ATTACKERS_NAMES: Final = "^(?!bystander).*"
OWN_NAMES: Final = "bystander"

AMQP010_LOGIN: Final = AMQP010_HEADER + b"".join(
    encode_control(0, control)
    for control in (
        ConnectionStartOk010({}, "EXTERNAL", b"", "en_US"),
        ConnectionTuneOk010(2047, 65_535, 0),
        ConnectionOpen010("/"),
    )
)
AMQP10_LOGIN: Final = SASL_HEADER + sasl_frame(SaslInit("EXTERNAL", b"").encode()) + AMQP_HEADER
OPENINGS: Final[dict[str, bytes]] = {
    AMQP091: PROTOCOL_HEADER
    + b"".join(
        method_frame(channel, method)
        for channel, method in (
            (0, ConnectionStartOk(mechanism="EXTERNAL")),
            (0, ConnectionTuneOk(2047, 131_072, 0)),
            (0, ConnectionOpen("/")),
            (1, ChannelOpen()),
            (2, ChannelOpen()),
        )
    ),
    AMQP010: AMQP010_LOGIN
    + b"".join(
        encode_control(channel, control)
        for channel in (0, 1)
        for control in (SessionAttach(b"s%d" % channel), SessionCommandPoint(0, 0))
    ),
    AMQP10: AMQP10_LOGIN
    + amqp10_frame(0, Open("attacker").encode())
    + amqp10_frame(0, Begin(next_outgoing_id=0, incoming_window=0x7FFFFFFF, outgoing_window=0x7FFFFFFF).encode())
    + amqp10_frame(1, Begin(next_outgoing_id=0, incoming_window=0x7FFFFFFF, outgoing_window=0x7FFFFFFF).encode()),
}


def _dying(exchange: str, **arguments: object) -> dict[str, object]:
    return {"x-dead-letter-exchange": exchange, **{key.replace("_", "-"): value for key, value in arguments.items()}}


PREPARED: Final[tuple[Method, ...]] = (
    ExchangeDeclare("direct", "direct", no_wait=True),
    ExchangeDeclare("topic", "topic", durable=True, no_wait=True),
    ExchangeDeclare("fanout", "fanout", no_wait=True),
    ExchangeDeclare("headers", "headers", no_wait=True),
    ExchangeDeclare("hash", "x-consistent-hash", no_wait=True),
    ExchangeDeclare("delayed", "x-delayed-message", no_wait=True, arguments={"x-delayed-type": "fanout"}),
    ExchangeDeclare("chain", "fanout", no_wait=True, arguments={"alternate-exchange": "topic"}),
    QueueDeclare("q0", durable=True, no_wait=True),
    QueueDeclare("q1", no_wait=True, arguments={"x-max-priority": 10}),
    QueueDeclare(
        "q2", durable=True, no_wait=True, arguments=_dying("fanout", x_queue_type="quorum", x_delivery_limit=2)
    ),
    QueueDeclare("q3", no_wait=True, arguments=_dying("fanout", x_max_length=0)),
    QueueDeclare("q4", no_wait=True, arguments=_dying("topic", x_message_ttl=1000)),
    QueueDeclare("q5", no_wait=True, arguments={"x-max-length": 5, "x-overflow": "reject-publish"}),
    QueueDeclare("lazy", no_wait=True, arguments={"x-single-active-consumer": True, "x-message-deduplication": True}),
    QueueDeclare("s0", durable=True, no_wait=True, arguments={"x-queue-type": "stream"}),
    QueueBind("q0", "fanout", "a", no_wait=True),
    QueueBind("q1", "fanout", "a", no_wait=True),
    QueueBind("q3", "fanout", "a", no_wait=True),
    QueueBind("q0", "topic", "#", no_wait=True),
    QueueBind("q4", "topic", "a.*.#", no_wait=True),
    QueueBind("q0", "direct", "a", no_wait=True),
    QueueBind("q1", "headers", "", no_wait=True, arguments={"x-match": "any", "h1": 1}),
    QueueBind("q0", "hash", "1", no_wait=True),
    QueueBind("q1", "delayed", "a", no_wait=True),
)


class _Malloc(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _mallinfo() -> Callable[[], _Malloc] | None:
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = _Malloc
    return function


_MALLINFO: Final = _mallinfo()


def memory_in_use() -> int:
    """Octets that this process holds, about: what malloc gave out, and small objects. Quick, and free of noise."""
    used = sys.getallocatedblocks() * BLOCK_BYTES
    if _MALLINFO is not None:
        found = _MALLINFO()
        used += int(found.uordblks + found.hblkhd)
    return used


class LogOfErrors(OperatorLog):
    """Keeps what is reported as an error: in a healthy node no peer can cause one."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, event: str, detail: str, user: str = "", address: str = "") -> None:
        self.errors.append(f"{event}: {detail}")


class Wire:
    """One connection: what the node sends is checked and counted, and kept only of peers that read nothing."""

    def __init__(self, machine: "Machine", user: str) -> None:
        self.machine = machine
        self.answers = Answers()
        self.engine: ServerEngine | None = None
        self.is_lost = False
        self.is_stalled = False
        self.kept: list[bytes] = []
        self.kept_bytes = 0
        self.is_told_full = False
        self.waiting: list[bytes] = []
        certificate: dict[str, object] = {"subject": ((("commonName", user.removeprefix("CN=")),),)}
        self.engine = machine.node.accept(self, "127.0.0.1:1", machine.now, certificate)

    @property
    def is_paused(self) -> bool:
        return self.engine is not None and self.engine.is_reading_paused

    def serve(self, engine: ServerEngine) -> None:
        self.engine = engine
        self.flush()

    def flush(self) -> None:
        assert self.engine is not None
        if self.is_lost:
            return
        data = self.engine.data_to_send()
        if not data:
            return
        if not self.is_stalled:
            self.answers.add(data)
            return
        self.kept.append(data)
        self.kept_bytes += len(data)
        if self.kept_bytes > HIGH_WATER_BYTES and not self.is_told_full:
            self.is_told_full = True
            self.engine.pause_writing()

    def receive(self, data: bytes) -> None:
        assert self.engine is not None
        if not self.is_lost and not self.engine.closed:
            self.engine.receive_data(data, self.machine.now)

    def lose(self) -> None:
        assert self.engine is not None
        if not self.is_lost:
            self.flush()
            self.is_lost = True
            self.kept.clear()
            self.engine.connection_lost(self.machine.now)


class Machine:
    """A node and its peers. `longest_s`: CPU of the longest stretch so far, in which `longest_step` ran."""

    def __init__(self, script: Script) -> None:
        self.now = START_TIME
        self.log = LogOfErrors()
        random = Random(1)
        options = NodeOptions("search", "0", random.randbytes, MEMORY_LIMIT_BYTES)
        options.makes_guest = False
        options.anonymous_login = ("", "")
        options.operator_log = self.log
        self.store: Journal | MemoryStore
        if script.is_durable:
            self.store = Journal.open(SimulatedDisk(random, DISK_BYTES), list(FORMATS))
        else:
            self.store = MemoryStore()
        self.node = Node(self.store, options, self.now)
        administration = self.node.administration
        for user, names in ((ATTACKER, ATTACKERS_NAMES), (BYSTANDER, ".*")):
            administration.put_user(user, "")
            administration.set_permission(user, "/", names, names, names)
        for number, policy in enumerate(script.policies):
            pattern = "^n" if number else "^[nq][13579]*$"
            administration.set_policy("/", f"policy{number}", pattern, policy, apply_to="all")
        self.peers: dict[int, Wire] = {}
        self.longest_s = 0.0
        self.longest_step = -1
        self.step_number = -1
        self.longest_wait_s = 0.0
        """CPU until a bystander had been served who came while somebody's read was worked off."""
        self.meanwhile: Callable[[], None] = lambda: None
        self._stretch_began = 0.0

    # --- time ---

    def begin_stretch(self) -> None:
        self._stretch_began = time.process_time()

    def end_stretch(self) -> None:
        taken = time.process_time() - self._stretch_began
        if taken > self.longest_s:
            self.longest_s = taken
            self.longest_step = self.step_number

    def turn(self) -> bool:
        """What `broker.commit_loop` does before the loop serves others. Whether more is to be done in another turn.

        The disk's time is not the node's.
        """
        node = self.node
        for _ in range(TURNS_MAX):
            node.work(self.now)
            commit = self.store.begin_commit()
            if commit is not None:
                paused = time.process_time()
                commit.execute()
                self._stretch_began += time.process_time() - paused
                self._serve()
                self.node.end_commit(commit)
            elif node.has_output:
                self._serve()
                if not node.has_work:
                    break
            else:
                break
            if node.is_turn_over:
                break
        else:
            raise AssertionError("a turn never ends")
        node.end_turn()
        self.end_stretch()
        self.begin_stretch()
        return node.has_late_work

    def _serve(self) -> None:
        for engine in self.node.take_dirty():
            wire = engine.transport
            assert isinstance(wire, Wire)
            wire.serve(engine)

    def settle(self) -> None:
        """Work until nothing is left to do; the stretch that has begun ends with the first turn."""
        for _ in range(TURNS_MAX):
            if not self.turn():
                return
        raise AssertionError("the node never comes to rest")

    def feed(self, wire: Wire, data: bytes) -> None:
        """One read. What a paused connection gets waits in its socket."""
        wire.waiting.append(data)
        for _ in range(TURNS_MAX):
            if wire.is_paused or not wire.waiting:
                break
            self.begin_stretch()
            wire.receive(wire.waiting.pop(0))
            if self.turn():
                self.meanwhile()
                self.settle()
        self._notice_closed()

    def wait(self, seconds: float) -> None:
        """Let time pass, deadline by deadline."""
        target = self.now + seconds
        for _ in range(2000):
            deadlines = [
                at for at in (self.node.next_timeout(), *map(self._timeout, self.peers.values())) if at is not None
            ]
            if not deadlines or min(deadlines) > target:
                break
            self.now = max(self.now, min(deadlines))
            self.begin_stretch()
            self.node.handle_timeout(self.now)
            self.settle()
            for wire in self.peers.values():
                at = self._timeout(wire)
                if at is not None and at <= self.now and wire.engine is not None:
                    self.begin_stretch()
                    wire.engine.handle_timeout(self.now)
                    wire.flush()
                    self.settle()
            self._notice_closed()
        self.now = target
        self.begin_stretch()
        self.node.maintain(self.now)
        self.settle()

    def _timeout(self, wire: Wire) -> float | None:
        if wire.is_lost or wire.engine is None or wire.engine.closed:
            return None
        return wire.engine.next_timeout()

    # --- peers ---

    def open(self, number: int, protocol: str) -> None:
        self.lose(number)
        wire = Wire(self, ATTACKER)
        self.peers[number] = wire
        if protocol in OPENINGS:
            self.feed(wire, OPENINGS[protocol])

    def lose(self, number: int) -> None:
        wire = self.peers.pop(number, None)
        if wire is not None:
            self.begin_stretch()
            wire.lose()
            self.settle()

    def _notice_closed(self) -> None:
        for wire in self.peers.values():
            if not wire.is_lost and wire.engine is not None and wire.engine.closed:
                self.begin_stretch()
                wire.lose()
                self.settle()

    def take(self, number: int, step: Step) -> None:
        """One step of the script."""
        self.step_number = number
        if step.kind == OPEN:
            self.open(step.peer, step.text)
        elif step.kind == FEED:
            if step.peer in self.peers:
                self.feed(self.peers[step.peer], step.data)
        elif step.kind == LOSE:
            self.lose(step.peer)
        elif step.kind == STALL:
            if step.peer in self.peers:
                self.peers[step.peer].is_stalled = True
        elif step.kind == WAIT:
            self.wait(step.amount)

    @property
    def counted_bytes(self) -> int:
        """What the node itself says that it holds for its peers."""
        return int(self.node.runtime.memory_bytes)
