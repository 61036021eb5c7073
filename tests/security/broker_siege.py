"""A broker one of whose further ports is attacked."""

import socket
from pathlib import Path
from typing import Self

from tests.broker.process import BrokerProcess
from tests.security.crowd import Crowd


class BrokerSiege(Crowd):
    """A broker that listens on one more port, the attackers'. The bystander uses the port for AMQP."""

    name = "broker"

    def __init__(self, directory: Path, port_option: str, *arguments: str) -> None:
        super().__init__()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._broker = BrokerProcess(directory, port_option, str(self.port), *arguments)

    def __enter__(self) -> Self:
        self._broker.start()
        self.process = self._broker.process
        self.watch("tests.security.served", self._broker.port, rounds=1)
        return self

    def kill(self) -> None:
        self._broker.kill()

    def log(self) -> str:
        return self._broker.log()
