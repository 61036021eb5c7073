"""A RabbitMQ of one's own: Debian's `rabbitmq-server` on free loopback ports, for interoperability and benchmarks.

The broker is started from its own scripts below /usr/lib/rabbitmq, not through Debian's wrapper, so that any user can
run it: everything that it writes lies in one temporary directory, its Erlang cookie included. It has an epmd (Erlang's
name server) of its own on a port of its own; both processes are children of ours and are ended by process id.

    with RabbitMQ() as broker:
        connect(broker.uri("/ojs"))
"""

import base64
import contextlib
import hashlib
import json
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import pytest

INSTALL_HINT: Final = "RabbitMQ is not installed: apt install rabbitmq-server"
SCRIPT: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
DISTRIBUTION_PORTS: Final = range(20_000, 32_000)
POLL_INTERVAL_S: Final = 0.05
LOG_TAIL_BYTES: Final = 4000
OPEN_FILES: Final = 20_000
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

USER: Final = "guest"
PASSWORD: Final = "guest"
READER: Final = "reader"
"""A user, with this as password, who may read and nothing else."""
VIRTUAL_HOSTS: Final = ("/", "/ojs")


class RabbitMQMissingError(RuntimeError):
    """There is no RabbitMQ (or no Erlang) on this machine."""


class RabbitMQFailedError(RuntimeError):
    """RabbitMQ did not come up; the message ends with the tail of its output."""


def installed() -> bool:
    """Whether `RabbitMQ` can be started here."""
    return SCRIPT.exists() and shutil.which("erl") is not None and shutil.which("epmd") is not None


def free_port() -> int:
    """A TCP port on loopback that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def distribution_port() -> int:
    """Return a TCP port that is free on all addresses, as Erlang wants it.

    It is not one of those that the system gives to clients: RabbitMQ binds it seconds later, and does not start if a
    connection of anybody has it then.
    """
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = DISTRIBUTION_PORTS[secrets.randbelow(len(DISTRIBUTION_PORTS))]
            probe.bind(("", port))
            return port


def answers_amqp(port: int, host: str = "127.0.0.1") -> bool:
    """Whether the server at a port answers a 0-9-1 protocol header with a method frame."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(PROTOCOL_HEADER)
            return connection.recv(1) == b"\x01"
    except OSError:
        return False


