"""`waybill pipeline`: turn job events into tables, and the tables into a report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.progress import Progress

from waybill.cli import metrics_server
from waybill.cli.console import Console
from waybill.cli.echo import echo
from waybill.cli.pipeline_alerts import alerts
from waybill.cli.pipeline_lag import lag
from waybill.cli.pipeline_session import explained_failures, spark_session
from waybill.cli.ranges import PORT, RATE, Number
from waybill.cli.target import json_option

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from waybill.pipeline.progress_reports import Progress as StepProgress
    from waybill.pipeline.progress_reports import Step
    from waybill.pipeline.run import Settings
    from waybill.pipeline.transforms.objectives import Objectives

_STEPS: Final = {"BatchWritten": "batch", "TableWritten": "table", "Pace": "pace", "Compacted": "compacted"}
_SLO: Final = click.option(
    "--slo",
    "objectives",
    multiple=True,
    metavar="[TYPE=]TIME",
    help="Target time until a job completes: 30s for all, or email.send=5s (repeatable). Default: 1m.",
)


class _DirectoryOrUri(click.Path):
    """A directory, which need not exist, or the URI of one."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        return value if "://" in str(value) else super().convert(value, param, ctx)


_DATA: Final = _DirectoryOrUri(file_okay=False)
_TABLE_FORMAT: Final = click.option(
    "--table-format",
    envvar="WAYBILL_TABLE_FORMAT",
    type=click.Choice(("parquet", "delta", "iceberg")),
    default="parquet",
    show_default=True,
    help="The table format; with delta and iceberg, --data may be in a bucket: s3a://BUCKET/PREFIX.",
)
_CATALOG: Final = click.option(
    "--catalog",
    envvar="WAYBILL_CATALOG",
    help="The catalog of Iceberg tables, by its name in pyiceberg's settings. Default: one in the directory.",
)

_STATE: Final = click.option(
    "--state",
    envvar="WAYBILL_STATE",
    type=click.Path(file_okay=False, path_type=Path),
    help="For tables in a bucket: a local directory for the state of refreshes, which then process new events only.",
)


@click.group()
def command() -> None:
    """Turn job events into tables and a report."""


command.add_command(lag)
command.add_command(alerts)


@command.command()
@click.option("--uri", required=True, envvar="WAYBILL_URI", help="Broker URL: amqp://user:password@host:port/vhost.")
@click.option("--data", required=True, type=_DATA, help="Directory of the tables and the checkpoint.")
@_TABLE_FORMAT
@_CATALOG
@_STATE
@click.option(
    "--stream",
    default="ojs.events",
    show_default=True,
    help="Stream of the events, read with all of its partitions; or several streams, separated by commas.",
)
@click.option(
    "--once/--continuous",
    default=False,
    help="Read existing events, update all tables and exit; or follow the stream (default).",
)
@click.option(
    "--trigger",
    type=Number(0, 86_400),
    default=5.0,
    show_default=True,
    help="Seconds between the starts of two batches, with --continuous.",
)
@click.option(
    "--max-offsets",
    type=click.IntRange(1, 2**63 - 1),
    default=500_000,
    show_default=True,
    help="Maximum messages per batch (maxOffsetsPerTrigger).",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Number of versions of silver and gold to keep for running readers.",
)
@click.option(
    "--compact-every",
    "compact_hours",
    type=Number(0.01, 8760),
    metavar="HOURS",
    help="Interval for merging the event files into few large ones, with --continuous. Default: never.",
)
@click.option(
    "--keep-days", type=click.IntRange(0, 36_500), help="With --compact-every: drop events older than this many days."
)
@_SLO
@click.option("--metrics-port", type=PORT, help="Serve metrics for Prometheus on this port, on loopback.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one object at the end of --once, else one per step.")
def run(
    uri: str,
    data: str,
    table_format: str,
    catalog: str | None,
    state: Path | None,
    stream: str,
    once: bool,
    trigger: float,
    max_offsets: int,
    keep_versions: int,
    compact_hours: float | None,
    keep_days: int | None,
    objectives: tuple[str, ...],
    metrics_port: int | None,
    as_json: bool,
) -> None:
    """Read events from the broker into bronze, silver and gold tables."""
    _check_compaction(compact_hours, keep_days, once=once)
    console = Console(stderr=True)
    with explained_failures(), spark_session(console, data, table_format, short=once) as spark:
        from waybill.pipeline.run import Settings, run_once

        settings = Settings(
            uri,
            data,
            stream=stream,
            table_format=table_format,
            catalog=catalog,
            state=state,
            objectives=_objectives(objectives),
            max_offsets_per_trigger=max_offsets,
            trigger_seconds=trigger,
            versions_kept=keep_versions,
            compact_hours=compact_hours,
            keep_days=keep_days,
        )
        progress = _Steps(console, as_lines=as_json and not once)
        with _measured(spark, console, metrics_port, progress) as note:
            if once:
                with console.status("Reading events"):
                    run_once(spark, settings, note)
                if as_json:
                    echo(json.dumps(progress.as_json()))
                console.print(progress.summary(), f"Tables: {data}", sep="\n")
                return
            _follow(spark, settings, note, console, progress)


