"""`waybill serve` in a process of its own, attackers at its sockets, and a bystander who pushes jobs all the while."""

import contextlib
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.program_environment import program_environment
from tests.security.siege import SERVED_TIMEOUT_S, Besieged, Bystander

READY: Final = re.compile(r"ready https?://127\.0\.0\.1:(\d+)")
ADDRESSES: Final = 4
"""How many addresses of this machine attackers come from: each has a limited number of ports."""
RESET: Final = struct.pack("ii", 1, 0)
BYSTANDER_BYTES: Final = 500
"""What the bystander sends at a time."""
CONNECT_TIMEOUT_S: Final = 20.0


class HttpSiege(Besieged):
    """A server that is attacked. `arguments` go to `waybill serve`."""

    name = "server"
    trusted: tuple[str, ...] = ()
    """The file with the certificate authority of a server with TLS."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__()
        self._log = directory / "serve.log"
        self._arguments = arguments
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "waybill", "serve", "--memory", "--port", "0", *self._arguments]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=program_environment()
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        found = READY.fullmatch(line)
        assert found, line + self.log()
        self.port = int(found[1])
        self.bystander = Bystander("tests.security.http_served", self.port, self.process.pid, *self.trusted)
        self.bystander.start()
        self.serve(3)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bystander.end()
        for attacker in self.sockets:
            attacker.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        return self._log.read_text()

    # --- attackers ---

    def connect(self, request: bytes = b"", *, small_buffer: bool = False) -> socket.socket:
        """Connect, and send a request whose answer is not awaited."""
        attacker = socket.socket()
        if small_buffer:
            attacker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        attacker.settimeout(CONNECT_TIMEOUT_S)
        attacker.bind((f"127.0.0.{2 + len(self.sockets) % ADDRESSES}", 0))
        attacker.connect(("127.0.0.1", self.port))
        if request:
            attacker.sendall(request)
        self.sockets.append(attacker)
        return attacker

    def connect_aside(self) -> socket.socket:
        """Connect one that the caller closes."""
        return socket.create_connection(("127.0.0.1", self.port), CONNECT_TIMEOUT_S, (f"127.0.0.{ADDRESSES}", 0))

    def crowd(self, count: int, request: bytes = b"") -> None:
        """Connect many, and wait until the server has taken all of them and their requests."""
        for number in range(count):
            self.connect(request)
            if number % 500 == 0:
                self.look()
        self.quiet()

    def quiet(self) -> None:
        """Wait until the server has read everything, and rests."""
        deadline = time.monotonic() + 2 * SERVED_TIMEOUT_S
        while time.monotonic() < deadline:
            waiting = self.unread()
            self.look()
            if waiting <= BYSTANDER_BYTES:
                break
            time.sleep(0.02)
        self.serve(3)

    def send_at_once(self, request: bytes) -> None:
        """All attackers send in the same moment."""
        with self.one_moment():
            for attacker in self.sockets:
                # The server may have closed some of a crowd.
                with contextlib.suppress(OSError):
                    attacker.send(request)

    def hear(self) -> None:
        """Wait until all attackers have the beginning of an answer."""
        for attacker in self.sockets:
            assert attacker.recv(1), "no answer"
            self.look()

    def leave(self, *, by_reset: bool = False) -> None:
        """All attackers close in the same moment."""
        if by_reset:
            for attacker in self.sockets:
                attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with self.one_moment():
            for attacker in self.sockets:
                attacker.close()
        self.sockets = []
