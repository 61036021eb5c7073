"""The brokers to compare: RabbitMQ as Debian ships it, and Waybill compiled and interpreted.

Each starts with a fresh data directory on a free loopback port, and reports how long that took.
"""

import hashlib
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.rabbitmq import INSTALL_HINT, RabbitMQ, answers_amqp, free_port, installed

REPOSITORY: Final = Path(__file__).resolve().parent.parent
COMMAND: Final = "from waybill.cli.main import main; main()"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0


class UnavailableError(RuntimeError):
    """A broker cannot be started on this machine; the message says why."""


class Contender:
    """A broker under measurement. `pid` and `port` hold between `start` and `stop`."""

    name: str
    has_amqp10 = True
    pid: int = 0
    port: int = 0

    def prepare(self) -> str:
        """Build or find what the broker needs, once; returns its version. Raises `UnavailableError`."""
        raise NotImplementedError

    def start(self) -> float:
        """Start with no data; returns the seconds until the broker accepted a connection."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop and remove the data."""
        raise NotImplementedError


class RabbitMQContender(Contender):
    """Debian's RabbitMQ with its defaults."""

    name = "RabbitMQ"
    # Debian's has it as a plugin only, with other addresses than those of RabbitMQ 4.
    has_amqp10 = False

    def __init__(self) -> None:
        self.policies: tuple[dict[str, object], ...] = ()
        """Set when it starts next, as in RabbitMQ's definitions."""
        self._broker: RabbitMQ | None = None

    def prepare(self) -> str:
        if not installed():
            install_rabbitmq()
        version = subprocess.run(
            ["dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"], capture_output=True, text=True, check=False
        )
        return f"RabbitMQ {version.stdout.strip() or 'of unknown version'}"

    def start(self) -> float:
        self._broker = RabbitMQ(policies=self.policies)
        begin = time.monotonic()
        self._broker.start()
        elapsed = time.monotonic() - begin
        self.pid, self.port = self._broker.pid, self._broker.port
        return elapsed

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None


class WaybillContender(Contender):
    """`waybill broker` from one place on the import path, as a process of its own."""

    def __init__(self, *, compiled: bool, package: Path | None = None) -> None:
        """`package` is a directory with Waybill compiled, used instead of compiling the current sources."""
        self.compiled = compiled
        self._package = package
        self.name = "Waybill compiled" if compiled else "Waybill interpreted"
        self._path = REPOSITORY / "src"
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None

    def prepare(self) -> str:
        if self.compiled:
            self._path = (self._package or build_compiled()).resolve()
        version = subprocess.run(
            self._command("--version"), env=self._environment(), capture_output=True, text=True, check=False
        )
        if version.returncode != 0:
            raise UnavailableError(f"waybill --version failed: {version.stderr.strip()[-500:]}")
        expected = "compiled" if self.compiled else "interpreted"
        if expected not in version.stdout:
            raise UnavailableError(f"not {expected}: {version.stdout.strip()}")
        return version.stdout.strip()

    def start(self) -> float:
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="waybill-bench-"))
        self.port = free_port()
        arguments = [
            "broker",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--data-dir",
            str(self._directory / "data"),
        ]
        begin = time.monotonic()
        with (self._directory / "output.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(*arguments),
                env=self._environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
            )
        self.pid = self._process.pid
        self._await_ready(self._process)
        elapsed = time.monotonic() - begin
        if not answers_amqp(self.port):
            self.stop()
            raise UnavailableError(f"{self.name} said that it is ready and does not answer")
        return elapsed

    def halt(self, *, kill: bool) -> None:
        """Stop cleanly, or kill; `start` then begins again with the same data."""
        process = self._process
        if process is None:
            return
        self._process = None
        if kill:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def stop(self) -> None:
        self.halt(kill=False)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the line `ready amqp://...` on the broker's standard output."""
        if process.stdout is None:
            raise UnavailableError("the broker has no standard output")
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if readable else b""
        if not line.startswith(b"ready "):
            directory = self._directory or Path()
            output = (directory / "output.log").read_text(errors="replace")
            self.stop()
            raise UnavailableError(f"{self.name} did not start: {line!r}\n{output[-2000:]}")

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", COMMAND, *arguments]

    def _environment(self) -> dict[str, str]:
        # As pip installs it, plain Python lies there as bytecode.
        return {**os.environ, "PYTHONPATH": str(self._path), "PYTHONDONTWRITEBYTECODE": ""}


def install_rabbitmq() -> None:
    """Install Debian's package if that needs no questions. Raises `UnavailableError` otherwise."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise UnavailableError(INSTALL_HINT)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", "rabbitmq-server"]):
        result = subprocess.run(
            ["apt-get", "-q", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        if result.returncode != 0:
            raise UnavailableError(f"apt-get {' '.join(arguments)} failed: {result.stderr.strip()[-500:]}")


def build_compiled() -> Path:
    """A directory with Waybill compiled from the current sources; built again only if they changed."""
    sources = sorted(path for path in (REPOSITORY / "src").rglob("*.py"))
    names = ["pyproject.toml", "setup.py", "README.md", "LICENSE"]
    digest = hashlib.sha256(sys.version.encode())
    for path in [*sources, *(REPOSITORY / name for name in names)]:
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    target = REPOSITORY / "build" / f"bench-{digest.hexdigest()[:16]}"
    if target.is_dir():
        return target
    with tempfile.TemporaryDirectory(prefix="waybill-build-") as name:
        copy = Path(name) / "copy"
        copy.mkdir()
        shutil.copytree(
            REPOSITORY / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
        )
        for file in names:
            shutil.copy(REPOSITORY / file, copy / file)
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(Path(name) / "built"),
            str(copy),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=name)
        if result.returncode != 0:
            raise UnavailableError(f"building Waybill failed: {result.stderr.strip()[-2000:]}")
        target.parent.mkdir(exist_ok=True)
        shutil.move(Path(name) / "built", target)
    return target


@contextmanager
def own_broker(*options: str) -> Iterator[str]:
    """Run a broker of the Waybill that this program imports, in another process; gives the address of /ojs.

    Raises `UnavailableError`.
    """
    command = [sys.executable, "-m", "waybill", "broker", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        line = process.stdout.readline()
        port = re.search(r":(\d+)", line.removeprefix("ready amqp://"))
        if port is None:
            raise UnavailableError(f"the broker did not start: {line!r}")
        try:
            yield f"amqp://guest:guest@127.0.0.1:{port[1]}/%2Fojs"
        finally:
            process.terminate()
