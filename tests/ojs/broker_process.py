"""Our broker as a process with a data directory, to be killed and started again on its port."""

import subprocess
import sys
from pathlib import Path

from tests.program_environment import program_environment
from tests.rabbitmq import free_port


class BrokerProcess:
    """What `tests.rabbitmq.RabbitMQ` is for the other broker: `start`, `kill`, `uri`."""

    def __init__(self, repository: Path, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._environment = program_environment()
        self._process: subprocess.Popen[str] | None = None

    def uri(self, virtual_host: str) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F{virtual_host.removeprefix('/')}"

    def start(self) -> None:
        command = [sys.executable, "-m", "waybill", "broker", "--port", str(self.port)]
        self._process = subprocess.Popen(
            [*command, "--data-dir", str(self._directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=self._environment,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready amqp://"), line

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        if self._process is not None:
            self.kill()
