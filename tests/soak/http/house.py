"""The processes of a run over HTTP: a broker, a backend that answers for it, and workers that know only the backend."""

from __future__ import annotations

import random
import socket
from pathlib import Path

from tests.soak.jobs.house import House


class HttpHouse(House):
    """A house whose programs get the URL of the backend. It comes back at the same port, as behind a proxy."""

    middle = "backend"

    def __init__(self, broker_name: str, directory: Path, workers: int, chance: random.Random) -> None:
        super().__init__(broker_name, directory, workers, chance)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._port = listening.getsockname()[1]

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _start_worker(self, index: int) -> None:
        program = ["-m", "tests.soak.http.programs", self.uri, str(self._directory)]
        self._workers[index] = self._spawn(program)

    def _start_coordinator(self) -> None:
        server = ["-m", "waybill", "serve", "--port", str(self._port)]
        self._coordinator = self._spawn([*server, "--database", str(self.store), "--uri", self.broker_uri])
