"""`waybill serve` in a process of its own, attackers at its sockets, and a bystander who pushes jobs all the while."""

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.program_environment import program_environment
from tests.security.crowd import Crowd
from waybill.backend.server.limits import Limits

READY: Final = re.compile(r"ready https?://127\.0\.0\.1:(\d+)")
HEALTH: Final = b"GET /ojs/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class HttpSiege(Crowd):
    """A server that is attacked. `arguments` go to `waybill serve`."""

    name = "server"
    hello = HEALTH
    clients_max = Limits().connections - 1

    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__()
        self._log = directory / "serve.log"
        self._arguments = arguments

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
        self.watch("tests.security.http_served", self.port, *self.trusted, rounds=3)
        return self

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        return self._log.read_text()
