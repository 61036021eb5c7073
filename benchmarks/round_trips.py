"""Measure results: how many jobs a second are pushed, run and answered, and how long one takes.

    python -m benchmarks.round_trips [--built DIRECTORY] [--json FILE]

One process pushes no-op jobs, a fixed number at a time, and awaits the result of each; another process runs them. Then
the same with results off, where the pusher does not wait for the end of a job: the difference is what results cost the
worker. One by one, the latency is that of the push and the result; the handler's own time is negligible. First on
Waybill's broker, then on Debian's RabbitMQ.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
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
from benchmarks.worker import cpu_seconds

Row = dict[str, float]
QUEUE: Final = "round-trips"
JOB_TYPE: Final = "bench.echo"
CONCURRENCY: Final = 100
PREFETCH: Final = 2000
RUN_TIMEOUT_S: Final = 600


def main_of_worker(uri: str) -> None:
    """Run the jobs until standard input ends."""
    from waybill.cli.garbage_collection import collect_rarely  # noqa: PLC0415 - of the worker's process only
    from waybill.ojs import Jobs, Worker  # noqa: PLC0415 - see above
    from waybill.transport.loop import run  # noqa: PLC0415 - see above

    jobs = Jobs(uri)

    @jobs.handler(JOB_TYPE, queue=QUEUE)
    async def echo(number: int) -> int:
        return number

    async def work() -> None:
        collect_rarely()
        async with Worker(jobs, queues=[QUEUE], concurrency=CONCURRENCY, prefetch=PREFETCH):
            print("ready", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    run(work())


def main_of_pusher(uri: str, count: int, under_way: int, *, results: bool) -> None:
    """Push, await, and print one line of JSON."""
    from waybill.cli.garbage_collection import collect_rarely  # noqa: PLC0415 - of the pusher's process only
    from waybill.ojs import Jobs  # noqa: PLC0415 - see above
    from waybill.transport.loop import run  # noqa: PLC0415 - see above

    jobs = Jobs(uri, results=results)

    @jobs.handler(JOB_TYPE, queue=QUEUE)
    async def echo(number: int) -> int:
        return number

    latencies: list[float] = []
    pushes: list[float] = []

    async def trips(numbers: list[int]) -> None:
        while numbers:
            number = numbers.pop()
            began = time.perf_counter()
            job = await echo.push(number)
            pushes.append(time.perf_counter() - began)
            if results:
                assert await job.result(60) == number  # noqa: S101 - a benchmark of what does not work is of no use
            latencies.append(time.perf_counter() - began)

    async def push() -> None:
        collect_rarely()
        async with jobs:
            await trips(list(range(min(count, 200))))
            latencies.clear()
            pushes.clear()
            numbers = list(range(count))
            began, used = time.perf_counter(), time.process_time()
            await asyncio.gather(*(trips(numbers) for _ in range(under_way)))
            figures = {
                "count": count,
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - used,
                "p50_ms": statistics.median(latencies) * 1000,
                "push_p50_ms": statistics.median(pushes) * 1000,
            }
        print(json.dumps(figures), flush=True)

    run(push())


def measure(uri: str, environment: dict[str, str], count: int, under_way: int, *, results: bool) -> Row:
    """Run a worker and a pusher; returns the figures of the pusher and the worker's CPU."""
    command = [sys.executable, "-m", "benchmarks.round_trips"]
    with subprocess.Popen(
        [*command, "work", uri], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as worker:
        if worker.stdout is None or worker.stdin is None or not worker.stdout.readline():
            raise UnavailableError("the worker did not start")
        used = cpu_seconds(worker.pid)
        arguments = ["push", uri, str(count), str(under_way), "on" if results else "off"]
        done = subprocess.run(
            [*command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise UnavailableError(done.stderr.strip()[-500:])
        row: Row = json.loads(done.stdout)
        if not results:
            # Nobody waits for the jobs: let the worker end them.
            time.sleep(2)
        row["worker_cpu_us"] = (cpu_seconds(worker.pid) - used) / count * 1e6
        worker.stdin.close()
    return row


def report(name: str, what: str, row: Row) -> str:
    """One line of the table."""
    rate = row["count"] / row["seconds"]
    return (
        f"{name:<10} {what:<28} {rate:>8,.0f}/s  p50 {row['p50_ms']:7.2f} ms (push {row['push_p50_ms']:.2f} ms)  "
        f"CPU us/job: worker {row['worker_cpu_us']:5.1f}, pusher {row['cpu_seconds'] / row['count'] * 1e6:5.1f}"
    )


@click.command(help=__doc__)
@click.option("--count", default=40_000, show_default=True, help="Jobs of a run with many under way.")
@click.option("--under-way", default=500, show_default=True, help="How many.")
@click.option("--one-by-one", default=1000, show_default=True, help="Jobs of a run with one under way.")
@click.option("--rabbitmq/--no-rabbitmq", default=True, help="Measure on RabbitMQ too.")
@click.option("--built", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Waybill, compiled.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
def main(
    *, count: int, under_way: int, one_by_one: int, rabbitmq: bool, built: Path | None, json_path: Path | None
) -> None:
    package = (built or build_compiled()).resolve()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(REPOSITORY)])}
    contenders: list[Contender] = [WaybillContender(compiled=True, package=package)]
    contenders += [RabbitMQContender()] if rabbitmq else []
    rows: dict[str, Row] = {}
    for contender in contenders:
        contender.prepare()
        contender.start()
        try:
            uri = f"amqp://guest:guest@127.0.0.1:{contender.port}/%2Fojs"
            name = "Waybill" if isinstance(contender, WaybillContender) else "RabbitMQ"
            for what, jobs, at_once, results in (
                (f"{under_way} under way", count, under_way, True),
                (f"{under_way} under way, results off", count, under_way, False),
                ("one by one", one_by_one, 1, True),
            ):
                row = rows[f"{name}, {what}"] = measure(uri, environment, jobs, at_once, results=results)
                print(report(name, what, row))
        finally:
            contender.stop()
    if json_path is not None:
        json_path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        main_of_worker(sys.argv[2])
    elif sys.argv[1:2] == ["push"]:
        main_of_pusher(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), results=sys.argv[5] == "on")
    else:
        main()