def _follow(spark: SparkSession, settings: Settings, note: StepProgress, console: Console, progress: _Steps) -> None:
    from waybill.pipeline.run import run_continuously

    console.print("Following the stream. Press Ctrl-C to stop.")
    try:
        run_continuously(spark, settings, note)
    except KeyboardInterrupt:
        console.print(progress.summary())


@command.command()
@click.option("--data", required=True, type=_DATA, help="The data directory of `waybill pipeline run`.")
@_TABLE_FORMAT
@_CATALOG
@_STATE
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as one self-contained page."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of tables.")
def report(
    data: str, table_format: str, catalog: str | None, state: Path | None, html: Path | None, as_json: bool
) -> None:
    """Show throughput, waits, run times, failures and dead letters."""
    console = Console(stderr=True)
    _check_directory(data)
    with explained_failures(), spark_session(console, data, table_format, short=True) as spark:
        from waybill.pipeline.report.figures import collect
        from waybill.pipeline.report.page import render
        from waybill.pipeline.report.terminal import show
        from waybill.pipeline.table_formats import open_store

        with console.status("Reading tables"):
            figures = collect(spark, open_store(spark, data, table_format, catalog=catalog, state=state))
        if html is not None:
            html.parent.mkdir(parents=True, exist_ok=True)
            html.write_text(render(figures, datetime.now(UTC)), encoding="utf-8")
            console.print(f"Page: {html}")
        if as_json:
            echo(json.dumps(figures.as_json(), indent=2))
        else:
            show(figures, Console())


@command.command()
@click.option("--data", required=True, type=_DATA, help="The data directory of `waybill pipeline run`.")
@_TABLE_FORMAT
@_CATALOG
@_STATE
@click.option("--keep-days", type=click.IntRange(0, 36_500), help="Drop events older than this many days.")
@json_option
def compact(
    data: str, table_format: str, catalog: str | None, state: Path | None, keep_days: int | None, as_json: bool
) -> None:
    """Merge the event files into few large ones.

    Deletes old events. Stop `pipeline run` first.
    """
    console = Console(stderr=True)
    _check_directory(data)
    today = datetime.now(UTC).date()
    with explained_failures(), spark_session(console, data, table_format, short=False) as spark:
        from waybill.pipeline.compaction import compact as compact_events
        from waybill.pipeline.compaction import compact_lake
        from waybill.pipeline.table_formats import open_store
        from waybill.pipeline.tables import Tables

        store = open_store(spark, data, table_format, catalog=catalog, state=state)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("compacting", total=None)
            if isinstance(store, Tables):
                done = compact_events(
                    spark,
                    store,
                    keep_days=keep_days,
                    today=today,
                    on_day=lambda count, total: progress.update(task, completed=count, total=total),
                )
            else:
                with store.locked():
                    done = compact_lake(spark, store, keep_days=keep_days, today=today)
    if as_json:
        echo(json.dumps(asdict(done)))
        return
    echo(f"{done.files_before:,} files merged into {done.files_after:,}; {done.days_rewritten:,} days rewritten, ")
    echo(f"{done.days_dropped:,} days dropped")


