"""Measure the pipeline: stream to Parquet, events to silver, DataFrame to jobs, and the report of a long history.

    python -m benchmarks.pipeline [--events N] [--history N] [--quick]

Waybill's own broker runs durably in another process, and Spark on all cores of this machine. Each rate is that of a
warm session, beside the same work by a plain Python loop with pika. The events are those of real workers, multiplied
(see `benchmarks.event_histories`). Writes docs/benchmarks/pipeline.md.
"""

import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.contenders import own_broker
from benchmarks.event_histories import HISTORY_BEGIN, Life, generate, record
from benchmarks.process_tree import PeakMemory
from waybill import __version__
from waybill.cli.main import build_kind
from waybill.client import BasicProperties, blocking
from waybill.ojs import Topology
from waybill.pipeline import tables
from waybill.pipeline.events import EventColumns
from waybill.pipeline.message import NO_METADATA, MessageBlock
from waybill.pipeline.progress_reports import Pace, Step
from waybill.pipeline.run import Settings, ingest, refresh_silver
from waybill.pipeline.session import local_session
from waybill.pipeline.source import EVENT_STREAM
from waybill.pipeline.tables import Tables

PAGE: Final = Path("docs/benchmarks/pipeline.md")
HISTORY_TITLE: Final = "## A long history"
# Written by hand, from what `benchmarks.pipeline_growth` prints.
GROWTH_TITLE: Final = "## A growing history"
MESSAGE_SIZES: Final = (1, 50)
PUBLISH_AT_ONCE: Final = 5_000
EVENTS_PER_FILE: Final = 250_000
PLAIN_EVENTS: Final = 30_000
PLAIN_PUSHES: Final = 3_000
JOB_QUEUE: Final = "bench"
REPORT_LIMIT_S: Final = 60
# Java compiles what it has run often; by then the same query takes a fifth of its first time.
WARM_UPS: Final = 6
MEASURED: Final = 3


@dataclass(frozen=True)
class Rate:
    """One line of the table: rows a second of Waybill and of the plain loop, and the goal.

    `batch` is the rate that Spark reports of the query's only batch, without the start and the end of the query.
    """

    work: str
    wanted: int
    ours: float
    plain: float
    batch: float | None = None


@dataclass
class Figures:
    """The measurements; times in seconds, memory in MB."""

    rates: list[Rate] = field(default_factory=list)
    history: int = 0
    backfill_s: float = 0.0
    backfill_mb: int = 0
    report_s: float = 0.0
    report_mb: int = 0


