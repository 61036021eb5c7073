"""A chord beside Celery's: so many jobs that return a number, then one that adds them up.

    python -m benchmarks.chords [--count 1000] [--rounds 3] [--built DIRECTORY]

Celery on Debian's RabbitMQ with Debian's Redis for its results, which chords need; Waybill on the same RabbitMQ, and on
its own broker, with a coordinator instead of Redis. One worker process each, in turns, a fresh broker each time. CPU is
that of all processes but the broker: pusher, worker, and Redis or the coordinator.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from benchmarks.contenders import (
    REPOSITORY,
    Contender,
    RabbitMQContender,
    UnavailableError,
    WaybillContender,
    build_compiled,
)
from benchmarks.jobs import make_peers_environment
from benchmarks.worker import cpu_seconds
from tests.rabbitmq import free_port

RUN_TIMEOUT_S: Final = 600
REDIS_HINT: Final = "Celery's chords need Redis: apt-get install redis-server"

Row = dict[str, float]


@dataclass
class Side:
    """One program on one broker. `parts` are the processes beside the pusher."""

    name: str
    program: str
    contender: Contender
    python: Path
    environment: dict[str, str]
    parts: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)


@contextmanager
def redis() -> Iterator[tuple[str, int]]:
    """A Redis in memory; gives its URI and its process id."""
    program = shutil.which("redis-server")
    if program is None:
        raise UnavailableError(REDIS_HINT)
    port = free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            if re.search("ready to accept connections", line, re.IGNORECASE):
                break
        try:
            yield f"redis://127.0.0.1:{port}/0", process.pid
        finally:
            process.terminate()


def measure(side: Side, results: str, redis_pid: int, count: int) -> None:
    """Start a broker and what works there, run the chord, and keep its figures."""
    side.contender.start()
    try:
        with ExitStack() as stack:
            uri = f"amqp://guest:guest@127.0.0.1:{side.contender.port}/%2Fojs"
            command = [str(side.python), "-m", f"benchmarks.peers.{side.program}"]
            arguments = [uri, results, str(count)]
            pids = [redis_pid] if side.program == "celery_chord" else []
            for part in side.parts:
                process = subprocess.Popen(
                    [*command, part, *arguments], env=side.environment, cwd=REPOSITORY, stdout=subprocess.PIPE
                )
                stack.callback(process.wait)
                stack.callback(process.terminate)
                pids.append(process.pid)
                if process.stdout is not None and side.program != "celery_chord":
                    process.stdout.readline()
            before = sum(map(cpu_seconds, pids))
            done = subprocess.run(
                [*command, "push", *arguments],
                env=side.environment,
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise UnavailableError(f"{side.name}: {done.stderr.strip()[-1000:]}")
            row: Row = json.loads(done.stdout)
            row["cpu"] = row["pusher_cpu"] + sum(map(cpu_seconds, pids)) - before
            side.rows.append(row)
    finally:
        side.contender.stop()


def report(side: Side, count: int) -> str:
    """One line of the table."""
    seconds, pushed, cpu = (
        statistics.median(row[key] for row in side.rows) for key in ("seconds", "push_seconds", "cpu")
    )
    return f"{side.name:<24} {seconds:7.2f} s, pushed in {pushed:5.2f} s, CPU {cpu / count * 1e3:6.2f} ms a job"


@click.command(help=__doc__)
@click.option("--count", default=1000, show_default=True, help="Jobs of the chord.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--built", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Waybill, compiled.")
def main(*, count: int, rounds: int, built: Path | None) -> None:
    package = (built or build_compiled()).resolve()
    peers, versions = make_peers_environment()
    ours = Path(sys.executable)
    # Celery warns of a worker that root runs.
    theirs = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "ignore"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(REPOSITORY)])}
    rabbitmq, own = RabbitMQContender(), WaybillContender(compiled=True, package=package)
    parts = ("coordinate", "work")
    sides = [
        Side("Celery, RabbitMQ, Redis", "celery_chord", rabbitmq, peers, theirs, ("work",)),
        Side("Waybill, RabbitMQ", "waybill_chord", rabbitmq, ours, environment, parts),
        Side("Waybill, own broker", "waybill_chord", own, ours, environment, parts),
    ]
    for contender in (rabbitmq, own):
        print(contender.prepare())
    print(f"Celery {versions.get('celery')}, a chord of {count}, medians of {rounds} round(s)")
    with redis() as (results, redis_pid):
        for _ in range(rounds):
            for side in sides:
                measure(side, results, redis_pid, count)
    for side in sides:
        print(report(side, count))


if __name__ == "__main__":
    main()