@command.command()
@click.option("--data", required=True, type=_DATA, help="The data directory of `waybill pipeline run`.")
@_TABLE_FORMAT
@_CATALOG
@_STATE
@_SLO
@json_option
def backfill(
    data: str,
    table_format: str,
    catalog: str | None,
    state: Path | None,
    objectives: tuple[str, ...],
    as_json: bool,
) -> None:
    """Recompute all silver and gold tables from the stored events.

    For example after an update of Waybill.
    """
    console = Console(stderr=True)
    _check_directory(data)
    written: dict[str, float] = {}
    with explained_failures(), spark_session(console, data, table_format, short=False) as spark:
        from waybill.pipeline.progress_reports import TableWritten
        from waybill.pipeline.run import backfill as compute
        from waybill.pipeline.table_formats import open_store

        with Progress(console=console, transient=True) as progress:
            progress.add_task("computing", total=None)

            def note(step: object) -> None:
                if isinstance(step, TableWritten):
                    written[step.name] = round(written.get(step.name, 0.0) + step.seconds, 3)

            store = open_store(spark, data, table_format, catalog=catalog, state=state)
            with store.locked():
                compute(spark, store, note, _objectives(objectives))
    if as_json:
        echo(json.dumps({"tables": written}))
        return
    for name, seconds in written.items():
        echo(f"{name} in {seconds:.1f} s")


@command.command()
@click.option("--data", required=True, type=_DATA, help="The data directory of `waybill pipeline run`.")
@click.option("--database", default="waybill", show_default=True, help="The database that the views are in.")
@json_option
def views(data: str, database: str, as_json: bool) -> None:
    """Create views of the Parquet tables in Spark's catalog.

    The catalog is a Hive metastore. Run it under spark-submit. The views always show the current version of the tables.
    """
    console = Console(stderr=True)
    _check_directory(data)
    with explained_failures(), spark_session(console, data, "parquet", short=True) as spark:
        from waybill.pipeline.table_formats import open_store
        from waybill.pipeline.views import check_catalog_is_persistent, create_views

        check_catalog_is_persistent(spark)
        made = create_views(spark, open_store(spark, data), database)
    echo(json.dumps({"views": made}) if as_json else "\n".join(made))


