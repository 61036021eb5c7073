"""One run of the whole pipeline, from a stream to the report, for all tests that look at what it leaves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from tests.pipeline.histories import history
from tests.pipeline.streams import Stream
from waybill.pipeline.progress_reports import Step
from waybill.pipeline.report.figures import Report, collect
from waybill.pipeline.run import Settings, run_once
from waybill.pipeline.tables import Tables

JOBS: Final = 80
EVENTS: Final = history(21, JOBS)


@dataclass(frozen=True)
class WholeRun:
    """What it said, and what is there after it."""

    steps: list[Step]
    store: Tables
    report: Report


def run_whole(spark: SparkSession, uri: str, directory: Path) -> WholeRun:
    """Publish the events in messages of several, and something that is no event; bring all tables up to that."""
    steps: list[Step] = []
    with Stream(uri, "whole") as stream:
        stream.publish_events(EVENTS, batch=9)
        stream.publish(b"no event")
        run_once(spark, Settings(uri, directory, stream=stream.name), steps.append)
    store = Tables(directory)
    return WholeRun(steps, store, collect(spark, store))
