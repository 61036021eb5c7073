"""The processes of the run: a broker, workers and a coordinator, each of which can be killed and started again."""

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol

from tests.ojs.broker_process import BrokerProcess
from tests.program_environment import program_environment
from tests.rabbitmq import RabbitMQ

REPOSITORY = Path(__file__).resolve().parents[3]
QUEUE = "soak"


class Broker(Protocol):
    """What RabbitMQ and ours have in common."""

    def uri(self, virtual_host: str) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class House:
    """Starts everything, kills what chance picks, and ends everything."""

    middle = "coordinator"
    """What is between the broker and whoever asks for jobs."""

    def __init__(
        self, broker_name: str, directory: Path, workers: int, chance: random.Random, broker: Broker | None = None
    ) -> None:
        self.kills = {"worker": 0, self.middle: 0, "broker": 0}
        self.restarts = 0
        self.environment: dict[str, str] = {}
        """What the processes find in their environment besides."""
        self.store = directory / "store.sqlite"
        self.settle_seconds = 5.0 if broker_name == "rabbitmq" else 0.0
        """Before the first kill: RabbitMQ loses quorum queues that were declared in the second before it is killed."""
        self._directory = directory
        self._chance = chance
        self._broker: Broker = broker or (
            RabbitMQ() if broker_name == "rabbitmq" else BrokerProcess(REPOSITORY, directory / "broker")
        )
        self._workers: list[subprocess.Popen[bytes] | None] = [None] * workers
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._log = (directory / "log").open("ab")

    @property
    def uri(self) -> str:
        """What programs are given."""
        return self.broker_uri

    @property
    def broker_uri(self) -> str:
        return self._broker.uri("/ojs")

    def start(self) -> None:
        self._broker.start()
        for index in range(len(self._workers)):
            self._start_worker(index)
        self._start_coordinator()

    def kill_something(self) -> str:
        """End a process with SIGKILL and start its successor; what it was."""
        what = self._choose()
        if what == "worker":
            self.kill_worker(self._chance.randrange(len(self._workers)))
        elif what == self.middle:
            _kill(self._coordinator)
            self._start_coordinator()
        else:
            self._broker.kill()
            self._broker.start()
        self.kills[what] += 1
        return what

    def kill_worker(self, index: int) -> None:
        """End a worker with SIGKILL, and start its successor."""
        _kill(self._workers[index])
        self._start_worker(index)

    def _choose(self) -> str:
        spared = [kind for kind, count in self.kills.items() if not count]
        if sum(self.kills.values()) >= 5 and spared:
            return spared[0]
        return self._chance.choices(("worker", self.middle, "broker"), (6, 2, 2))[0]

    def restart_the_dead(self) -> None:
        """Do what a supervisor does: a process that loses its broker while it starts ends with an error."""
        for index, process in enumerate(self._workers):
            if process is not None and process.poll() is not None:
                self._start_worker(index)
                self.restarts += 1
        if self._coordinator is not None and self._coordinator.poll() is not None:
            self._start_coordinator()
            self.restarts += 1

    def close(self) -> None:
        for process in (*self._workers, self._coordinator):
            _kill(process)
        if isinstance(self._broker, RabbitMQ) and self._directory.exists():
            # What it says is needed after a failure, and its own directory goes with it.
            shutil.copytree(self._broker.directory / "log", self._directory / "rabbitmq-log", dirs_exist_ok=True)
        self._broker.close()
        self._log.close()

    def _start_worker(self, index: int) -> None:
        program = ["-m", "tests.soak.jobs.programs", self.uri, str(self._directory), QUEUE]
        self._workers[index] = self._spawn(program)

    def _start_coordinator(self) -> None:
        uri = ["--uri", self.broker_uri]
        program = ["-m", "waybill", "coordinator", QUEUE, "--database", str(self.store), *uri]
        self._coordinator = self._spawn(program)

    def _spawn(self, arguments: list[str], stdin: int | None = None) -> subprocess.Popen[bytes]:
        environment = program_environment() | self.environment
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=stdin,
            stdout=self._log,
            stderr=self._log,
            cwd=REPOSITORY,
            env=environment,
        )


def _kill(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