@command.command()
@click.option("--uri", required=True, envvar="WAYBILL_URI", help="Broker URL: amqp://user:password@host:port/vhost.")
@click.option("--queue", "queues", multiple=True, required=True, help="Queue whose dead letters to read.")
@click.option("--where", default="true", help="A condition in Spark SQL: \"error_type = 'Timeout' and attempt < 5\".")
@click.option("--rate", type=RATE, help="At most this many jobs per second.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@json_option
def redrive(uri: str, queues: tuple[str, ...], where: str, rate: float | None, dry_run: bool, as_json: bool) -> None:
    """Retry the jobs of dead letters that Spark SQL selects.

    Columns: queue, job_id, job_type, attempt, died_at, reason, error_type, error_message, fingerprint, args. Each job
    is confirmed in its queue before it leaves its dead letter queue, so nothing is lost if the command is stopped.
    """
    console = Console(stderr=True)
    with explained_failures(), spark_session(console, None, "parquet", short=True) as spark:
        from pyspark.errors import AnalysisException, ParseException
        from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

        from waybill.pipeline import dead_letters
        from waybill.pipeline.task_errors import spark_error

        letters = spark.read.format("ojs").option("uri", uri).option("deadLetters", ",".join(queues)).load()
        try:
            chosen = letters.where(where).select("queue", "job_id", "job_type", "error_type", "fingerprint")
        except (AnalysisException, ParseException) as problem:
            raise click.UsageError(f"--where: {spark_error(str(problem))}") from None
        # Read once, so that exactly the jobs shown are moved.
        chosen = chosen.localCheckpoint()
        groups = chosen.groupBy("queue", "job_type", "error_type", "fingerprint").agg(F.count("*").alias("jobs"))
        found = [row.asDict() for row in groups.orderBy(F.desc("jobs"), "fingerprint").collect()]
        total = sum(row["jobs"] for row in found)
        moved = 0
        if not dry_run and total:
            with Progress(console=console, transient=True) as progress:
                task = progress.add_task("redriving", total=total)
                done = dead_letters.redrive(
                    chosen.select("queue", "job_id"),
                    uri,
                    rate=rate,
                    on_progress=lambda count: progress.update(task, completed=count),
                )
            moved = done.done
        if as_json:
            echo(json.dumps({"chosen": total, "moved": moved, "groups": found}))
            return
        for row in found:
            echo(f"{row['jobs']:>8,}  {row['fingerprint']}  {row['queue']}  {row['job_type']}  {row['error_type']}")
        echo(f"{total:,} chosen, {moved:,} moved{' (dry run)' if dry_run else ''}")


def _objectives(given: tuple[str, ...]) -> Objectives:
    """The objectives of the options --slo. Raises UsageError."""
    from waybill.pipeline.named_options import OptionError, duration_ms
    from waybill.pipeline.transforms.objectives import DEFAULT_MS, Objectives

    by_type = {}
    try:
        for text in given:
            job_type, _, time = text.rpartition("=")
            by_type[job_type] = duration_ms("--slo", time)
    except OptionError as problem:
        raise click.UsageError(str(problem)) from None
    return Objectives(by_type.pop("", DEFAULT_MS), by_type)


def _check_compaction(compact_hours: float | None, keep_days: int | None, *, once: bool) -> None:
    if compact_hours is not None and once:
        raise click.UsageError("--compact-every needs --continuous: after --once, run `waybill pipeline compact`")
    if keep_days is not None and compact_hours is None:
        raise click.UsageError("--keep-days needs --compact-every")


def _check_directory(data: str) -> None:
    if "://" not in data and not Path(data).is_dir():
        raise click.ClickException(f"{data} is not a directory: run `waybill pipeline run --data {data}` first")


@contextmanager
def _measured(
    spark: SparkSession, console: Console, port: int | None, progress: StepProgress
) -> Iterator[StepProgress]:
    """Serve metrics at `port`, if it is given. Yields the callback for steps."""
    if port is None:
        yield progress
        return
    from waybill.pipeline.query_metrics import QueryMetrics

    metrics = QueryMetrics()

    def note(step: Step) -> None:
        metrics.note(step)
        progress(step)

    spark.streams.addListener(metrics.listener)
    try:
        with metrics_server.serve(lambda: metrics, port) as bound:
            console.print(f"Metrics: http://127.0.0.1:{bound}/metrics", style="dim", highlight=False)
            yield note
    finally:
        spark.streams.removeListener(metrics.listener)


class _Steps:
    """Prints each step of a run, and counts. `as_lines`: also prints a line of JSON."""

    def __init__(self, console: Console, *, as_lines: bool) -> None:
        self._console = console
        self._as_lines = as_lines
        self._batches = 0
        self._events = 0
        self._malformed = 0
        self._behind = 0
        self._tables: dict[str, float] = {}

    def __call__(self, step: Step) -> None:
        from waybill.pipeline.progress_reports import BatchWritten, Compacted, Pace, TableWritten

        if self._as_lines:
            echo(json.dumps({"step": _STEPS[type(step).__name__], **asdict(step)}))
        if isinstance(step, BatchWritten):
            self._batches += 1
            self._events += step.events
            self._malformed += step.malformed
            refused = f", {step.malformed:,} to quarantine" if step.malformed else ""
            self._console.print(f"batch {step.batch_id}: {step.events:,} events{refused}", highlight=False)
        elif isinstance(step, Pace):
            self._behind = step.behind
            behind = f"{step.behind:,} messages behind" if step.behind else "nothing left"
            self._console.print(f"{step.rows_per_second:,.0f} events/s, {behind}", style="dim", highlight=False)
        elif isinstance(step, TableWritten):
            self._tables[step.name] = round(self._tables.get(step.name, 0.0) + step.seconds, 3)
            self._console.print(f"{step.name} in {step.seconds:.1f} s", style="dim", highlight=False)
        elif isinstance(step, Compacted):
            files = f"{step.files_before:,} event files merged into {step.files_after:,}"
            self._console.print(f"{files}; {step.days_dropped:,} days dropped", style="dim", highlight=False)

    def as_json(self) -> dict[str, object]:
        """The totals of this run: seconds by table, and counts."""
        return {
            "batches": self._batches,
            "events": self._events,
            "malformed": self._malformed,
            "behind": self._behind,
            "tables": self._tables,
        }

    def summary(self) -> str:
        """Return one line with the number of events that this run has read."""
        return f"{self._events:,} events read, {self._malformed:,} to quarantine."
