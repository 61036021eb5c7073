"""Measure Waybill's memory at rest and with a million messages, its start and recovery, and how it scales.

    python -m benchmarks.memory [--quick] [--broker NAME]... [--json FILE]

Only Waybill is measured, compiled and interpreted. Each figure has a limit.
"""

import datetime as dt
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.broker import PAGE, PLAIN_WIDTH, TOOLS, build_tools, resident_mb, run_scenario
from benchmarks.contenders import UnavailableError, WaybillContender
from benchmarks.page import write_part
from benchmarks.report import machine

MILLION: Final = 1_000_000
QUICK_BACKLOG: Final = 100_000
SAMPLE: Final = 100_000
STARTS: Final = 3
PROBE_TIMEOUT_S: Final = 600.0
# Enough for a CPU clock that ticks 100 times a second.
PROBE_MESSAGES: Final = 400_000
BACKLOG_QUEUE: Final = "backlog"
TOPICS: Final = 100_000


@dataclass(frozen=True)
class Measure:
    """A figure with its limit: the maximum, or with `is_least` the minimum."""

    name: str
    unit: str
    limit: float
    is_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit


START: Final = Measure("start to accepting connections", "s", 0.4)
IDLE: Final = Measure("RSS at rest", "MB", 45)
GROWTH: Final = Measure("RSS growth by 1,000,000 queued messages of 1 KB", "MB", 100)
PUBLISH: Final = Measure("publish speed with them queued, to that without", "", 0.5, is_least=True)
CONSUME: Final = Measure("consume speed with them queued, to that without", "", 0.5, is_least=True)
RECOVERY_STOPPED: Final = Measure("recovery of them after a stop", "s", 10)
RECOVERY_KILLED: Final = Measure("recovery of them after kill -9", "s", 10)
CONNECTION: Final = Measure("an idle connection with 5 channels", "KiB", 60)
QUEUE: Final = Measure("a durable queue", "KiB", 6)
DECLARE: Final = Measure("CPU to declare a durable queue", "us", 200)
ONE_OF_MANY: Final = Measure("publish CPU with 5,000 queues, to that with one", "", 1.2)
TOPIC: Final = Measure("publish CPU with 100,000 topic bindings, to that with one", "", 1.5)
BIND: Final = Measure("binding 100,000 topics", "s", 6)
UNBIND: Final = Measure("deleting a queue with 100,000 bindings", "s", 2)
CONSUMERS: Final = Measure("CPU with 100 consumers on a queue, to that with one", "", 1.5)
EVEN: Final = Measure("least served of 100 consumers, to the most served", "", 0.8, is_least=True)
MEASURES: Final = (
    START, IDLE, GROWTH, PUBLISH, CONSUME, RECOVERY_STOPPED, RECOVERY_KILLED, CONNECTION, QUEUE, DECLARE, ONE_OF_MANY,
    TOPIC, BIND, UNBIND, CONSUMERS, EVEN,
)  # fmt: skip


@dataclass
class Needs:
    """The measurements of one broker: values by the name of their measure, and the rows of the tools."""

    version: str
    values: dict[str, float] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def note(self, measure: Measure, value: float) -> None:
        self.values[measure.name] = value


def measure_rest(broker: WaybillContender, needs: Needs, _: int) -> None:
    seconds = []
    for _ in range(STARTS):
        seconds.append(broker.start())
        needs.note(IDLE, resident_mb(broker.pid))
        broker.stop()
    needs.note(START, statistics.median(seconds))


def measure_backlog(broker: WaybillContender, needs: Needs, backlog: int) -> None:
    sample = min(SAMPLE, backlog // 10)

    def run(scenario: str, *options: str) -> dict[str, Any]:
        row = run_scenario(broker, [scenario, "--label", broker.name, *options])
        needs.rows.append(row)
        return row

    broker.start()
    # Both once without a backlog: to warm up, and to compare with.
    short = ["--count", str(sample)]
    run("con-pcc-1k-a1", *short)
    publish = run("pub-pcc-1k", *short)["msgs_per_s"]
    consume = run("con-pcc-1k-a1", *short)["msgs_per_s"]
    broker.halt(kill=False)
    broker.start()
    filled = run("fill-pcc-1k", "--queue", BACKLOG_QUEUE, "--count", str(backlog))
    needs.note(GROWTH, filled["rss_after_mb"] - filled["rss_before_mb"])
    broker.halt(kill=True)
    needs.note(RECOVERY_KILLED, broker.start())
    deep = [*short, "--queue", BACKLOG_QUEUE, "--append", "--keep"]
    needs.note(PUBLISH, run("pub-pcc-1k", *deep)["msgs_per_s"] / publish)
    needs.note(CONSUME, run("con-pcc-1k-a1", *deep)["msgs_per_s"] / consume)
    broker.halt(kill=False)
    needs.note(RECOVERY_STOPPED, broker.start())


def probe(broker: WaybillContender, needs: Needs, name: str, *options: str) -> dict[str, Any]:
    """One run of scaleprobe: its JSON line. Raises `UnavailableError`."""
    command = [sys.executable, str(TOOLS / "scaleprobe.py"), name, "--port", str(broker.port), "--pid", str(broker.pid)]
    command += ["--messages", str(PROBE_MESSAGES)]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{name}: no end within {PROBE_TIMEOUT_S:.0f} s") from error
    row: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"error": done.stderr[-500:]}
    needs.rows.append(row)
    if "error" in row:
        raise UnavailableError(f"{name}: {row['error']}")
    return row


