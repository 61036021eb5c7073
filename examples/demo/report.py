"""The pipeline over the demo's events, and its report.

python -m examples.demo.report URI TABLES PAGE TOTALS

The same as `waybill pipeline run --once` and `waybill pipeline report`, with one Spark session for both, and the totals
in a file that the demo compares with its own.
"""

import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from waybill.pipeline.progress_reports import BatchWritten, Step
from waybill.pipeline.report.figures import collect
from waybill.pipeline.report.page import render
from waybill.pipeline.report.terminal import show
from waybill.pipeline.run import Settings, run_once
from waybill.pipeline.session import local_session
from waybill.pipeline.tables import Tables

LOG_WIDTH = 120


def main(uri: str, directory: Path, page: Path, totals: Path) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    began = time.monotonic()
    events = 0

    def note(step: Step) -> None:
        nonlocal events
        if isinstance(step, BatchWritten):
            events += step.events

    with console.status("Starting Spark") as status:
        spark = local_session("waybill demo", log_file=directory.parent / "spark.log")
        try:
            status.update("Events into tables")
            run_once(spark, Settings(uri, directory), note)
            status.update("Tables into a report")
            report = collect(spark, Tables(directory))
        finally:
            spark.stop()
    page.write_text(render(report, datetime.now(UTC)), encoding="utf-8")
    totals.write_text(json.dumps(asdict(report.totals)), encoding="utf-8")
    seconds = time.monotonic() - began
    console.print(f"[green]✓[/] {events:,} events from the stream into Parquet tables and a report in {seconds:.0f} s")
    console.print()
    show(report, console)


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:5]))
