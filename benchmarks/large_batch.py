"""Push a batch of a million jobs, and watch the memory of all who take part in it.

    PYTHONPATH=build/installed .venv/bin/python -m benchmarks.large_batch [--jobs 1000000] [--database FILE]

A program pushes a batch of no-op jobs from a generator; a worker runs them, a coordinator follows, and enqueues the
callback in the end. Each is a process of its own. Prints the resident memory of each in MB, by how many jobs are pushed
and done, and CPU seconds. With `--late-worker` nobody works until all jobs are in their queue. Ends with status 1 if
the pusher or the coordinator has grown by more than `--limit` MB between a tenth and the end of the work: a coordinator
in memory remembers the last 50,000 jobs that have ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from waybill.cli.garbage_collection import collect_rarely
from waybill.ojs import Coordinator, Jobs, NewJob, Worker, WorkflowHandle, batch, new_workflow_id

QUEUE: Final = "large-batch"
TICKS: Final = os.sysconf("SC_CLK_TCK")
STEPS: Final = 10


def application(uri: str) -> Jobs:
    """The jobs of the benchmark: one that does nothing, and the callback."""
    jobs = Jobs(uri)

    @jobs.handler("large.nothing", queue=QUEUE)
    async def nothing() -> None: ...

    @jobs.handler("large.over", queue=QUEUE)
    async def over() -> None: ...

    return jobs


async def serve(role: str, uri: str, database: str) -> None:
    """Run as the worker or the coordinator until standard input ends."""
    collect_rarely()
    jobs = application(uri)
    part: Worker | Coordinator = Coordinator(jobs, queues=[QUEUE], database=database)
    if role == "worker":
        part = Worker(jobs, queues=[QUEUE], concurrency=100, prefetch=2000)
    async with part:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def push(uri: str, workflow_id: str, count: int) -> None:
    """Push the batch, saying now and then how far it is; then stay until standard input ends."""
    collect_rarely()

    def parts() -> Iterator[NewJob]:
        template = NewJob("large.nothing", [], {"queue": QUEUE})
        for number in range(count):
            if number % (count // STEPS) == 0:
                print(number, flush=True)
            yield template

    async with application(uri) as jobs:
        await batch(parts(), on_complete=NewJob("large.over", [], {"queue": QUEUE})).push(jobs, id=workflow_id)
        print("pushed", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def usage(process: subprocess.Popen[str]) -> tuple[float, float]:
    """Resident memory in MB, and CPU seconds so far."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(resident.split()[1]) / 1024, (int(fields[11]) + int(fields[12])) / TICKS


class House:
    """The processes, and what was seen of them."""

    def __init__(self, stack: ExitStack, uri: str) -> None:
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.seen: list[dict[str, float]] = []
        self._stack = stack
        self._uri = uri

    def start(self, role: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a process of this program."""
        command = [sys.executable, "-m", "benchmarks.large_batch", "--serve", role, self._uri, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        if process.stdin is not None:
            self._stack.callback(process.stdin.close)
        self.processes[role] = process
        return process

    def look(self, what: str) -> None:
        """Print the memory of each process."""
        found = {role: usage(process)[0] for role, process in self.processes.items()}
        self.seen.append(found)
        print(f"{what:>22}  " + "  ".join(f"{role} {size:6.1f} MB" for role, size in found.items()), flush=True)


async def follow(house: House, uri: str, workflow_id: str, count: int) -> None:
    """Look at all processes each time another tenth of the jobs is done."""
    async with application(uri) as jobs:
        handle = WorkflowHandle[Any](jobs, workflow_id)
        tenth = 1
        while True:
            info = await handle.info(timeout=120)
            if info.metadata.completed_count * STEPS >= tenth * count:
                house.look(f"{info.metadata.completed_count} done")
                tenth = info.metadata.completed_count * STEPS // count + 1
            if info.is_over:
                print(f"the batch is {info.state}: {info.metadata.completed_count} jobs done, with the callback")
                return
            await asyncio.sleep(0.2)


def run(arguments: argparse.Namespace) -> bool:
    """Measure; return whether memory has stayed flat."""
    count, workflow_id = arguments.jobs, new_workflow_id()
    with ExitStack() as stack:
        command = [sys.executable, "-m", "waybill", "broker", "--port", "0", "--memory"]
        if arguments.data:
            command = [*command[:-1], "--data-dir", arguments.data]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(broker.wait)
        stack.callback(broker.terminate)
        uri = broker.stdout.readline().split()[1] if broker.stdout else ""
        house = House(stack, uri)
        house.processes["broker"] = broker
        roles = ["coordinator"] if arguments.late_worker else ["coordinator", "worker"]
        for role in roles:
            process = house.start(role, arguments.database)
            if process.stdout is not None:
                process.stdout.readline()
        house.look("at rest")
        start = time.monotonic()
        pusher = house.start("pusher", workflow_id, str(count))
        for line in pusher.stdout or ():
            house.look("all pushed" if line == "pushed\n" else f"{line.strip()} pushed")
            if line == "pushed\n":
                break
        pushed = time.monotonic() - start
        if arguments.late_worker:
            house.start("worker", arguments.database)
        asyncio.run(follow(house, uri, workflow_id, count))
        took = time.monotonic() - start
        house.look("over")
        print(f"{count} jobs in {took:.1f} s, pushed in {pushed:.1f} s; CPU: " + ", ".join(
            f"{role} {usage(process)[1]:.1f} s" for role, process in house.processes.items()
        ))  # fmt: skip
    return is_flat(house.seen, arguments.limit)


def is_flat(seen: list[dict[str, float]], limit: float) -> bool:
    """Say whether the pusher and the coordinator have not grown by more than `limit` MB since the beginning."""
    flat = True
    for role in ("pusher", "coordinator"):
        sizes = [one[role] for one in seen if role in one][2:]
        growth = max(sizes) - sizes[0]
        print(f"{role}: {growth:+.1f} MB at most since the first tenth")
        flat = flat and growth <= limit
    return flat


def main() -> None:
    """Measure, or be one of the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--database", default=":memory:", help="of the coordinator")
    parser.add_argument("--data", default="", help="directory of the broker; in memory unless given")
    parser.add_argument("--late-worker", action="store_true", help="work when all is pushed")
    parser.add_argument("--limit", type=float, default=80.0, help="MB")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.serve:
        sys.exit(not run(arguments))
    role, uri, first, *rest = arguments.serve
    asyncio.run(push(uri, first, int(rest[0])) if role == "pusher" else serve(role, uri, first))


if __name__ == "__main__":
    main()
