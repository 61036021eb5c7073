"""A broker in a process of its own, attackers at its sockets, and a bystander who publishes and consumes all the while.

    with Siege(directory) as siege:
        siege.attack(many_queues, 1000)
        siege.check()

`check` fails if the broker has ended, has logged a traceback, has held more than `RSS_MAX_KB`, or does not serve the
bystander any more.
"""

import contextlib
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.broker.process import BrokerProcess
from tests.program_environment import program_environment
from tests.security.rounds import GO_ON, REST
from waybill.wire.amqp010.class_connection import ConnectionOpen as ConnectionOpen010
from waybill.wire.amqp010.class_connection import ConnectionStartOk as ConnectionStartOk010
from waybill.wire.amqp010.class_connection import ConnectionTuneOk as ConnectionTuneOk010
from waybill.wire.amqp010.class_session import SessionAttach, SessionCommandPoint, SessionRequestTimeout
from waybill.wire.amqp010.codec import encode_control
from waybill.wire.amqp010.frames import PROTOCOL_HEADER as AMQP010_HEADER
from waybill.wire.amqp091.frames import PROTOCOL_HEADER, method_frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionStartOk, ConnectionTuneOk
from waybill.wire.amqp10.frames import AMQP_HEADER
from waybill.wire.amqp10.frames import frame as amqp10_frame
from waybill.wire.amqp10.performatives import Begin, Open

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
RSS_MAX_KB: Final = 300_000
SEND_TIMEOUT_S: Final = 2.0
SERVED_TIMEOUT_S: Final = 20.0
QUIET_S: Final = 0.3
RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a socket is closed by a reset."""
BATCH_BYTES: Final = 256 << 10
WINDOW: Final = 0x7FFFFFFF
# What a client of these says that wants to be told of alarms.
KNOWS_BLOCKED: Final[dict[str, object]] = {"capabilities": {"connection.blocked": True, "consumer_cancel_notify": True}}


def methods(channel: int, *values: Method) -> bytes:
    return b"".join(method_frame(channel, value) for value in values)


def login(heartbeat: int = 0) -> bytes:
    """All that a client of 0-9-1 says to begin, with channel 1."""
    started = ConnectionStartOk(KNOWS_BLOCKED, "PLAIN", b"\0guest\0guest")
    tuned = ConnectionTuneOk(2047, 131_072, heartbeat)
    return PROTOCOL_HEADER + methods(0, started, tuned, ConnectionOpen("/")) + methods(1, ChannelOpen())


def login10(name: str = "attacker", sessions: int = 1) -> bytes:
    """All that a client of 1.0 says to begin, with some sessions."""
    begin = Begin(next_outgoing_id=0, incoming_window=WINDOW, outgoing_window=WINDOW).encode()
    began = b"".join(amqp10_frame(number, begin) for number in range(sessions))
    return AMQP_HEADER + amqp10_frame(0, Open(name).encode()) + began


def login010(sessions: int = 1, timeout_s: int = 0, name: str = "attacker") -> bytes:
    """All that a client of 0-10 says to begin, with some sessions; those that have a time-out may be kept."""
    opened = (ConnectionStartOk010({}, "PLAIN", b"\0guest\0guest", "en_US"), ConnectionTuneOk010(2047, 65_535, 0))
    hello = b"".join(encode_control(0, control) for control in (*opened, ConnectionOpen010("/")))
    for number in range(sessions):
        attach = SessionAttach(f"{name}{number}".encode())
        for control in (attach, SessionRequestTimeout(timeout_s), SessionCommandPoint(0, 0)):
            hello += encode_control(number, control)
    return AMQP010_HEADER + hello


class Attacker:
    """One connection. What the broker says is read and dropped, unless it is `deaf`."""

    def __init__(self, siege: "Siege", hello: bytes = b"", *, is_deaf: bool = False) -> None:
        self._siege = siege
        self.socket = socket.create_connection(("127.0.0.1", siege.broker.port), timeout=SEND_TIMEOUT_S)
        self.is_over = False
        if not is_deaf:
            siege.listen(self)
        if hello:
            self.send(hello)

    def send(self, *data: bytes) -> bool:
        """False once the broker takes no more."""
        try:
            for octets in data:
                self.socket.sendall(octets)
        except OSError:
            self.is_over = True
        return not self.is_over

    def hang_up(self, *, by_reset: bool = False) -> None:
        self._siege.forget(self.socket)
        if by_reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def send_all(self, pieces: Iterable[bytes]) -> bool:
        """Send pieces in large writes, and look at the broker's memory now and then."""
        batch = bytearray()
        for piece in pieces:
            batch += piece
            if len(batch) >= BATCH_BYTES:
                if not self.send(bytes(batch)):
                    return False
                batch.clear()
                self._siege.look()
        return self.send(bytes(batch))


