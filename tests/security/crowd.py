"""A crowd of attackers at one listener of a process: they come from several addresses, and act in one moment."""

import contextlib
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from tests.security.siege import RESET, SERVED_TIMEOUT_S, Besieged

ADDRESSES: Final = 4
"""How many addresses of this machine attackers come from: each has a limited number of ports."""
BYSTANDER_BYTES: Final = 500
"""What the bystander sends at a time."""
CONNECT_TIMEOUT_S: Final = 20.0


class Crowd(Besieged):
    """A process that is attacked by a crowd. Clients begin with `hello`, which has an answer."""

    hello: bytes
    clients_max: int
    """How many there may be beside the bystander."""
    trusted: tuple[str, ...] = ()
    """The file with the certificate authority of a listener with TLS."""

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[socket.socket] = []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bystander.end()
        for attacker in self.sockets:
            attacker.close()
        self.kill()

    def kill(self) -> None:
        """End the process."""
        raise NotImplementedError

    def attack(self, attack: Callable[[Self, int], None], count: int) -> None:
        """Until it is over, and the bystander goes on."""
        attack(self, count)
        self.serve(3)

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
        """Wait until all attackers have the beginning of an answer, but for those that are too many."""
        answered = 0
        for attacker in self.sockets:
            with contextlib.suppress(ConnectionResetError):
                answered += len(attacker.recv(1))
            self.look()
        assert answered >= min(len(self.sockets), self.clients_max), "no answer"

    def leave(self, *, by_reset: bool = False) -> None:
        """All attackers close in the same moment."""
        if by_reset:
            for attacker in self.sockets:
                attacker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with self.one_moment():
            for attacker in self.sockets:
                attacker.close()
        self.sockets = []
