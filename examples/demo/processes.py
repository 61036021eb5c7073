"""The processes that the demo starts: they are ended by their own id, whatever happens."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0

# Below the ports that the system gives to outgoing connections: while the broker is away, nobody else gets its port.
_PORTS: Final = range(20_000, 30_000)
_PORT_TRIES: Final = 100


class ProcessFailed(RuntimeError):
    """A process did not start, or ended on its own; the message says where its log is."""


class BrokerProcess:
    """`waybill broker` in a process of its own, which can be killed and started again in the same place."""

    def __init__(self, directory: Path, log: Path) -> None:
        """Keep messages in `directory`, write what the broker logs to `log`."""
        self.port = _free_port()
        self.kills = 0
        self._directory = directory
        self._log = log
        self._process: Process | None = None

    @property
    def uri(self) -> str:
        """Where the jobs are."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2Fojs"

    @property
    def pid(self) -> int | None:
        """The process id, None while the broker is down."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def start(self) -> float:
        """Start the broker and return after how many seconds it accepts connections. Raises ProcessFailed."""
        began = asyncio.get_running_loop().time()
        arguments = ("broker", "--port", str(self.port), "--data-dir", str(self._directory))
        self._process = process = await _spawn(("waybill", *arguments), self._log, output=PIPE)
        if process.stdout is None:
            raise ProcessFailed("the broker has no standard output")
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            raise ProcessFailed(f"the broker did not start: see {self._log}")
        return asyncio.get_running_loop().time() - began

    async def kill(self) -> None:
        """End the broker as a power cut would: it gets no chance to write anything."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
            self.kills += 1

    async def stop(self) -> None:
        """End the broker in an orderly way."""
        if self._process is not None:
            await stop(self._process)


@asynccontextmanager
async def running_worker(uri: str, notebook: Path, log: Path) -> AsyncGenerator[Process, None]:
    """A worker process that is there inside of the context, and has ended after it."""
    process = await _spawn(("examples.demo.worker", uri, str(notebook)), log)
    try:
        yield process
    finally:
        await stop(process)


@asynccontextmanager
async def running_dashboard(uri: str, log: Path) -> AsyncGenerator[str, None]:
    """`waybill serve` on this broker: yields the address of its dashboard. Raises ProcessFailed."""
    process = await _spawn(("waybill", "serve", "--uri", uri, "--port", "0"), log, output=PIPE)
    try:
        if process.stdout is None:
            raise ProcessFailed("the server has no standard output")
        try:
            async with asyncio.timeout(START_SECONDS):
                line = (await process.stdout.readline()).decode()
        except TimeoutError:
            line = ""
        if not line.startswith("ready "):
            raise ProcessFailed(f"the dashboard did not start: see {log}")
        yield f"{line.removeprefix('ready ').strip()}/"
    finally:
        await stop(process)


async def run_report(uri: str, data: Path, page: Path, totals: Path) -> int:
    """Run the pipeline and its report in a process that writes to this terminal; return its exit code."""
    process = await _spawn(("examples.demo.report", uri, str(data), str(page), str(totals)), None)
    try:
        return await process.wait()
    finally:
        # Java is a child of that process, in the same group, which this program has made for them.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await stop(process)


async def stop(process: Process) -> None:
    """End a process that this program has started, and wait for its end."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _spawn(module: tuple[str, ...], log: Path | None, output: int | None = None) -> Process:
    """Start a Python module, in a session of its own: Ctrl-C reaches this program only, which ends the others."""
    command = (sys.executable, "-m", *module)
    if log is None:
        return await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, stdin=DEVNULL, start_new_session=True)
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *command, cwd=REPOSITORY, stdin=DEVNULL, stdout=output or file, stderr=file, start_new_session=True
        )


def _free_port() -> int:
    random = SystemRandom()
    for _ in range(_PORT_TRIES):
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ProcessFailed("no free port")
