"""Compare Waybill's jobs with Celery, Dramatiq, Taskiq and FastStream: the same work, on the same machine, in one run.

    python -m benchmarks.jobs [--quick] [--rounds N] [--json FILE] [--add FILE]

All of them run on Debian's RabbitMQ, then Waybill on its own broker, with a fresh broker for each. One worker process
each; durable queues, persistent messages, publisher confirms, acknowledgements after the work. Waybill writes its
events; where the table says so, a coordinator in another process keeps the state of all jobs. The peers' queues are
classic; Waybill's are what the table says. A bare loop of pika with Waybill's messages shows RabbitMQ's limit. The
peers' programs are in benchmarks/peers; they run in their own environment, build/peers, made from the `bench` extra.
"""

import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from benchmarks.contenders import (
    REPOSITORY,
    Contender,
    RabbitMQContender,
    UnavailableError,
    WaybillContender,
    build_compiled,
)
from benchmarks.worker import cpu_seconds

PAGE: Final = REPOSITORY / "docs" / "benchmarks" / "jobs.md"
PEERS_ENVIRONMENT: Final = REPOSITORY / "build" / "peers"
RUN_TIMEOUT_S: Final = 900.0
PEERS: Final = ("celery", "dramatiq", "taskiq", "faststream")
NOOP: Final = "noop"
SLEEP: Final = "sleep"
NOOP_GOAL: Final = "no-op jobs/s, times the best peer"
CPU_GOAL: Final = "worker CPU of a no-op job, times less than the best peer"
PUSH_GOAL: Final = "enqueue/s, times the best peer"
SLEEP_GOAL: Final = "10 ms jobs/s"
SYNC_GOAL: Final = "enqueue/s from one thread"

# Those whose events and state are on.
QUORUM: Final = "Waybill and coordinator, quorum queue"
CLASSIC: Final = "Waybill and coordinator, classic queue"
PRIORITIES: Final = "Waybill and coordinator, classic queue with priorities"
LAZY: Final = "Waybill and coordinator, classic queue with priorities, lazy"
OURS: Final = "Waybill and coordinator, own broker"
PIPELINE: Final = "Waybill, own broker, synchronous pipeline"
SINGLE: Final = "Waybill, own broker, synchronous, one by one"
BARE: Final = "Bare loop of pika, classic queue with priorities"

HEADINGS: Final = (
    "no-op jobs/s",
    "ratio",
    "worker CPU us/job",
    "ratio",
    "enqueue/s",
    "ratio",
    "client CPU us/job",
    "10 ms jobs/s",
    "worker MB",
    "broker CPU us/push",
    "us/job",
)

LAZY_POLICY: Final[dict[str, object]] = {
    "vhost": "/ojs",
    "name": "jobs",
    "pattern": r"^ojs\.queue\.",
    "definition": {"queue-mode": "lazy"},
    "apply-to": "queues",
}
"""What `rabbitmqctl set_policy` of the topology page does: no program declares anything else for it."""

Row = dict[str, float]


@dataclass(frozen=True)
class Goal:
    """The goal of a competitor: a multiple of the best of the peers, or if `is_rate` a number of jobs a second."""

    name: str
    what: str
    least: float
    figure: str
    is_rate: bool = False


@dataclass(frozen=True)
class Competitor:
    """A framework on a broker; `scale` times as many jobs if it would finish too soon to measure."""

    name: str
    program: str
    options: tuple[str, ...] = ()
    scale: int = 1
    has_coordinator: bool = False
    policies: tuple[dict[str, object], ...] = ()
    kinds: tuple[str, ...] = (NOOP, SLEEP)

    @property
    def needs_waybill(self) -> bool:
        """Whether it runs in Waybill's environment, not in the peers'."""
        return self.program in {"waybill", "waybill_sync", "pika"}


# No more jobs in a classic queue than the peers have in theirs: there each costs the more, the more are waiting.
ON_RABBITMQ: Final = (
    *(Competitor(name.capitalize(), name) for name in PEERS),
    Competitor("Waybill, quorum queue", "waybill", ("quorum",), 5),
    Competitor(QUORUM, "waybill", ("quorum",), 5, has_coordinator=True),
    Competitor(CLASSIC, "waybill", ("classic",), has_coordinator=True),
    Competitor(PRIORITIES, "waybill", ("default",), has_coordinator=True),
    Competitor(LAZY, "waybill", ("default",), has_coordinator=True, policies=(LAZY_POLICY,)),
    Competitor(BARE, "pika", kinds=(NOOP,)),
)
ON_OURS: Final = (
    Competitor("Waybill, own broker", "waybill", scale=5),
    Competitor(OURS, "waybill", scale=5, has_coordinator=True),
    Competitor(PIPELINE, "waybill_sync", ("pipeline",), 5, kinds=(NOOP,)),
    Competitor(SINGLE, "waybill_sync", ("single",), kinds=(NOOP,)),
)

