"""Push, fetch and acknowledge jobs over HTTP, and print what it costs.

    python -m benchmarks.http_jobs [--connections 16] [--jobs 100000] [--memory] [--database sqlite|URL] [--only NAME]

Starts `waybill serve` with a broker in its process, on a disk with fsync unless `--memory` is given. `ojsload`, a
program in C (benchmarks/tools), is the client; the CPU is that of the server, broker included. The latencies and the
idle long polls are measured from here.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

LOAD: Final = Path(__file__).parent / "tools" / "ojsload"
JOB: Final = json.dumps(
    {"type": "bench.email.send", "args": [{"to": "user@example.com", "n": 1}], "options": {"queue": "paced"}}
).encode()
POLL: Final = json.dumps({"queues": ["idle"], "worker_id": "w", "wait_ms": 60_000}).encode()


@contextmanager
def server(database: str | None, *, memory: bool) -> Iterator[tuple[int, int]]:
    """Start a server; its port and its process."""
    with tempfile.TemporaryDirectory(prefix="waybill-http-") as directory:
        where = ["--memory"] if memory else ["--data-dir", directory]
        if database is not None:
            where += ["--database", f"{directory}/jobs.db" if database == "sqlite" else database]
        command = [sys.executable, "-m", "waybill", "serve", "--port", "0", *where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                if process.stdout is None:
                    raise RuntimeError("the server has no output")
                port = int(process.stdout.readline().rpartition(":")[2])
                yield port, process.pid
            finally:
                process.terminate()
                process.wait()


def load(port: int, pid: int, mode: str, connections: int, count: int, queue: str) -> str:
    """Run the load generator; its line."""
    command = [LOAD, "127.0.0.1", port, mode, connections, count, queue, pid]
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


def post(path: str, body: bytes) -> bytes:
    """A request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


async def paced(port: int, rate: int, seconds: int) -> str:
    """Enqueue at a rate, one job a request; the percentiles of the latency."""
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(64):
        idle.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    found: list[float] = []
    request = post("/ojs/v1/jobs", JOB)

    async def one(due: float) -> None:
        reader, writer = await idle.get()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        found.append(time.perf_counter() - due)
        idle.put_nowait((reader, writer))

    tasks = []
    began = time.perf_counter()
    for index in range(rate * seconds):
        due = began + index / rate
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.ensure_future(one(time.perf_counter())))
    await asyncio.gather(*tasks)
    found.sort()
    p50, p99, most = (found[int(len(found) * share)] * 1000 for share in (0.5, 0.99, 0.999))
    return f"{rate}/s for {seconds} s: p50={p50:.2f}ms p99={p99:.2f}ms p99.9={most:.2f}ms"


def resident(pid: int) -> int:
    """The resident set of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def polls(port: int, pid: int, count: int) -> str:
    """Let so many fetches wait; what each costs in memory."""
    open_now = []
    request = post("/ojs/v1/workers/fetch", POLL)
    first = await asyncio.open_connection("127.0.0.1", port)
    first[1].write(request)
    await asyncio.sleep(1)
    before = resident(pid)
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        open_now.append((reader, writer))
    await asyncio.sleep(3)
    each = (resident(pid) - before) / count / 1024
    for _, writer in (first, *open_now):
        writer.close()
    return f"{count} idle long polls: {each:.1f} KiB each"


@click.command()
@click.option("--connections", default=16, show_default=True)
@click.option("--jobs", default=60_000, show_default=True)
@click.option("--polls", "poll_count", default=10_000, show_default=True)
@click.option("--memory", is_flag=True, help="Without a disk.")
@click.option("--database", help="Where the state of jobs is kept: sqlite, or the URL of an empty PostgreSQL database.")
@click.option("--only", help="enqueue, batch, cycle, paced or polls.")
def main(connections: int, jobs: int, poll_count: int, *, memory: bool, database: str | None, only: str | None) -> None:
    """Measure everything, and print a line for each."""
    from waybill.transport.descriptors import raise_descriptor_limit  # noqa: PLC0415 - of the package that is measured

    raise_descriptor_limit()
    subprocess.run([sys.executable, "-m", "waybill", "--version"], check=True)
    click.echo(f"load average {os.getloadavg()[0]:.1f}")
    with server(database, memory=memory) as (port, pid):
        for name, mode, count, queue in (
            ("enqueue", "enq", jobs, "single"),
            ("batch", "batch:100", jobs * 2, "batch"),
            ("cycle", "cycle:10", jobs, "single"),
        ):
            if only in {None, name} or (only == "cycle" and name == "enqueue"):
                click.echo(load(port, pid, mode, connections, count, queue))
        if only in {None, "paced"}:
            click.echo(asyncio.run(paced(port, 1000, 10)))
        if only in {None, "polls"}:
            click.echo(asyncio.run(polls(port, pid, poll_count)))
    click.echo(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
