"""The processes of the run: three nodes, workers, two coordinators, perhaps a database, and what is done to them."""

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.postgresql import Server
from tests.program_environment import program_environment
from tests.soak.cluster.nodes import Cluster
from tests.soak.jobs.house import QUEUE, REPOSITORY, House

DOWN_SECONDS: Final = 10.0
"""How long a killed node stays away."""
PARTED_SECONDS: Final = 25.0
"""Longer than nodes need to take one that says nothing for gone, several times."""
DATABASE_DOWN_SECONDS: Final = 5.0
DATABASE: Final = "jobs"
EVENT_PARTITIONS: Final = 2
"""With a database: each coordinator folds one of them."""


class ClusterHouse(House):
    """Ends nodes, parts them from the others, and restarts them in turn."""

    def __init__(self, directory: Path, workers: int, chance: random.Random, database: Server | None = None) -> None:
        """The coordinators share `database`; without it, each has a store of its own."""
        self._cluster = Cluster()
        super().__init__("cluster", directory, workers, chance, self._cluster)
        self.kills = {"node": 0, "partition": 0, "rolling restart": 0, "coordinator": 0, "worker": 0}
        self.database = database
        self.event_partitions = 1
        self.second_store = directory / "second.sqlite"
        if database is not None:
            self.kills["database"] = 0
            self.event_partitions = EVENT_PARTITIONS
        self._second: subprocess.Popen[bytes] | None = None
        # Commands know by their context what is declared in a cluster.
        self.environment["XDG_CONFIG_HOME"] = str(directory / "settings")

    def start(self) -> None:
        placement = ("--queue-type", "quorum", "--replicas", "3", "--leader-locator", "balanced")
        partitions = ("--event-partitions", str(self.event_partitions))
        subprocess.run(
            [sys.executable, "-m", "waybill", "context", "add", "cluster", self.uri, *placement, *partitions],
            env=program_environment() | self.environment,
            cwd=REPOSITORY,
            check=True,
            stdout=self._log,
        )
        super().start()

    def kill_something(self) -> str:
        what = self._choose()
        match what:
            case "worker":
                self.kill_worker(self._chance.randrange(len(self._workers)))
            case "coordinator":
                self._restart_coordinator()
            case "node":
                node = self._chance.choice(self._cluster.nodes)
                node.kill()
                time.sleep(DOWN_SECONDS)
                node.start()
                self._cluster.await_whole()
            case "partition":
                node = self._chance.choice(self._cluster.nodes)
                node.cut(off=True)
                time.sleep(PARTED_SECONDS)
                node.cut(off=False)
                self._cluster.await_whole()
            case "rolling restart":
                for node in self._cluster.nodes:
                    node.restart()
                    self._cluster.await_whole()
            case "database" if self.database is not None:
                self.database.kill()
                time.sleep(DATABASE_DOWN_SECONDS)
                self.database.start(is_durable=True)
            case _:
                raise ValueError(what)
        self.kills[what] += 1
        return what

    def restart_the_dead(self) -> None:
        super().restart_the_dead()
        if self._second is not None and self._second.poll() is not None:
            self._second = self._coordinate(self.second_store)
            self.restarts += 1

    def close(self) -> None:
        if self._second is not None:
            self._second.kill()
            self._second.wait()
        if self._directory.exists():
            self._cluster.keep_logs(self._directory)
        super().close()

    def _choose(self) -> str:
        """Each fault once, in this order; then what is quick."""
        spared = [kind for kind, count in self.kills.items() if not count]
        quick = ["node", "coordinator", "worker", "worker"]
        if self.database is not None:
            quick.append("database")
        return spared[0] if spared else self._chance.choice(quick)

    def _start_worker(self, index: int) -> None:
        place = (self.uri, str(self._directory), QUEUE, str(self.event_partitions))
        program = ["-m", "tests.soak.cluster.programs", *place]
        self._workers[index] = self._spawn(program)

    def _start_coordinator(self) -> None:
        self._coordinator = self._coordinate(self.store)
        if self._second is None:
            self._second = self._coordinate(self.second_store)

    def _restart_coordinator(self) -> None:
        """Kill one or the other."""
        if self._chance.random() < 0.5 and self._second is not None:
            self._second.kill()
            self._second.wait()
            self._second = self._coordinate(self.second_store)
        elif self._coordinator is not None:
            self._coordinator.kill()
            self._coordinator.wait()
            self._coordinator = self._coordinate(self.store)

    def _coordinate(self, store: Path) -> subprocess.Popen[bytes]:
        database = str(store) if self.database is None else self.database.dsn(DATABASE)
        return self._spawn(["-m", "waybill", "coordinator", QUEUE, "--database", database, "--context", "cluster"])