def measure_connections(broker: WaybillContender, needs: Needs, _: int) -> None:
    broker.start()
    needs.note(CONNECTION, probe(broker, needs, "conns")["rss_kb_per_connection_with_channels"])


def measure_queues(broker: WaybillContender, needs: Needs, _: int) -> None:
    broker.start()
    row = probe(broker, needs, "queues")
    needs.note(QUEUE, row["rss_kb_per_queue"])
    needs.note(DECLARE, row["declare"]["cpu_us"])
    needs.note(ONE_OF_MANY, row["publish_1_of_n"]["cpu_us"] / row["publish_1_queue"]["cpu_us"])


def measure_topics(broker: WaybillContender, needs: Needs, _: int) -> None:
    broker.start()
    one = probe(broker, needs, "topic", "--n", "1")
    many = probe(broker, needs, "topic", "--n", str(TOPICS))
    needs.note(TOPIC, many["publish"]["cpu_us"] / one["publish"]["cpu_us"])
    needs.note(BIND, many["bind"]["seconds"])
    needs.note(UNBIND, many["delete_queue_s"])


def measure_consumers(broker: WaybillContender, needs: Needs, _: int) -> None:
    broker.start()
    one = probe(broker, needs, "consumers", "--n", "1")
    many = probe(broker, needs, "consumers", "--n", "100")
    needs.note(CONSUMERS, many["publish_and_consume"]["cpu_us"] / one["publish_and_consume"]["cpu_us"])
    needs.note(EVEN, many["per_consumer_min"] / many["per_consumer_max"])


STEPS: Final[tuple[Callable[[WaybillContender, Needs, int], None], ...]] = (
    measure_rest,
    measure_backlog,
    measure_connections,
    measure_queues,
    measure_topics,
    measure_consumers,
)


def shown(measure: Measure, value: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:,.2f}" if measure.limit <= 10 else f"{value:,.0f}"
    return text if measure.holds(value) else f"**{text}**"


def table_rows(found: dict[str, Needs]) -> list[tuple[str, ...]]:
    return [
        (
            measure.name,
            f"{'at least' if measure.is_least else 'at most'} {measure.limit:g} {measure.unit}".strip(),
            *(shown(measure, needs.values.get(measure.name)) for needs in found.values()),
        )
        for measure in MEASURES
    ]


def markdown(found: dict[str, Needs], command: str, backlog: int) -> str:
    lines = [
        "## Memory, recovery and scale",
        "",
        f"Written by `{command}` on {dt.datetime.now(dt.UTC):%Y-%m-%d}, with a backlog of {backlog:,} messages.",
        "Each figure has a limit; figures in bold miss it. The backlog is persistent and published with confirms.",
        "",
        *(f"- {line}" for line in machine()),
        *(f"- {name}: {needs.version}" for name, needs in found.items()),
        "",
        "| | limit | " + " | ".join(found) + " |",
        "|---|---:|" + "---:|" * len(found),
        *("| " + " | ".join(row) + " |" for row in table_rows(found)),
        "",
    ]
    failures = [f"- {name}: {failure}" for name, needs in found.items() for failure in needs.failures]
    if failures:
        lines += ["Did not finish:", "", *failures, ""]
    return "\n".join(lines)


def measure_all(broker: WaybillContender, version: str, backlog: int, progress: Progress) -> Needs:
    needs = Needs(version)
    task = progress.add_task(broker.name, total=len(STEPS))
    for step in STEPS:
        progress.update(task, description=f"{step.__name__.replace('_', ' ')} {broker.name}")
        try:
            step(broker, needs, backlog)
        except UnavailableError as error:
            needs.failures.append(str(error))
        finally:
            broker.stop()
        progress.advance(task)
    return needs


@click.command(help=__doc__)
@click.option("--broker", "names", multiple=True, type=click.Choice(["Waybill compiled", "Waybill interpreted"]))
@click.option("--quick", is_flag=True, help="A tenth of the backlog; writes no page.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option("--page", type=click.Path(dir_okay=False, path_type=Path), default=PAGE, show_default=True)
def main(*, names: tuple[str, ...], quick: bool, json_path: Path | None, page: Path) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    build_tools()
    backlog = QUICK_BACKLOG if quick else MILLION
    found: dict[str, Needs] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for broker in (WaybillContender(compiled=True), WaybillContender(compiled=False)):
            if names and broker.name not in names:
                continue
            found[broker.name] = measure_all(broker, broker.prepare(), backlog, progress)
    table = Table("", "limit", *found, title="Memory, recovery and scale")
    for row in table_rows(found):
        table.add_row(*row)
    console.print(table)
    if json_path is not None:
        figures = {name: {"values": needs.values, "rows": needs.rows} for name, needs in found.items()}
        json_path.write_text(json.dumps(figures, indent=1) + "\n")
    if not quick:
        write_part(page, "memory", markdown(found, " ".join(["python -m benchmarks.memory", *sys.argv[1:]]), backlog))
        console.print(f"written: {page}")
    failures = [failure for needs in found.values() for failure in needs.failures]
    for failure in failures:
        console.print(f"[red]{failure}[/red]")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