GOALS: Final = (
    *(
        goal
        for name in (QUORUM, CLASSIC, PRIORITIES, LAZY)
        for goal in (
            Goal(name, "work noop", 3, NOOP_GOAL),
            Goal(name, "work noop", 5, CPU_GOAL),
            Goal(name, "push noop", 3, PUSH_GOAL),
            Goal(name, "work sleep", 9000, SLEEP_GOAL, is_rate=True),
        )
    ),
    Goal(OURS, "work noop", 5, NOOP_GOAL),
    Goal(OURS, "push noop", 10, PUSH_GOAL),
    Goal(OURS, "work sleep", 9000, SLEEP_GOAL, is_rate=True),
    Goal(PIPELINE, "push noop", 15_000, SYNC_GOAL, is_rate=True),
    Goal(SINGLE, "push noop", 2000, SYNC_GOAL, is_rate=True),
)


class Bench:
    """The measured rows: by competitor, then by verb and kind of job."""

    def __init__(self, noops: int, sleeps: int, ours: Path, peers: Path) -> None:
        self.rows: dict[str, dict[str, list[Row]]] = {}
        self.failures: list[str] = []
        self._counts = {NOOP: noops, SLEEP: sleeps}
        self._ours = ours
        self._peers = peers

    def add(self, path: Path) -> None:
        """Add the rounds of an earlier run, which wrote its figures to `path`."""
        for name, kinds in json.loads(path.read_text())["rows"].items():
            for what, rows in kinds.items():
                self.rows.setdefault(name, {}).setdefault(what, []).extend(rows)

    @property
    def rounds(self) -> int:
        """The number of rounds that the medians are of."""
        return max(len(rows) for kinds in self.rows.values() for rows in kinds.values())

    def measure(self, competitor: Competitor, uri: str, broker_pid: int) -> None:
        """Push and do no-op jobs, then jobs that wait."""
        with self._coordinator(competitor, uri):
            for kind in competitor.kinds:
                count = self._counts[kind]
                for verb in ("push", "work"):
                    used = cpu_seconds(broker_pid)
                    try:
                        row = self._run(competitor, [verb, uri, str(count * competitor.scale), kind])
                    except UnavailableError as error:
                        self.failures.append(f"{competitor.name}, {verb} {kind}: {error}")
                        break
                    row["broker_cpu_seconds"] = cpu_seconds(broker_pid) - used
                    rows = self.rows.setdefault(competitor.name, {})
                    rows.setdefault(f"{verb} {kind}", []).append(row)

    @contextmanager
    def _coordinator(self, competitor: Competitor, uri: str) -> Iterator[None]:
        if not competitor.has_coordinator:
            yield
            return
        command = [sys.executable, "-m", "waybill", "coordinator", "bench", "--uri", uri]
        with subprocess.Popen(
            command, env=self._environment(competitor), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            if process.stdout is not None:
                process.stdout.readline()
            try:
                yield
            finally:
                process.terminate()

    def _run(self, competitor: Competitor, arguments: list[str]) -> Row:
        python = sys.executable if competitor.needs_waybill else str(self._peers)
        command = [python, "-m", f"benchmarks.peers.{competitor.program}_jobs", *arguments, *competitor.options]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=RUN_TIMEOUT_S,
                check=False,
                cwd=REPOSITORY,
                env=self._environment(competitor),
            )
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"no end within {RUN_TIMEOUT_S:.0f} s") from error
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise UnavailableError(done.stderr.strip()[-500:] or "no figures")
        row: Row = json.loads(lines[-1])
        return row

    def _environment(self, competitor: Competitor) -> dict[str, str]:
        path = [str(REPOSITORY)]
        if competitor.needs_waybill:
            path.insert(0, str(self._ours))
        return os.environ | {"PYTHONPATH": os.pathsep.join(path)}

    def rate(self, name: str, what: str) -> float:
        """The median of jobs a second."""
        return self._median(name, what, lambda row: row["count"] / row["seconds"])

    def cpu_us(self, name: str, what: str) -> float:
        """The median of CPU microseconds a job."""
        return self._median(name, what, lambda row: row["cpu_seconds"] / row["count"] * 1e6)

    def broker_us(self, name: str, what: str) -> float:
        """The median of the broker's CPU microseconds a job, including the program's start and end."""
        return self._median(name, what, lambda row: row["broker_cpu_seconds"] / row["count"] * 1e6)

    def rss_mb(self, name: str, what: str) -> float:
        """The median of the memory at the end."""
        return self._median(name, what, lambda row: row["rss_mb"])

    def _median(self, name: str, what: str, figure: Callable[[Row], float]) -> float:
        rows = self.rows.get(name, {}).get(what, [])
        return statistics.median(figure(row) for row in rows) if rows else float("nan")


