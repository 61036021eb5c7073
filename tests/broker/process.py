"""`waybill broker` as a process of its own, to be killed and started again over the same directory."""

import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.program_environment import program_environment

READY: Final = "ready amqp://"
READY_MANAGEMENT: Final = "ready http"
READY_TLS: Final = "ready amqps://"
STOP_TIMEOUT_S: Final = 20.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "waybill", "broker", *arguments]


class BrokerProcess:
    """One broker on a port and directory of its own; `start` again after `kill` or `stop`.

    It gets `arguments` more, and may open `descriptors` files at once, if they are given.
    """

    def __init__(self, directory: Path, *arguments: str, descriptors: int | None = None) -> None:
        self._arguments = arguments
        self._limited = () if descriptors is None else ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
        self.directory = directory
        self.repository = Path(__file__).resolve().parent.parent.parent
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.ready_line = ""
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "the broker is not running"
        return self._process

    def start(self) -> None:
        """Returns when it accepts connections."""
        with (self.directory / "broker.log").open("a") as log:
            self._process = subprocess.Popen(
                [
                    *self._limited,
                    *command("--port", str(self.port), "--data-dir", str(self.directory / "data"), *self._arguments),
                ],
                env=program_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline().strip()
        while self.ready_line.startswith((READY_TLS, READY_MANAGEMENT)):
            self.ready_line = self._process.stdout.readline().strip()
        if not self.ready_line.startswith(READY):
            self.kill()
            pytest.fail(f"the broker did not start\n{self.log()}")

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(how)
        status = process.wait(STOP_TIMEOUT_S)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def uri(self, virtual_host: str = "%2F") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{virtual_host}"

    def log(self) -> str:
        return (self.directory / "broker.log").read_text()