class RabbitMQ:
    """One RabbitMQ node with the virtual hosts `/` and `/ojs` and the user guest.

    `start` returns when an AMQP handshake begins and raises `RabbitMQMissingError` or `RabbitMQFailedError`. After
    `stop` (orderly) or `kill` (SIGKILL) the data stays, and `start` brings the same node up again on the same port;
    leaving the context removes the data.
    """

    host = "127.0.0.1"
    start_timeout_s = START_TIMEOUT_S

    def __init__(
        self, *plugins: str, policies: Sequence[Mapping[str, object]] = (), dead_letter_timeout_s: float | None = None
    ) -> None:
        """`policies` are as in RabbitMQ's definitions.

        After `dead_letter_timeout_s`, quorum queues send a dead letter again that its target has refused.
        """
        if not installed():
            raise RabbitMQMissingError(INSTALL_HINT)
        self._plugins = plugins
        self._policies = policies
        self._dead_letter_timeout_s = dead_letter_timeout_s
        self.port = free_port()
        self.management_port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="rabbitmq-"))
        self._epmd_port = free_port()
        self._distribution_port = distribution_port()
        self._node_name = f"test{os.getpid()}p{self.port}@localhost"
        self._broker: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._environment = self._write_configuration()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def uri(self, virtual_host: str = "/") -> str:
        return f"amqp://{USER}:{PASSWORD}@{self.host}:{self.port}/{quote(virtual_host, safe='')}"

    @property
    def addresses(self) -> Sequence[str]:
        """Where its name server listens."""
        return [self.host]

    def command(self, *arguments: str) -> list[str]:
        """What starts a program beside the node."""
        return [*arguments]

    @property
    def pid(self) -> int:
        """The process id of the Erlang virtual machine. Raises `RabbitMQFailedError` if it is not running."""
        if self._broker is None:
            raise RabbitMQFailedError("RabbitMQ is not running")
        return self._broker.pid

    def start(self) -> None:
        if self._broker is not None:
            return
        self._start_epmd()
        with (self.directory / "output.log").open("ab") as output:
            self._broker = subprocess.Popen(
                self.command(str(SCRIPT)),
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + self.start_timeout_s
        while not answers_amqp(self.port, self.host):
            if self._broker.poll() is not None or time.monotonic() > deadline:
                tail = self._output_tail()
                self.kill()
                raise RabbitMQFailedError(f"RabbitMQ did not start within {self.start_timeout_s:.0f} s\n{tail}")
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Shut the node down in an orderly way; SIGKILL if it takes longer than `STOP_TIMEOUT_S`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the node at once, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the node and remove its data."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start_epmd(self) -> None:
        epmd = shutil.which("epmd")
        if epmd is None:
            raise RabbitMQMissingError(INSTALL_HINT)
        # In the foreground, so that it stays our child.
        self._epmd = subprocess.Popen(
            self.command(epmd, "-port", str(self._epmd_port), "-address", ",".join(self.addresses)),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((self.host, self._epmd_port), timeout=5):
                return
            time.sleep(POLL_INTERVAL_S)
        raise RabbitMQFailedError("epmd did not start")

    def _end(self, how: signal.Signals) -> None:
        for process in (self._broker, self._epmd):
            if process is None:
                continue
            if process.poll() is None:
                process.send_signal(how)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._broker = None
        self._epmd = None

    def _output_tail(self) -> str:
        output = (self.directory / "output.log").read_bytes()
        return output[-LOG_TAIL_BYTES:].decode(errors="replace")

    def _write_configuration(self) -> dict[str, str]:
        """Write the node's files; the environment to start it with."""
        directory = self.directory
        cookie = directory / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)  # Erlang refuses a cookie that others may read.
        (directory / "enabled_plugins").write_text(f"[{','.join(self._plugins)}].\n")
        (directory / "definitions.json").write_text(json.dumps({**_definitions(), "policies": [*self._policies]}))
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = 127.0.0.1:{self.port}\nload_definitions = {directory / 'definitions.json'}\n"
            + (
                f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n"
                if "rabbitmq_management" in self._plugins
                else ""
            )
        )
        if self._dead_letter_timeout_s is not None:
            milliseconds = int(self._dead_letter_timeout_s * 1000)
            (directory / "advanced.config").write_text(
                f"[{{rabbit, [{{dead_letter_worker_publisher_confirm_timeout, {milliseconds}}}]}}].\n"
            )
        open_files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        (directory / "rabbitmq-env.conf").write_text(f"ulimit -S -n {open_files}\n")
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node_name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(directory / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            # Makes the start script become the Erlang virtual machine instead of waiting for it as a parent, so that
            # the process id that we signal and measure is the broker's.
            "detached": "true",
        }


def _definitions() -> dict[str, object]:
    """RabbitMQ's definitions: with a file of them it makes no user and no virtual host by itself."""
    nothing, everything = "^$", ".*"
    return {
        "vhosts": [{"name": name} for name in VIRTUAL_HOSTS],
        "users": [_user(USER, PASSWORD, "administrator"), _user(READER, READER, "")],
        "permissions": [
            {"user": user, "vhost": name, "configure": own, "write": own, "read": everything}
            for name in VIRTUAL_HOSTS
            for user, own in ((USER, everything), (READER, nothing))
        ],
    }


def _user(name: str, password: str, tags: str) -> dict[str, object]:
    salt = secrets.token_bytes(4)
    return {
        "name": name,
        "password_hash": base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags,
    }


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A running RabbitMQ for the whole test session; tests are skipped where it is not installed."""
    if not installed():
        pytest.skip(INSTALL_HINT)
    with RabbitMQ("rabbitmq_consistent_hash_exchange") as broker:
        yield broker
