"""A standalone Spark cluster of processes on loopback: a master and workers, each of which can be killed."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from tests.pipeline.shared_classes import options_with
from tests.program_environment import program_environment
from tests.rabbitmq import free_port

_LOOPBACK: Final = "127.0.0.1"
# A Java that starts beside others may take minutes.
_START_S: Final = 300.0
# No worker or executor is to be taken for gone because the machine is busy.
_SILENT_S: Final = 600
_REGISTERED: Final = "Successfully registered with master"
_READY: Final = "New state: ALIVE"


class Standalone:
    """A master, and `workers` workers of one core each. Raises AssertionError if one does not start."""

    def __init__(self, directory: Path, workers: int = 2, java_option: str = "") -> None:
        """`java_option` is for every Java, also those of drivers and executors."""
        self._directory = directory
        self._java_option = java_option
        self._port = free_port()
        self._count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def options(self) -> dict[str, str]:
        """What a session needs to run there."""
        return {
            "spark.master": f"spark://{_LOOPBACK}:{self._port}",
            "spark.executor.memory": "700m",
            "spark.executor.cores": "1",
            # They live for seconds.
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.cores.max": str(self._count),
            # An executor that was killed is no reason to give up.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.network.timeout": f"{_SILENT_S}s",
            **options_with(self._java_option),
        }

    def __enter__(self) -> Self:
        self._master = self._start("master", "--port", str(self._port), "--webui-port", "0", ready=_READY)
        for _ in range(self._count):
            self._workers.append(self._worker())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self._workers, *([self._master] if self._master is not None else [])):
            self._end(process)

    def replace_worker(self, number: int) -> None:
        """Kill a worker, and start another in its place."""
        index = number % self._count
        self._end(self._workers[index])
        self._workers[index] = self._worker()

    def _worker(self) -> subprocess.Popen[bytes]:
        place = self._directory / "work"
        words = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(place)]
        return self._start("worker", *words, f"spark://{_LOOPBACK}:{self._port}", ready=_REGISTERED)

    def _start(self, role: str, *words: str, ready: str) -> subprocess.Popen[bytes]:
        """Return when it says that it is ready."""
        home = Path(pyspark.__file__).parent
        log = self._directory / f"{role}-{len(self._workers)}-{os.urandom(3).hex()}.log"
        environment = program_environment() | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": _LOOPBACK,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": f"{self._java_option} -Dspark.worker.timeout={_SILENT_S}",
            "PYSPARK_PYTHON": sys.executable,
        }
        name = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
        command = [str(home / "bin" / "spark-class"), name, "--host", _LOOPBACK, *words]
        with log.open("w") as written:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=written, env=environment)
        until = time.monotonic() + _START_S
        while ready not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > until:
                self._end(process)
                raise AssertionError(f"the {role} did not start: {log.read_text(errors='replace')[-2000:]}")
            threading.Event().wait(0.2)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait(30)
