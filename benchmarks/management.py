"""What operating a broker costs it: the CPU of a message with management, metrics and dashboard, against without.

    python -m benchmarks.management [--rounds 5] [--seconds 6] [--queues 5000] [--package DIRECTORY]

Three brokers run beside each other: bare, with the management API and its sampler, and `waybill up` with jobs and the
dashboard. Of the latter two, metrics are read every five seconds, and somebody looks at the broker's pages each second.
They take turns at each load, and then with thousands of queues. Each round starts them afresh: two processes of one
program differ by some per cent. The best of all rounds counts. At last, what each takes of a core without a load, when
nobody looks and when somebody does. The limit: 3 %. Ends with 1 if a load exceeds it.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from benchmarks.broker import TOOLS, build_tools
from benchmarks.contenders import COMMAND, REPOSITORY
from benchmarks.dashboard import share_of
from tests.rabbitmq import free_port
from waybill.client.blocking import connect

MOST: Final = 0.03
LOADS: Final = ("both-tnc-1k-a1", "both-pcc-1k-a1")
METRICS_SECONDS: Final = 5
SHARE_SECONDS: Final = 10

Found = dict[tuple[str, int], dict[str, list[float]]]
"""The microseconds of CPU for a message, by load and number of queues, and by broker."""


@dataclass
class Running:
    """A broker, and where it is operated, if it is."""

    name: str
    pid: int
    port: int
    url: str
    paths: tuple[str, ...]

    def look(self, seconds: int) -> None:
        """Look as operators do in one of many seconds."""
        for path in self.paths:
            self.ask(path)
        if self.paths and seconds % METRICS_SECONDS == 0:
            self.ask("/metrics/broker" if self.name == "up" else "/metrics")

    def ask(self, path: str) -> None:
        """Ask as a page does; guest may."""
        request = urllib.request.Request(f"{self.url}{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - our own server
            response.read()


MANAGEMENT_PAGES: Final = ("/api/overview", "/api/queues?page=1&page_size=50&sort=name")
UP_PAGES: Final = ("/ojs/v1/broker/overview", "/ojs/v1/broker/queues?page=1&page_size=50&sort=name")


@contextmanager
def started(name: str, package: Path, arguments: list[str], paths: tuple[str, ...]) -> Iterator[Running]:
    """Run a broker on a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="waybill-bench-") as directory:
        port = free_port()
        command = [sys.executable, "-c", COMMAND, *arguments, "--amqp-port", str(port), "--data-dir", directory]
        environment = {**os.environ, "PYTHONPATH": str(package)}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            try:
                url = ""
                for line in process.stdout or ():
                    if found := re.search(r"http://[^/]+", line):
                        url = url or found[0]
                    if "amqp://" in line:
                        break
                yield Running(name, process.pid, port, url, paths)
            finally:
                process.terminate()
                process.wait()


def look(running: Running, stop: threading.Event) -> None:
    """Look as operators do, until they are told to stop."""
    seconds = 0
    while not stop.wait(1.0):
        seconds += 1
        running.look(seconds)


def cpu_per_message(running: Running, load: str, seconds: float) -> float:
    """Return the microseconds of CPU that a broker takes for a message, with somebody looking."""
    stop = threading.Event()
    looking = threading.Thread(target=look, args=(running, stop))
    looking.start()
    try:
        command = [str(TOOLS / "amqpbench"), load, "--port", str(running.port), "--pid", str(running.pid)]
        done = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=True)
    finally:
        stop.set()
        looking.join()
    return float(json.loads(done.stdout)["broker_cpu_us_per_msg"])


def run_round(brokers: list[Running], seconds: float, queues: int, found: Found) -> None:
    """Run each load on each broker, one after the other."""
    for load in LOADS:
        for one in brokers:
            found.setdefault((load, queues), {}).setdefault(one.name, []).append(cpu_per_message(one, load, seconds))


def tell(found: Found) -> bool:
    """Print a line for each load; says whether the best of all are within the limit."""
    is_good = True
    click.echo("| load | queues | broker | best | median |\n|---|--:|---|--:|--:|")
    for (load, queues), by_name in found.items():
        bare = by_name["bare"]
        for name, values in by_name.items():
            best, middle = min(values), statistics.median(values)
            share = best / min(bare) - 1
            is_good &= share <= MOST
            more = "" if name == "bare" else f" ({100 * share:+.1f} %)"
            most = "" if name == "bare" else f" ({100 * (middle / statistics.median(bare) - 1):+.1f} %)"
            click.echo(f"| {load} | {queues} | {name} | {best:.2f} us{more} | {middle:.2f} us{most} |")
    return is_good


def tell_shares(brokers: list[Running], seconds: int) -> None:
    """Print what each takes of a core without a load."""
    for one in brokers:
        rest = share_of(one.pid, seconds, lambda: None)
        count = itertools.count(1)
        looked = share_of(one.pid, seconds, lambda one=one, count=count: one.look(next(count)))  # type: ignore[misc]
        click.echo(f"{one.name}: {100 * rest:.2f} % of a core at rest, {100 * looked:.2f} % looked at each second")


def declare(running: Running, count: int) -> None:
    """Make queues, each with a message."""
    with connect(f"amqp://guest:guest@127.0.0.1:{running.port}/") as connection, connection.channel() as channel:
        for number in range(count):
            channel.declare_queue(f"many-{number:05d}")
            channel.publish(b"x", routing_key=f"many-{number:05d}")


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="How long a turn takes.")
@click.option("--queues", default=5000, show_default=True)
@click.option("--package", type=click.Path(path_type=Path), default=REPOSITORY / "build" / "installed")
def main(rounds: int, seconds: float, queues: int, package: Path) -> None:
    """Measure everything, and print a line for each load and broker."""
    build_tools()
    kinds: list[tuple[str, list[str], tuple[str, ...]]] = [
        ("bare", ["broker", "--no-management"], ()),
        ("management", ["broker", "--management", "--management-port", "0"], MANAGEMENT_PAGES),
        ("up", ["up", "--port", "0"], UP_PAGES),
    ]
    found: Found = {}
    for number in range(rounds):
        with ExitStack() as stack:
            # Each is first as often as last.
            brokers = [
                stack.enter_context(started(name, package, arguments, paths))
                for name, arguments, paths in kinds[:: 1 if number % 2 else -1]
            ]
            run_round(brokers, seconds, 0, found)
            for one in brokers:
                declare(one, queues)
            run_round(brokers, seconds, queues, found)
            if number == rounds - 1:
                tell_shares(brokers, SHARE_SECONDS)
    is_good = tell(found)
    click.echo(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
