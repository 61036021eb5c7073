"""Measure pushes from one thread without an event loop, one after the other, each with its confirm.

    python -m benchmarks.sync_pushes [--built DIRECTORY] [--before DIRECTORY]

Each round measures the disk first, with a loop of `write` and `fdatasync` of as many octets as a push stores, and then
the pushes, on Waybill's broker with the same disk, and in memory. `--before` takes turns with another version. On a
busy machine the medians say more than the rates, and CPU more than both.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from benchmarks.contenders import REPOSITORY, UnavailableError, build_compiled
from benchmarks.worker import cpu_seconds

OCTETS: Final = 1500
WARM_UP: Final = 50


def main_of_pusher(uri: str, count: int, broker_pid: int) -> None:
    """Push, and print one line of JSON."""
    from waybill.cli.garbage_collection import collect_rarely  # noqa: PLC0415 - of the pusher's process only
    from waybill.ojs import Jobs  # noqa: PLC0415 - see above

    collect_rarely()
    jobs = Jobs(uri)

    @jobs.handler("bench.noop", queue="sync-pushes")
    async def noop(number: int) -> None: ...

    for number in range(WARM_UP):
        noop.push_sync(number)
    latencies: list[float] = []
    used, used_by_broker, began = time.process_time(), cpu_seconds(broker_pid), time.perf_counter()
    for number in range(count):
        started = time.perf_counter()
        noop.push_sync(number)
        latencies.append(time.perf_counter() - started)
    figures = {
        "rate": count / (time.perf_counter() - began),
        "p50_ms": statistics.median(latencies) * 1000,
        "client_us": (time.process_time() - used) / count * 1e6,
        "broker_us": (cpu_seconds(broker_pid) - used_by_broker) / count * 1e6,
    }
    jobs.sync.close()
    print(json.dumps(figures), flush=True)


def measure_disk(directory: Path, count: int) -> tuple[float, float]:
    """Return writes a second, and the median of one in milliseconds."""
    path = directory / "loop"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    data = os.urandom(OCTETS)
    seconds: list[float] = []
    for _ in range(count):
        began = time.perf_counter()
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        seconds.append(time.perf_counter() - began)
    os.close(descriptor)
    path.unlink()
    return count / sum(seconds), statistics.median(seconds) * 1000


def measure_pushes(package: Path, options: list[str], count: int) -> dict[str, float]:
    """Start a broker, and push. Raises UnavailableError."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(REPOSITORY)])}
    command = [sys.executable, "-m", "waybill", "broker", "--port", "0", *options]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        if broker.stdout is None or not (line := broker.stdout.readline()).startswith("ready "):
            raise UnavailableError("the broker did not start")
        port = line.split()[1].removeprefix("amqp://").partition(":")[2].partition("/")[0]
        uri = f"amqp://guest:guest@127.0.0.1:{port}/%2Fojs"
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.sync_pushes", "push", uri, str(count), str(broker.pid)],
            env=environment,
            capture_output=True,
            text=True,
            cwd=REPOSITORY,
            check=False,
        )
        broker.terminate()
    if done.returncode != 0:
        raise UnavailableError(done.stderr.strip()[-500:])
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@click.command(help=__doc__)
@click.option("--count", default=5000, show_default=True, help="Pushes of a round.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--built", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Waybill, compiled.")
@click.option("--before", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another version.")
def main(*, count: int, rounds: int, built: Path | None, before: Path | None) -> None:
    versions = {"now": (built or build_compiled()).resolve()}
    if before is not None:
        versions = {"before": before.resolve()} | versions
    for number in range(1, rounds + 1):
        with tempfile.TemporaryDirectory(prefix="waybill-bench-") as name:
            rate, median = measure_disk(Path(name), count)
            print(f"round {number}: write and fdatasync alone {rate:,.0f}/s, median {median:.3f} ms", flush=True)
            for version, package in versions.items():
                disk = ["--data-dir", str(Path(name) / version)]
                for place, options in (("disk", disk), ("memory", ["--memory"])):
                    found = measure_pushes(package, options, count)
                    print(
                        f"  {version:<6} {place:<6} {found['rate']:>6,.0f}/s  median {found['p50_ms']:.3f} ms  "
                        f"CPU us/push: client {found['client_us']:.0f}, broker {found['broker_us']:.0f}",
                        flush=True,
                    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["push"]:
        main_of_pusher(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
