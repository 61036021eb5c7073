"""The figures of a comparison as a table in the terminal and as docs/benchmarks/broker.md."""

import datetime as dt
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.results import BASELINE, Results

SYNC_SAMPLES: Final = 200
HEADINGS: Final = (
    "scenario",
    "broker",
    "messages/s",
    "CPU us/message",
    "CPU, times less",
    "RSS before/after MB",
    "end to end p50/p99 us",
)
EXPLANATION: Final = """\
Scenarios: `pub` only publishes, `con` consumes a backlog, `both` does both at once on two connections, `lat` is
`both` at 1,000 messages a second, `one-at-a-time` is `both` with one message in flight. `pcc` is persistent with
confirms, `tnc` transient without confirms; queues are durable and classic. 1k and 10k are the size in bytes; `a1`
acknowledges each message. Of AMQP 1.0, `dur` is durable and unsettled, `set` pre-settled. CPU is the broker's user
and system time; on a shared machine, it is more reliable than the rate. RabbitMQ's classic queues confirm without
waiting for the disk; Waybill confirms after fdatasync.
"""


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """One row per scenario and broker, in the order of `HEADINGS`."""
    rows: list[tuple[str, ...]] = []
    for scenario, by_broker in results.runs.items():
        for broker in by_broker:
            cpu = results.median(scenario, broker, "broker_cpu_us_per_msg")
            spread = results.spread(scenario, broker, "broker_cpu_us_per_msg")
            low, high = spread or (0.0, 0.0)
            rows.append(
                (
                    scenario,
                    broker,
                    number(results.median(scenario, broker, "msgs_per_s"), ",.0f"),
                    f"{number(cpu, '.2f')} ({low:.2f}-{high:.2f})",
                    ""
                    if broker == BASELINE
                    else number(results.ratio(scenario, broker, "broker_cpu_us_per_msg"), ".1f"),
                    memory(results, scenario, broker),
                    latency(results, scenario, broker),
                )
            )
    return rows


def memory(results: Results, scenario: str, broker: str) -> str:
    before, after = (results.median(scenario, broker, name) for name in ("rss_before_mb", "rss_after_mb"))
    return f"{number(before, '.0f')} / {number(after, '.0f')}"


def latency(results: Results, scenario: str, broker: str) -> str:
    if not results.median(scenario, broker, "e2e_us", "n"):
        return ""
    p50, p99 = results.median(scenario, broker, "e2e_us", "p50"), results.median(scenario, broker, "e2e_us", "p99")
    return f"{number(p50, ',.0f')} / {number(p99, ',.0f')}"


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def print_table(results: Results, console: Console) -> None:
    table = Table(title="Medians")
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index < 2 else "right")
    previous = ""
    for row in table_rows(results):
        if previous and row[0] != previous:
            table.add_section()
        table.add_row(*row)
        previous = row[0]
    console.print(table)
    for broker, seconds in results.start_seconds.items():
        rss = statistics.median(results.idle_rss_mb[broker])
        console.print(f"{broker}: accepts connections after {statistics.median(seconds):.2f} s, {rss:.0f} MB at rest")
    for failure in results.failures:
        console.print(f"[red]{failure}[/red]")


def markdown(results: Results, command: str, rounds: int) -> str:
    """The part about speed of docs/benchmarks/broker.md."""
    lines = [
        "## Speed",
        "",
        f"Written by `{command}` on {dt.datetime.now(dt.UTC):%Y-%m-%d}.",
        f"Medians of {rounds} rounds, in brackets the range.",
        "",
        EXPLANATION,
        *(f"- {line}" for line in machine()),
        *(f"- {broker}: {version}" for broker, version in results.versions.items()),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|" + "---:|" * (len(HEADINGS) - 2),
        *("| " + " | ".join(row) + " |" for row in table_rows(results)),
        "",
        "| broker | start to accepting connections | RSS at rest |",
        "|---|---:|---:|",
        *(
            f"| {broker} | {statistics.median(results.start_seconds[broker]):.2f} s | {statistics.median(rss):.0f} MB |"
            for broker, rss in results.idle_rss_mb.items()
        ),
        "",
    ]
    if results.failures:
        lines += ["Did not finish:", "", *(f"- {failure}" for failure in results.failures), ""]
    return "\n".join(lines)


def machine() -> list[str]:
    return [
        f"machine: {os.cpu_count()} cores, {processor()}, {memory_gb():.0f} GB",
        f"system: {platform.system()} {kernel_version()}, Python {platform.python_version()}",
        f"disk of the data directories: fdatasync of 4 KB takes {sync_milliseconds():.2f} ms (median)",
    ]


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def sync_milliseconds() -> float:
    with tempfile.TemporaryFile() as file:
        times = []
        for _ in range(SYNC_SAMPLES):
            os.write(file.fileno(), bytes(4096))
            begin = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


def kernel_version() -> str:
    """Major and minor version: the rest of a release names a vendor's build, which does not affect speed."""
    return ".".join(platform.release().split(".")[:2])