def make_peers_environment() -> tuple[Path, dict[str, str]]:
    """The Python of the peers' environment, created if needed, and the versions of its packages."""
    python = PEERS_ENVIRONMENT / "bin" / "python"
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    requirements = project["project"]["optional-dependencies"]["bench"]
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    if not python.exists():
        venv.create(PEERS_ENVIRONMENT, with_pip=True)
    subprocess.run([*pip, "install", "-q", *requirements], check=True)
    listed = subprocess.run([*pip, "list", "--format=json"], capture_output=True, text=True, check=True)
    versions = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    names = ("celery", "dramatiq", "taskiq", "taskiq-aio-pika", "faststream", "aio-pika", "pika", "uvloop")
    return python, {name: versions[name] for name in names if name in versions}


def table(bench: Bench) -> str:
    """The figures as Markdown, with ratios to the best of the peers."""
    peers = [name for name in bench.rows if name.lower() in PEERS]
    best = {what: max(bench.rate(name, what) for name in peers) for what in ("push noop", "work noop")}
    least = min(bench.cpu_us(name, "work noop") for name in peers)
    lines = [
        f"| | {' | '.join(HEADINGS)} |",
        f"|---|{'--:|' * len(HEADINGS)}",
    ]
    for name in bench.rows:
        done, pushed, slept = (bench.rate(name, what) for what in ("work noop", "push noop", "work sleep"))
        cpu = bench.cpu_us(name, "work noop")
        slept_text = "" if math.isnan(slept) else f"{slept:,.0f}"
        lines.append(
            f"| {name} | {done:,.0f} | {done / best['work noop']:.1f} | {cpu:.1f} | {least / cpu:.1f} "
            f"| {pushed:,.0f} | {pushed / best['push noop']:.1f} | {bench.cpu_us(name, 'push noop'):.1f} "
            f"| {slept_text} | {bench.rss_mb(name, 'work noop'):.0f} "
            f"| {bench.broker_us(name, 'push noop'):.0f} | {bench.broker_us(name, 'work noop'):.0f} |"
        )
    return "\n".join(lines)


def goals_table(bench: Bench) -> str:
    """The goals beside what was measured, as Markdown."""
    peers = [name for name in bench.rows if name.lower() in PEERS]
    lines = ["| | | asked | measured | |", "|---|---|--:|--:|---|"]
    for goal in GOALS:
        if goal.figure == CPU_GOAL:
            found = min(bench.cpu_us(name, goal.what) for name in peers) / bench.cpu_us(goal.name, goal.what)
        else:
            best = 1.0 if goal.is_rate else max(bench.rate(name, goal.what) for name in peers)
            found = bench.rate(goal.name, goal.what) / best
        text = f"{found:,.0f}" if goal.is_rate else f"{found:.1f}"
        verdict = "reached" if found >= goal.least else "**not reached**"
        lines.append(f"| {goal.name} | {goal.figure} | {goal.least:,} | {text} | {verdict} |")
    return "\n".join(lines)


def page(bench: Bench, command: str, versions: list[str]) -> str:
    """The whole page."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].split(":", 1)[1].strip() if models else "unknown"
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    listed = "\n".join(f"- {version}" for version in versions)
    return f"""# Benchmarks of jobs

`{command}` wrote this page on {datetime.now(UTC):%Y-%m-%d}: the medians of {bench.rounds} round(s) on
{os.cpu_count()} cores ({model}), Python {platform.python_version()}; the load average was {load} at the end.

One worker process runs no-op jobs, then jobs of 10 ms with a concurrency of 100 (the ideal is 10,000/s). Queues are
durable, messages persistent, publishes confirmed, and jobs acknowledged after the work. Waybill writes all its events.
Ratios compare with the best of the peers: times as many jobs, times less CPU. CPU is that of the worker (or client)
process; on a busy machine, it is more meaningful than throughput. Queues are declared before the measurement.
Waybill's time ends when the last job is acknowledged, that of the peers when its handler returns.

The bare pika loop is not a peer: it publishes prepared messages of Waybill to Waybill's default queue, consumes them
without decoding, and does nothing else. It shows the limit of RabbitMQ.

{table(bench)}

## Goals

{goals_table(bench)}

On RabbitMQ, the limit is the process that RabbitMQ runs for each queue, and its cost depends on the queue type. CPU of
RabbitMQ per job, in us, events included, first to receive, store and confirm it, then to deliver it and receive its
ack:
{costs(bench)}.

{limit(bench)}

