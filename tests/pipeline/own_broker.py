"""Our broker as a process of its own, which can be killed and started again at the same address."""

import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.program_environment import program_environment


class OwnBroker:
    """`waybill broker` with a data directory, on a port that it keeps."""

    def __init__(self, directory: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._directory = directory
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    @property
    def uri(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2Fojs"

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Return when it accepts connections."""
        command = [
            sys.executable,
            "-m",
            "waybill",
            "broker",
            "--port",
            str(self.port),
            "--data-dir",
            str(self._directory),
            *self._options,
        ]
        environment = program_environment()
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self._process.stdout is not None
        # With --management, the address of the API comes first.
        for line in self._process.stdout:
            if line.startswith("ready amqp://"):
                return
        raise AssertionError("the broker did not start")

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