class Bench:
    """Measures on one broker and in one session of Spark."""

    def __init__(self, spark: SparkSession, uri: str, directory: Path, lives: list[Life], console: Console) -> None:
        self._spark = spark
        self._uri = uri
        self._directory = directory
        self._lives = lives
        self._console = console
        self._numbers = itertools.count(1)
        self.figures = Figures()

    def run(self, events: int) -> None:
        for size in MESSAGE_SIZES:
            stream = f"bench-{size}"
            self._publish(stream, itertools.islice(generate(self._lives, events), events), size)
            if size == 1:
                self._stream_to_parquet("amqp", stream, events, "messages")
                self._stream_to_parquet("ojs", stream, events, "events")
            store = self._stream_to_bronze(stream, size)
        self._fold(store, stream)
        self._jobs(events)

    def _stream_to_parquet(self, kind: str, stream: str, rows: int, loop: str) -> None:
        """A streaming query that only reads a format and writes Parquet."""
        paces: list[float] = []

        def copy() -> None:
            place = str(self._directory / f"copy-{next(self._numbers)}")
            reader = self._spark.readStream.format(kind).options(uri=self._uri, stream=stream)
            reader.options(startingOffsets="earliest", minPartitions=self._spark.sparkContext.defaultParallelism)
            writer = reader.load().writeStream.trigger(availableNow=True).option("checkpointLocation", f"{place}.log")
            query = writer.format("parquet").start(place)
            try:
                query.awaitTermination()
            finally:
                query.stop()
            paces.extend(one.processedRowsPerSecond for one in query.recentProgress if one.numInputRows)
            found = pq.read_table(place, columns=["offset"]).num_rows
            if found != rows:
                raise RuntimeError(f"{found:,} rows in Parquet of {rows:,} messages")

        seconds = _warm_seconds(copy)
        plain = self._plain(loop, stream, PLAIN_EVENTS)
        self._add(Rate(f'stream to Parquet, `format("{kind}")`', 100_000, rows / seconds, plain, _last(paces)))

    def _stream_to_bronze(self, stream: str, size: int) -> Tables:
        """Typed and checked events by day and batch, malformed ones apart, as `waybill pipeline run` writes them."""
        stores = []
        paces: list[float] = []

        def note(step: Step) -> None:
            if isinstance(step, Pace):
                paces.append(step.rows_per_second)

        def read() -> None:
            directory = self._directory / f"tables-{next(self._numbers)}"
            settings = Settings(self._uri, directory, stream=stream, max_offsets_per_trigger=1 << 40)
            ingest(self._spark, settings, note)
            stores.append(Tables(directory))

        seconds = _warm_seconds(read)
        rows = stores[-1].read(self._spark, tables.EVENTS).count()
        work = f"stream to bronze, {size} event{'s' * (size > 1)} a message"
        plain = self._plain("events", stream, PLAIN_EVENTS)
        self._add(Rate(work, 100_000, rows / seconds, plain, _last(paces)))
        return stores[-1]

    def _fold(self, store: Tables, stream: str) -> None:
        rows = store.read(self._spark, tables.EVENTS).count()
        seconds = _warm_seconds(lambda: refresh_silver(self._spark, store))
        self._add(Rate("fold to silver", 100_000, rows / seconds, self._plain("silver", stream, PLAIN_EVENTS)))

    def _jobs(self, count: int) -> None:
        """Write the rows of one partition as jobs, all confirmed; each run into an empty queue."""

        def push(rows: int) -> float:
            frame = self._spark.range(0, rows, numPartitions=1).toDF("number")
            writer = frame.write.format("ojs").mode("append").option("uri", self._uri).option("queue", JOB_QUEUE)
            seconds = _seconds(writer.option("type", "bench.push").save)
            with blocking.connect(self._uri) as connection:
                found = connection.channel().purge_queue(Topology().job_queue(JOB_QUEUE))
            if found != rows:
                raise RuntimeError(f"{found:,} jobs of {rows:,} rows")
            return seconds

        push(count // 10)
        seconds = statistics.median(push(count) for _ in range(MEASURED))
        plain = self._plain("push", "plain-bench", PLAIN_PUSHES)
        self._add(Rate("jobs written with confirms, one partition", 40_000, count / seconds, plain))

    def _publish(self, stream: str, events: Iterator[bytes], size: int) -> None:
        properties = BasicProperties(delivery_mode=2, content_type="application/json")
        with blocking.connect(self._uri) as connection:
            channel = connection.channel()
            channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
            bodies = iter(lambda: list(itertools.islice(events, size)), [])
            messages = (body[0] if size == 1 else b"[" + b",".join(body) + b"]" for body in bodies)
            while chunk := list(itertools.islice(messages, PUBLISH_AT_ONCE)):
                channel.publish_many(chunk, routing_key=stream, properties=properties)

    def _plain(self, loop: str, name: str, count: int) -> float:
        """Rows a second of a plain loop, in another process."""
        command = [sys.executable, "-m", "benchmarks.plain_loops", self._uri, loop, name, str(count)]
        done = subprocess.run([*command, str(self._directory / "plain")], capture_output=True, text=True, check=True)
        return count / float(done.stdout)

    def _add(self, rate: Rate) -> None:
        self.figures.rates.append(rate)
        batch = "" if rate.batch is None else f", its batch {rate.batch:,.0f}/s"
        self._console.print(f"{rate.work}: {rate.ours:,.0f}/s{batch}, plain loop {rate.plain:,.0f}/s", highlight=False)


def measure_report(lives: list[Life], count: int, directory: Path, figures: Figures, console: Console) -> None:
    """Write a history of `count` events, then the commands `backfill` and `report` as users start them."""
    directory.mkdir()
    with console.status(f"writing {count:,} events"):
        figures.history = write_history(lives, count, directory)
    command = [sys.executable, "-m", "waybill", "pipeline"]
    with console.status("backfill"), PeakMemory() as memory:
        figures.backfill_s = _seconds(lambda: _call([*command, "backfill", "--data", str(directory)]))
    figures.backfill_mb = memory.bytes >> 20
    with console.status("report"), PeakMemory() as memory:
        page = str(directory / "report.html")
        figures.report_s = _seconds(lambda: _call([*command, "report", "--data", str(directory), "--html", page]))
    figures.report_mb = memory.bytes >> 20
    console.print(
        f"{figures.history:,} events: backfill {figures.backfill_s:.1f} s, {figures.backfill_mb:,} MB; "
        f"report {figures.report_s:.1f} s, {figures.report_mb:,} MB",
        highlight=False,
    )


def write_history(
    lives: list[Life],
    count: int,
    directory: Path,
    *,
    begin: datetime = HISTORY_BEGIN,
    first_batch: int = 0,
    seed: int = 1,
) -> int:
    """Write bronze as the pipeline would; returns the number of events."""
    store = Tables(directory)
    store.prepare()
    root = store.path(tables.EVENTS)
    events = generate(lives, count, seed, begin)
    written = 0
    for batch in itertools.count(first_batch):
        bodies = list(itertools.islice(events, EVENTS_PER_FILE))
        if not bodies:
            return written
        offsets = range(written, written + len(bodies))
        columns = EventColumns(EVENT_STREAM)
        columns.add(MessageBlock(EVENT_STREAM, offsets, bodies, [NO_METADATA] * len(bodies)))
        table = pa.Table.from_batches([columns.record_batch()]).drop_columns(["malformed"])
        days = pc.strftime(table["time"], format="%Y-%m-%d")
        for day in days.unique().to_pylist():
            place = root / f"date={day}" / f"batch_id={batch}"
            place.mkdir(parents=True)
            pq.write_table(table.filter(pc.equal(days, day)), place / "part.parquet", compression="zstd")
        written += len(bodies)
    return written


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _warm_seconds(work: Callable[[], object]) -> float:
    """The median of some runs, after warm-up runs."""
    for _ in range(WARM_UPS):
        work()
    return statistics.median(_seconds(work) for _ in range(MEASURED))


def _last(paces: list[float]) -> float:
    """The median of the measured runs, without the warm-up."""
    return statistics.median(paces[-MEASURED:])


def page(figures: Figures, events: int, command: str) -> str:
    """The whole page."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].split(":", 1)[1].strip() if models else "unknown"
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    rates = "\n".join(
        f"| {rate.work} | {rate.wanted:,} | {rate.ours:,.0f} | {f'{rate.batch:,.0f}' if rate.batch else ''} "
        f"| {rate.plain:,.0f} | {rate.ours / rate.plain:.1f} |"
        for rate in figures.rates
    )
    return f"""# Benchmarks of the pipeline

`{command}` wrote this page on {datetime.now(UTC):%Y-%m-%d}, with waybill {__version__} ({build_kind()}), on
{os.cpu_count()} cores ({model}), Python {platform.python_version()}; the load average was {load} at the end.

{events:,} events of real workers, multiplied; Waybill's own broker, Spark and its Python workers share the cores. A
rate is the median of {MEASURED} runs after {WARM_UPS} others in the same session (for jobs, after a shorter one), from
the start of the query to its end, of which Spark itself takes about a second. "In the batch" is the rate that Spark
reports of the query's only batch, without its start and end. `format("amqp")` is a streaming query that writes messages
as they are, `format("ojs")` one that writes typed and checked events. Bronze is such events by day and batch, with
malformed ones counted and kept apart, as `waybill pipeline run` writes them. The plain loops use pika, one message at a
time; the one that writes jobs waits for each confirm, as pika's blocking channel does. The plain fold is the one in the
tests, and computes less than silver.

| work | wanted/s | waybill, rows/s | in the batch | plain Python loop with pika, rows/s | ratio |
|---|--:|--:|--:|--:|--:|
{rates}

{HISTORY_TITLE}

{history_section(figures)}

{GROWTH_TITLE}

{PAGE.read_text().partition(GROWTH_TITLE)[2].strip()}
"""


def history_section(figures: Figures) -> str:
    """The section about a long history; if none was measured, that of an earlier run from the page."""
    if not figures.history:
        return PAGE.read_text().partition(HISTORY_TITLE)[2].partition(GROWTH_TITLE)[0].strip()
    return f"""Measured on {datetime.now(UTC):%Y-%m-%d}, of {figures.history:,} events.
`waybill pipeline backfill` computed all tables in {figures.backfill_s:.0f} s, with at most {figures.backfill_mb:,} MB
of memory for all its processes; `report --html` took {figures.report_s:.0f} s from its start to its end (wanted:
{REPORT_LIMIT_S}), with at most {figures.report_mb:,} MB."""


@click.command(help=__doc__)
@click.option("--events", default=1_000_000, show_default=True, help="Events of a stream, and as many jobs.")
@click.option("--history", default=5_000_000, show_default=True, help="Events that the report is about; 0: no report.")
@click.option("--quick", is_flag=True, help="A twentieth of it; writes no page.")
def main(*, events: int, history: int, quick: bool) -> None:
    console = Console()
    if build_kind() == "interpreted":
        console.print("this is the plain source; `make bench-pipeline` measures the package as pip compiles it")
    if quick:
        events, history = events // 20, history // 20
    with (
        tempfile.TemporaryDirectory(prefix="waybill-bench-") as name,
        own_broker("--data-dir", name + "/broker") as uri,
    ):
        directory = Path(name)
        with console.status("real workers at work"):
            lives = record(uri)
        spark = local_session("waybill-bench", log_file=directory / "spark.log")
        try:
            bench = Bench(spark, uri, directory, lives, console)
            bench.run(events)
        finally:
            spark.stop()
        if history:
            measure_report(lives, history, directory / "history", bench.figures, console)
    if not quick:
        PAGE.write_text(
            page(bench.figures, events, f"python -m benchmarks.pipeline --events {events} --history {history}")
        )
        console.print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
