"""Measure a worker: from its start to its first job, memory at rest, and memory over very many jobs.

    python -m benchmarks.worker [--jobs N] [--coordinator] [--starts-only] [--uri amqp://...]

On Waybill's own broker, or the one at --uri, with events on. The worker is `waybill worker` as users start it. On a
busy machine, trust the CPU times. Exits with 1 if memory grows too much between the second fifth of the jobs and the
last. The first fifth fills what a worker keeps on purpose, such as the attempts that it would recognise.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import click

from benchmarks.contenders import own_broker
from waybill.client import Inspector, connect
from waybill.ojs import Jobs
from waybill.transport.loop import run

QUEUE: Final = "soak"
BATCH: Final = 2000
BACKLOG: Final = 10_000
SAMPLES: Final = 20
GROWTH_MB: Final = 5.0
START_ROUNDS: Final = 20
START_GOAL_S: Final = 0.3

PROGRAM: Final = """
import os
from waybill import Jobs

jobs = Jobs(os.environ["SOAK_URI"])
first = os.environ.get("SOAK_FIRST")


@jobs.handler("soak.noop", queue="soak")
async def noop(number: int) -> None:
    if first and number == 0:
        os.write(int(first), b"x")
"""


Worker = subprocess.Popen[bytes]


@contextmanager
def worker(uri: str, directory: Path, options: Sequence[str], first: int | None = None) -> Iterator[Worker]:
    """`waybill worker` for the program above; it writes an octet to `first` when it runs job 0."""
    environment = os.environ | {"SOAK_URI": uri, **({} if first is None else {"SOAK_FIRST": str(first)})}
    command = [sys.executable, "-m", "waybill", "worker", "program:jobs", "--concurrency", "100", "--prefetch", "1000"]
    command += options
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=() if first is None else (first,),
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident size of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure_start(uri: str, directory: Path, options: Sequence[str]) -> tuple[float, float]:
    """Seconds and CPU seconds from the start of the process to the first job, which is already waiting."""
    read, write = os.pipe()
    run(push_one(uri))
    started = time.perf_counter()
    with worker(uri, directory, options, write) as process:
        os.read(read, 1)
        elapsed, used = time.perf_counter() - started, cpu_seconds(process.pid)
    os.close(read)
    os.close(write)
    return elapsed, used


def measure_rest(uri: str, directory: Path, options: Sequence[str]) -> float:
    """MB of an idle worker, two seconds after its start."""
    with worker(uri, directory, options) as process:
        time.sleep(2)
        return resident_mb(process.pid)


async def push_one(uri: str) -> None:
    """Put job 0 into the queue."""
    async with Jobs(uri) as jobs:
        await jobs.push("soak.noop", [0], queue=QUEUE)


async def soak(uri: str, pid: int, count: int) -> list[float]:
    """Push jobs as the worker runs them; returns the worker's MB after each twentieth of them."""
    sizes: list[float] = []
    async with Jobs(uri) as jobs, connect(uri) as connection:
        inspector = Inspector(connection)
        template = jobs.handler("soak.noop", queue=QUEUE)(_noop)
        for pushed in range(0, count, BATCH):
            await jobs.push_many([template.job(number + 1) for number in range(pushed, pushed + BATCH)])
            await wait_for_depth(inspector, BACKLOG)
            if (pushed + BATCH) * SAMPLES // count > len(sizes):
                sizes.append(resident_mb(pid))
                click.echo(f"{pushed + BATCH:>10,} jobs {sizes[-1]:7.1f} MB")
        await wait_for_depth(inspector, 0)
    return sizes


async def wait_for_depth(inspector: Inspector, most: int) -> None:
    """Wait until no more jobs wait than this."""
    while True:
        found = await inspector.queue(f"ojs.queue.{QUEUE}")
        if found is None or found.message_count <= most:
            return
        await asyncio.sleep(0.05)


def _noop(number: int) -> None:
    """Stand in for the worker's handler."""


@click.command()
@click.option("--jobs", "count", default=1_000_000, show_default=True, type=click.IntRange(min=500_000), help="Jobs.")
@click.option("--coordinator", is_flag=True, help="Run one in the worker, with the state of all jobs in memory.")
@click.option("--starts-only", is_flag=True, help="Measure the start, and nothing else.")
@click.option("--uri", "other", help="A broker that runs already, with a virtual host of its own for this.")
def command(count: int, other: str | None, *, coordinator: bool, starts_only: bool) -> None:
    """Measure start, rest and growth of a worker."""
    options = ["--coordinator"] if coordinator else []
    broker = own_broker("--memory") if other is None else nullcontext(other)
    with tempfile.TemporaryDirectory() as name, broker as uri:
        directory = Path(name)
        (directory / "program.py").write_text(PROGRAM, encoding="utf-8")
        starts = [measure_start(uri, directory, options) for _ in range(START_ROUNDS)]
        elapsed, used = (sorted(column) for column in zip(*starts, strict=True))
        click.echo(
            f"start to first job {statistics.median(elapsed):.3f} s, {elapsed[0]:.3f} to {elapsed[-1]:.3f} s, "
            f"{sum(one < START_GOAL_S for one in elapsed)} of {START_ROUNDS} below {START_GOAL_S:g} s; "
            f"{statistics.median(used):.2f} s of CPU"
        )
        if starts_only:
            return
        click.echo(f"{measure_rest(uri, directory, options):.1f} MB at rest")
        with worker(uri, directory, options) as process:
            began = time.perf_counter()
            sizes = run(soak(uri, process.pid, count))
            click.echo(f"{count / (time.perf_counter() - began):,.0f} jobs/s")
    fifth = len(sizes) // 5
    # Medians: a moment in which much is under way is no growth.
    growth = statistics.median(sizes[-fifth:]) - statistics.median(sizes[fifth : 2 * fifth])
    click.echo(f"grown by {growth:.1f} MB from the second fifth to the last, {GROWTH_MB:g} MB are allowed")
    if growth > GROWTH_MB:
        sys.exit(1)


if __name__ == "__main__":
    command()