class Bystander(threading.Thread):
    """Reads what a program beside the attackers tells of how a process serves it."""

    def __init__(self, program: str, port: int, process: int, *more: str) -> None:
        super().__init__(daemon=True)
        self.rounds = 0
        self.longest_ms = 0
        self.longest_cpu_ms = 0
        self.trouble = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, str(port), str(process), *more],
            env=program_environment(),
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._rests = threading.Event()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Ask nothing during the block."""
        self._rests.clear()
        self._say(REST)
        assert self._rests.wait(SERVED_TIMEOUT_S) or self.trouble, "the bystander does not end its round"
        try:
            yield
        finally:
            self._say(GO_ON)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if line == REST:
                self._rests.set()
            elif len(words) == 3 and all(word.isdecimal() for word in words):
                self.rounds, self.longest_ms, self.longest_cpu_ms = map(int, words)
            else:
                self.trouble += line

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.join()
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


class Besieged:
    """A process that is attacked, called `name` in messages, and its bystander."""

    name: str
    process: subprocess.Popen[str]
    port: int
    bystander: Bystander

    def __init__(self) -> None:
        self.most_kb = 0

    def log(self) -> str:
        raise NotImplementedError

    def watch(self, program: str, port: int, *more: str, rounds: int) -> None:
        """Start the bystander, and return when it was served so many times."""
        self.bystander = Bystander(program, port, self.process.pid, *more)
        self.bystander.start()
        self.serve(rounds)

    def look(self) -> None:
        """Note how much memory the process has."""
        if self.process.poll() is None:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            self.most_kb = max(self.most_kb, int(status.partition("VmRSS:")[2].split()[0]))

    def unread(self) -> int:
        """Octets that wait in the kernel for the process to read them."""
        local = f"0100007F:{self.port:04X}"
        lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
        return sum(int(words[4].partition(":")[2], 16) for words in map(str.split, lines) if words[1] == local)

    def serve(self, rounds: int) -> None:
        """Until the bystander was served so many times more."""
        until = self.bystander.rounds + rounds
        deadline = time.monotonic() + SERVED_TIMEOUT_S
        while self.bystander.rounds < until and self.bystander.is_alive() and time.monotonic() < deadline:
            self.look()
            time.sleep(0.002)
        assert self.bystander.rounds >= until, f"the bystander is not served: {self.bystander.trouble}"

    @contextmanager
    def one_moment(self) -> Iterator[None]:
        """Stop the process during the block: all happens in one moment for it. The bystander asks after that."""
        with self.bystander.resting():
            self.process.send_signal(signal.SIGSTOP)
            try:
                yield
            except BaseException:
                self.process.send_signal(signal.SIGCONT)
                raise
        self.process.send_signal(signal.SIGCONT)

    def check(self) -> None:
        log = self.log()
        assert self.process.poll() is None, log[-2000:]
        assert "Traceback" not in log, log[-3000:]
        assert not self.bystander.trouble, self.bystander.trouble
        self.look()
        assert self.most_kb <= RSS_MAX_KB, f"the {self.name} held {self.most_kb // 1000} MB"


class Siege(Besieged):
    """A broker that is attacked."""

    name = "broker"

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__()
        self.broker = BrokerProcess(directory, *arguments)
        self._attackers: list[Attacker] = []
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._ends = False
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self.broker.start()
        self.process, self.port = self.broker.process, self.broker.port
        self._reader.start()
        self.watch("tests.security.served", self.port, rounds=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bystander.end()
        self.retreat()
        self._ends = True
        self._reader.join()
        self._selector.close()
        self.broker.kill()

    # --- attackers ---

    def connect(self, hello: bytes = b"", *, is_deaf: bool = False) -> Attacker:
        attacker = Attacker(self, hello, is_deaf=is_deaf)
        self._attackers.append(attacker)
        return attacker

    def listen(self, attacker: Attacker) -> None:
        with self._lock:
            self._selector.register(attacker.socket, selectors.EVENT_READ)

    def _read(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(0.05):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                try:
                    is_over = not found.recv(1 << 18)
                except TimeoutError:
                    continue
                except OSError:
                    is_over = True
                if is_over:
                    self.forget(found)

    def forget(self, connection: socket.socket) -> None:
        with self._lock, contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)

    def retreat(self, *, by_reset: bool = False) -> None:
        """All attackers hang up."""
        for attacker in self._attackers:
            attacker.hang_up(by_reset=by_reset)
        self._attackers = []

    # --- the broker ---

    def log(self) -> str:
        return self.broker.log()

    def attack(self, attack: Callable[["Siege", int], None], count: int) -> None:
        """Until the broker has taken all of it, or takes no more, and the bystander goes on."""
        attack(self, count)
        self.quiet()

    def quiet(self) -> None:
        """Wait until the broker has taken all, or takes no more, and has served the bystander after that."""
        before = -1
        since = time.monotonic()
        while (waiting := self.unread()) > 0 and time.monotonic() - since < QUIET_S:
            if waiting != before:
                before, since = waiting, time.monotonic()
            self.look()
            time.sleep(0.005)
        self.serve(2)