- The peers declare a classic queue. RabbitMQ keeps its waiting jobs in the memory of the queue's process. As soon as
  more than 370 KB wait, nearly every garbage collection goes through all of them, which takes half of the time of a
  push. A client cannot change that: the number of unconfirmed publishes, of channels and of connections, and
  `mandatory` make no difference. Fewer octets and headers would, but the binding requires them.
- With priorities, it consists of eleven queues, and RabbitMQ checks each at every step. The examples of the binding
  declare it, so it is Waybill's default: programs that only know the binding declare the same queue.
- A quorum queue has neither problem. Unlike a classic queue, it keeps its dead letters if the node is killed, and the
  binding recommends it: `Topology(queue_type="quorum")` (see [topology](../reference/topology.md)).
- A lazy classic queue keeps waiting jobs on the disk. A policy of the broker makes it lazy, without a change in
  programs (see [jobs on RabbitMQ](../explanation/rabbitmq.md)).

{listed}
"""


def costs(bench: Bench) -> str:
    """RabbitMQ's CPU time for a job, by kind of queue, as text."""
    return "; ".join(
        f"{name.partition(', ')[2]} {bench.broker_us(name, 'push noop'):.0f}"
        f" and {bench.broker_us(name, 'work noop'):.0f}"
        for name in (QUORUM, CLASSIC, PRIORITIES, LAZY)
    )


def limit(bench: Bench) -> str:
    """How near Waybill comes to RabbitMQ's limit for its messages, as text."""
    best = {
        what: max(bench.rate(name, what) for name in bench.rows if name.lower() in PEERS)
        for what in ("push noop", "work noop")
    }
    bare, ours = (
        {what: f"{bench.rate(name, what):,.0f} ({bench.rate(name, what) / best[what]:.1f})" for what in best}
        for name in (BARE, PRIORITIES)
    )
    return f"""A bare loop of pika pushes {bare["push noop"]} such messages a second to the classic queue with
priorities, and takes {bare["work noop"]} from it; Waybill and its coordinator do {ours["push noop"]} and
{ours["work noop"]}. In brackets: times the best of the peers."""


def run_round(bench: Bench, rabbitmq: RabbitMQContender, ours: Contender, console: Console) -> None:
    for contender, competitors in ((rabbitmq, ON_RABBITMQ), (ours, ON_OURS)):
        for competitor in competitors:
            rabbitmq.policies = competitor.policies
            with console.status(competitor.name):
                contender.start()
                try:
                    uri = f"amqp://guest:guest@127.0.0.1:{contender.port}/%2Fojs"
                    bench.measure(competitor, uri, contender.pid)
                finally:
                    contender.stop()


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--noops", default=20_000, show_default=True, help="No-op jobs of a run; five times as many where that is quick."
)
@click.option("--sleeps", default=10_000, show_default=True, help="Jobs of 10 ms of a run.")
@click.option("--quick", is_flag=True, help="One round of short runs; writes no page.")
@click.option(
    "--built",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A directory with Waybill compiled, such as build/installed, instead of compiling the current sources.",
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option(
    "--add",
    "added",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Add the rounds of an earlier run's --json, for a machine that is quiet for minutes at a time only.",
)
@click.option("--page", "page_path", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(  # noqa: PLR0913 - the options of a command
    *,
    rounds: int,
    noops: int,
    sleeps: int,
    quick: bool,
    built: Path | None,
    json_path: Path | None,
    added: tuple[Path, ...],
    page_path: Path,
) -> None:
    console = Console()
    if quick:
        rounds, noops, sleeps = 1, noops // 10, sleeps // 10
    rabbitmq = RabbitMQContender()
    try:
        with console.status("preparing"):
            package = built or build_compiled()
            ours = WaybillContender(compiled=True, package=package)
            versions = [rabbitmq.prepare(), ours.prepare()]
            python, of_peers = make_peers_environment()
            bench = Bench(noops, sleeps, package.resolve(), python)
        for path in added:
            bench.add(path)
        for _ in range(rounds):
            run_round(bench, rabbitmq, ours, console)
    except UnavailableError as error:
        raise click.ClickException(str(error)) from error
    print(table(bench))
    for failure in bench.failures:
        console.print(f"[red]{failure}[/red]")
    if json_path is not None:
        json_path.write_text(json.dumps({"rows": bench.rows, "failures": bench.failures}, indent=1) + "\n")
    if not quick and not bench.failures:
        command = f"python -m benchmarks.jobs --rounds {bench.rounds} --noops {noops} --sleeps {sleeps}"
        versions += [f"{name} {version}" for name, version in of_peers.items()]
        page_path.write_text(page(bench, command, versions))
        console.print(f"written: {page_path}")
    if bench.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
