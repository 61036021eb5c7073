"""PostgreSQL servers of our own, on loopback: started, killed, copied to replicas, promoted."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import psycopg

from tests.rabbitmq import free_port

HINT: Final = "PostgreSQL is not installed: apt install postgresql"
USER: Final = "waybill"
START_SECONDS: Final = 60.0


def program(name: str) -> str | None:
    """Debian keeps the programs of each version in a directory of its own, beside the path."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return str(found[0]) if found else shutil.which(name)


def is_installed() -> bool:
    return program("initdb") is not None and program("postgres") is not None


@contextlib.contextmanager
def directory_for_servers() -> Iterator[Path]:
    """A directory with a short name, for sockets, that the user of the servers may use."""
    # Not below pytest's directories: a socket's name is short, and the server may run as another user.
    directory = Path(tempfile.mkdtemp(prefix="waybill-postgresql-"))
    try:
        user = owner()
        if user is not None:
            shutil.chown(directory, user)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def owner() -> str | None:
    """The user that runs the servers, None for that of this process: PostgreSQL refuses root."""
    return "postgres" if os.getuid() == 0 else None


class Server:
    """One server with its data in `directory / name`. It listens on a port of 127.0.0.1 and a socket in `directory`."""

    def __init__(self, directory: Path, name: str = "data") -> None:
        self.port = free_port()
        self._directory = directory
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> Self:
        """Make an empty cluster."""
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", USER, "-N", "--no-locale", "-E", "UTF8")
        return self

    def start(self, *, is_durable: bool = False, **settings: str) -> Self:
        """Start, and wait until it answers. Unless it `is_durable`, it does not sync: only a test may do so."""
        options = {"listen_addresses": "127.0.0.1", "port": str(self.port), "fsync": "on" if is_durable else "off"}
        options |= {"unix_socket_directories": str(self._directory)} | settings
        command = [_required("postgres"), "-D", self._data]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, user=owner(), cwd=self._directory, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(f"postgresql://{USER}@/postgres?host={self._directory}&port={self.port}").close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self._directory / f"{self.name}.log").read_text()
                    raise RuntimeError(f"PostgreSQL does not start: {log_text[-2000:]}") from None
                time.sleep(0.02)
            else:
                return self

    def kill(self) -> None:
        """End all of its processes at once, as if the machine had gone."""
        if self._process is not None:
            # Each has a session of its own.
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop all of its processes: connections stay open, and nobody answers."""
        for pid in self.pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
            self._process = None

    def replica(self, name: str, port: int | None = None) -> "Server":
        """A replica of this server, which runs: what this one commits comes to it by streaming, asynchronously."""
        made = Server(self._directory, name)
        made.port = port or made.port
        source = f"host=127.0.0.1 port={self.port} user={USER}"
        self._run("pg_basebackup", "-D", made._data, "-d", source, "-R", "-X", "stream", "-c", "fast")
        return made

    def promote(self) -> None:
        """Make a replica a primary; returns when it takes writes."""
        self.execute("SELECT pg_promote(true, 60)")

    def execute(self, statement: str) -> object:
        """The first value of what a statement returns, None if it returns nothing."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            found = connection.execute(statement.encode())
            row = found.fetchone() if found.description is not None else None
            return None if row is None else row[0]

    def wait_for(self, question: str) -> None:
        """Return when a question is answered with true."""
        deadline = time.monotonic() + START_SECONDS
        while self.execute(question) is not True:
            if time.monotonic() > deadline:
                raise TimeoutError(question)
            time.sleep(0.02)

    def dsn(self, name: str = "postgres") -> str:
        """What psycopg connects to."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{name}"

    def create_database(self, name: str) -> str:
        """Make an empty database; returns its URL."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(f"create database {name}".encode())
        return self.dsn(name)

    def pids(self) -> list[int]:
        """Its processes: the first one is the parent of the others."""
        if self._process is None:
            return []
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [self._process.pid, *map(int, children)]

    @property
    def _data(self) -> str:
        return str(self._directory / self.name)

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [_required(name), *arguments], check=True, capture_output=True, user=owner(), cwd=self._directory
        )


def _required(name: str) -> str:
    found = program(name)
    if found is None:
        raise FileNotFoundError(HINT)
    return found
