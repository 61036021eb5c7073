"""Reports the progress of running Spark tasks: Spark itself only reports the end of a task.

The driver listens on its own host, as it does for Spark. A task connects, sends a secret, and then its counts, eight
octets each. A task that cannot connect continues without reports.
"""

import hmac
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock, Thread
from types import TracebackType
from typing import Final, Self

from pyspark.sql import SparkSession

_SECRET_OCTETS: Final = 32
_COUNT_OCTETS: Final = 8
_CONNECT_S: Final = 5.0


@dataclass(frozen=True)
class Driver:
    """Where the driver listens."""

    host: str
    port: int
    secret: bytes = field(repr=False)


class TaskCounts:
    """Calls `on_count` with the total of all tasks, in its own thread."""

    def __init__(self, spark: SparkSession, on_count: Callable[[int], None]) -> None:
        host = spark.conf.get("spark.driver.host") or "127.0.0.1"
        bound = spark.conf.get("spark.driver.bindAddress", host) or host
        secret = secrets.token_bytes(_SECRET_OCTETS)
        self._server = _Server((bound, 0), secret, on_count)
        self.driver = Driver(host, self._server.server_address[1], secret)
        self._thread = Thread(target=self._server.serve_forever, args=(0.1,), name="waybill-task-counts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        # Waits for connected tasks.
        self._server.server_close()
        self._thread.join()


class CountReporter:
    """Reports the count of a task to the driver."""

    def __init__(self, driver: Driver | None) -> None:
        self._socket: socket.socket | None = None
        if driver is not None:
            with suppress(OSError):
                self._socket = socket.create_connection((driver.host, driver.port), _CONNECT_S)
                self._socket.sendall(driver.secret)

    def report(self, count: int) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(count.to_bytes(_COUNT_OCTETS))
        except OSError:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """Wait until the driver has received everything."""
        if self._socket is None:
            return
        with self._socket, suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.recv(1)
        self._socket = None


class _Server(ThreadingTCPServer):
    daemon_threads = False

    def __init__(self, address: tuple[str, int], secret: bytes, on_count: Callable[[int], None]) -> None:
        super().__init__(address, _Handler)
        self.secret = secret
        self._on_count = on_count
        self._counts: dict[object, int] = {}
        self._lock = Lock()

    def note(self, task: object, count: int) -> None:
        with self._lock:
            self._counts[task] = count
            self._on_count(sum(self._counts.values()))


class _Handler(StreamRequestHandler):
    server: _Server
    timeout = _CONNECT_S

    def handle(self) -> None:
        with suppress(OSError):
            if not hmac.compare_digest(self.rfile.read(_SECRET_OCTETS), self.server.secret):
                return
            # A task with a rate may send nothing for a long time.
            self.connection.settimeout(None)
            while len(octets := self.rfile.read(_COUNT_OCTETS)) == _COUNT_OCTETS:
                self.server.note(self, int.from_bytes(octets))
