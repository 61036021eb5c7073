"""Measure a chain, a group and a chord, with a worker and a coordinator in other processes.

    PYTHONPATH=src .venv/bin/python -m benchmarks.workflows [--broker waybill|rabbitmq] [--chain 1000] ...

Prints seconds, and CPU seconds and peak memory of the coordinator and the worker.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from waybill.ojs import Coordinator, Jobs, Shape, Worker, chain, chord, group, parent_results

QUEUE = "bench"
TICKS = os.sysconf("SC_CLK_TCK")


class Application:
    """The jobs of the benchmark: one that returns nothing, one that returns a number, and one that adds up."""

    def __init__(self, uri: str) -> None:
        self.jobs = jobs = Jobs(uri)

        @jobs.handler("bench.nothing", queue=QUEUE)
        async def nothing() -> None: ...

        @jobs.handler("bench.number", queue=QUEUE)
        async def number(value: int) -> int:
            return value

        @jobs.handler("bench.total", queue=QUEUE)
        async def total() -> int:
            return sum(parent_results(number))

        self.nothing, self.number, self.total = nothing, number, total


async def serve(role: str, uri: str) -> None:
    """Run as the worker or the coordinator until standard input ends."""
    jobs = Application(uri).jobs
    part = Worker(jobs, queues=[QUEUE], concurrency=100) if role == "worker" else Coordinator(jobs, queues=[QUEUE])
    async with part:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def usage(process: subprocess.Popen[str]) -> tuple[float, float]:
    """CPU seconds so far, and peak memory in MB."""
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / TICKS, int(peak.split()[1]) / 1024


async def measure(uri: str, arguments: argparse.Namespace, processes: dict[str, subprocess.Popen[str]]) -> None:
    """Run each workflow once, and print the figures."""
    application = Application(uri)
    jobs, nothing, number, total = application.jobs, application.nothing, application.number, application.total
    shapes: dict[str, Callable[[], Shape[Any]]] = {
        f"chain of {arguments.chain}": lambda: chain(*(nothing.job() for _ in range(arguments.chain))),
        f"group of {arguments.group}": lambda: group(nothing.job() for _ in range(arguments.group)),
        f"chord of {arguments.chord}": lambda: chord((number.job(n) for n in range(arguments.chord)), total.job()),
    }
    async with jobs:
        await (await chain(nothing.job(), nothing.job()).push(jobs)).wait(timeout=60)
        for name, make in shapes.items():
            before = {role: usage(process) for role, process in processes.items()}
            start = time.perf_counter()
            handle = await make().push(jobs)
            pushed = time.perf_counter() - start
            info = await handle.wait(timeout=3600)
            took = time.perf_counter() - start
            parts = []
            for role, process in processes.items():
                cpu, peak = usage(process)
                parts.append(f"{role} {cpu - before[role][0]:.2f} s CPU, {peak:.0f} MB")
            own = resource.getrusage(resource.RUSAGE_SELF)
            print(f"{name}: {info.state} in {took:.2f} s, pushed in {pushed:.2f} s; {'; '.join(parts)}; "
                  f"pusher {own.ru_maxrss / 1024:.0f} MB", flush=True)  # fmt: skip


def main() -> None:
    """Start the processes, measure, and end them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", choices=["waybill", "rabbitmq"], default="waybill")
    parser.add_argument("--chain", type=int, default=1000)
    parser.add_argument("--group", type=int, default=100_000)
    parser.add_argument("--chord", type=int, default=1000)
    parser.add_argument("--serve", nargs=2, metavar=("ROLE", "URI"))
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(*arguments.serve))
        return
    with ExitStack() as stack:
        if arguments.broker == "rabbitmq":
            from tests.rabbitmq import RabbitMQ  # noqa: PLC0415 - only this one needs it

            uri = stack.enter_context(RabbitMQ()).uri("/ojs")
        else:
            command = [sys.executable, "-m", "waybill", "broker", "--port", "0", "--memory"]
            broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(broker.wait)
            stack.callback(broker.terminate)
            uri = broker.stdout.readline().split()[1] if broker.stdout else ""
        processes = {}
        for role in ("coordinator", "worker"):
            command = [sys.executable, "-m", "benchmarks.workflows", "--serve", role, uri]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            if process.stdin is not None and process.stdout is not None:
                stack.callback(process.stdin.close)
                process.stdout.readline()
            processes[role] = process
        asyncio.run(measure(uri, arguments, processes))


if __name__ == "__main__":
    main()
