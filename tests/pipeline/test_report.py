"""The report: its figures against a plain fold, its page and its tables."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from tests.pipeline.reference_fold import fold
from tests.pipeline.whole_run import EVENTS, WholeRun
from waybill.pipeline import schemas, tables
from waybill.pipeline.report import figures, formatting, scales
from waybill.pipeline.report.alert_rows import AlertRow
from waybill.pipeline.report.figures import Percentiles, Report, collect
from waybill.pipeline.report.page import render
from waybill.pipeline.report.terminal import show
from waybill.pipeline.tables import Tables

NOW = datetime(2026, 3, 1, tzinfo=UTC)
JOB_TYPES_AND_REASONS = [
    *((f"t{number:02}", "Timeout") for number in reversed(range(30))),
    *[("other", "Crash")] * 2,
    (None, "unknown"),
]


@pytest.fixture
def report(whole_run: WholeRun) -> Report:
    return whole_run.report


def test_totals_agree_with_a_plain_fold(report: Report) -> None:
    jobs = fold(EVENTS).values()
    attempts = [attempt for job in jobs for attempt in job.attempts.values()]
    totals = report.totals
    assert totals.events == len(EVENTS)
    assert totals.pushed == totals.jobs == len(jobs)
    assert totals.completed == sum(job.state == "completed" for job in jobs)
    assert totals.discarded == sum(job.state == "discarded" for job in jobs)
    assert totals.completed + totals.discarded + totals.cancelled + totals.open == totals.jobs
    assert totals.attempts == len(attempts)
    assert totals.failures == sum(attempt.outcome == "failed" for attempt in attempts)
    assert totals.retries == sum(attempt.retried for attempt in attempts)
    assert totals.redelivered == sum(attempt.starts > 1 for attempt in attempts)


def test_parts_add_up_to_the_totals(report: Report) -> None:
    totals = report.totals
    for name in ("pushed", "completed", "recovered", "discarded", "open", "failures", "retries"):
        assert sum(getattr(row, name) for row in report.job_types) == getattr(totals, name)
    assert sum(bucket.enqueued for bucket in report.timeline) == totals.pushed
    assert sum(bucket.failed for bucket in report.timeline) == totals.failures
    assert sum(row.failed for row in report.failures) == totals.failures
    assert sum(row.retried for row in report.failures) == totals.retries
    assert sum(row.jobs for row in report.dead_letters) == totals.discarded
    assert sum(row.attempts for row in report.workers) == totals.attempts
    assert sum(row.ended for row in report.job_types) == totals.completed + totals.discarded
    assert 0 < sum(row.in_time for row in report.job_types) <= totals.completed
    # Nobody said how many places there were.
    assert {(row.places, row.utilisation) for row in report.workers} == {(None, None)}


def test_the_axis_has_no_holes(report: Report) -> None:
    starts = [bucket.start for bucket in report.timeline]
    step = timedelta(seconds=report.bucket_seconds)
    assert all(later - earlier == step for earlier, later in pairwise(starts))


def test_json_holds_everything(report: Report) -> None:
    plain = json.loads(json.dumps(report.as_json()))
    assert plain["totals"]["completed"] == report.totals.completed
    assert plain["start"].startswith("2026-03-01T23:59:3")
    assert plain["start"].endswith("Z")
    assert len(plain["timeline"]) == len(report.timeline)


class Tags(HTMLParser):
    """Collects tags and attributes, and checks that every tag that needs it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag not in {"meta", "line", "path", "rect", "circle"} or tag == "rect":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(report: Report) -> None:
    page = render(report, NOW)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert not {name for name, _ in tags.attributes} & {"src", "href", "onclick", "onload"}
    assert "<script" not in page
    assert not re.search(r"url\(|@import|https?://", page)
    assert "prefers-color-scheme: dark" in page
    for text in ("Throughput", "Queue wait", "Run time", "Failed attempts", "Dead letters", "Workers"):
        assert text in page


def test_the_page_trusts_no_text_of_a_job(report: Report) -> None:
    job_types = [replace(row, job_type="<b>&", queue="<i>") for row in report.job_types]
    dead_letters = [replace(row, reason="<b>", example_message='"><b>') for row in report.dead_letters]
    failures = [replace(row, error_type="<b>", example_message="<b>") for row in report.failures]
    workers = [replace(row, worker_id="<b>") for row in report.workers]
    page = render(
        replace(
            report,
            job_types=job_types,
            dead_letters=dead_letters,
            failures=failures,
            workers=workers,
            malformed_reasons={"<b>": 1},
            alerts=[AlertRow("<b>", "<i>", "<b>&", NOW, None, "<b>")],
        ),
        NOW,
    )
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert "<i>" not in page


def test_without_events_there_is_a_report_of_zeros(spark: SparkSession, tmp_path: Path) -> None:
    empty = collect(spark, Tables(tmp_path))
    assert (empty.totals.jobs, empty.totals.queue_wait, empty.timeline) == (0, None, [])
    assert "No job has ended yet" in render(empty, NOW)
    show(empty, Console(file=io.StringIO()))


def test_many_reasons_of_quarantine_add_up(spark: SparkSession, tmp_path: Path) -> None:
    store = Tables(tmp_path)
    long = "concat('job.', repeat('x', 300), id % 60, ' without subject')"
    odd = spark.range(130).selectExpr(f"if(id < 120, {long}, concat('reason ', id)) reason")
    missing = [column for column in schemas.QUARANTINE.fieldNames() if column not in ("reason", "batch_id")]
    store.write_batch(odd.selectExpr(*(f"null {name}" for name in missing), "reason"), tables.QUARANTINE, 0)
    report = collect(spark, store)
    assert report.totals.malformed == sum(report.malformed_reasons.values()) == 130
    assert list(report.malformed_reasons.values()) == [98, 32]
    assert "others" in report.malformed_reasons


def test_the_terminal_shows_every_table(report: Report) -> None:
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for title in ("Jobs", "By job type", "Times", "Done in time", "Failed attempts", "Dead letters", "Workers"):
        assert title in text
    assert f"{report.totals.completed} completed" in text


def test_a_narrow_terminal_cuts_long_examples_and_no_numbers(report: Report) -> None:
    failure = replace(report.failures[0], job_type="order.ship", failed=101, example_message="x" * 600)
    job_type = replace(report.job_types[0], job_type="order.ship", pushed=10_003)
    console = Console(file=io.StringIO(), width=80)
    show(replace(report, failures=[failure], job_types=[job_type]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    row = next(line for line in text.splitlines() if "xxx" in line)
    assert ("order.ship" in row, "101" in row, "xxx…" in row) == (True, True, True)
    assert "10,003" in text


def test_alerts_are_shown_where_there_are_some(report: Report) -> None:
    assert "Alerts" not in render(report, NOW)
    opened = NOW.replace(tzinfo=None)
    over = AlertRow("late", "orders", "order.ship", opened, opened + timedelta(minutes=90), "80 of 400 jobs")
    alarmed = replace(report, alerts=[replace(over, rule="fewer", closed_at=None), over])
    page = render(alarmed, NOW)
    console = Console(file=io.StringIO(), width=160)
    show(alarmed, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "<small>1 open</small>" in page
    for said in ("fewer", "since 01 Mar 00:00", "01 Mar 00:00 to 01 Mar 01:30", "80 of 400 jobs"):
        assert said in page
        assert said in text
    assert json.loads(json.dumps(alarmed.as_json()))["alerts"][1]["closed_at"] == "2026-03-01T01:30:00Z"


def test_durations_are_said_in_fitting_units() -> None:
    said = [formatting.duration(value) for value in (0, 999, 1250, 59_999, 200_000, 7_500_000)]
    assert said == ["0 ms", "999 ms", "1.25 s", "60 s", "3 min 20 s", "2 h 5 min"]
    assert [formatting.number(value) for value in (12_345, 3.21, 0.042, 250.5)] == ["12,345", "3.2", "0.042", "250"]


def test_a_share_is_never_rounded_to_all_or_nothing() -> None:
    assert [formatting.share(part, 100_000) for part in (0, 1, 99_999, 100_000)] == [
        "0 %",
        "0.01 %",
        "99.99 %",
        "100 %",
    ]
    assert formatting.share(0, 0) == "–"  # noqa: RUF001


def test_scales_reach_their_largest_value_in_round_steps() -> None:
    for largest in (0, 0.3, 1, 7, 99, 100, 101, 12_345):
        scale = scales.linear(largest, 200, 0)
        assert scale.top >= largest
        assert scale(0) == 200
        assert scale(scale.top) == 0
        assert 2 <= len(scale.ticks) <= 6
    decades = scales.logarithmic(3, 4200, 200, 0)
    assert decades.ticks == [1, 10, 100, 1000, 10_000]
    assert decades(0) == 200
    assert decades(100) == 100


def test_percentiles_are_ordered(report: Report) -> None:
    for values in (report.totals.queue_wait, report.totals.run):
        assert isinstance(values, Percentiles)
        assert values.p50 <= values.p95 <= values.p99


def test_a_reason_for_dead_letters_has_its_first_job_types(spark: SparkSession) -> None:
    rows = [(NOW, "q", job_type, reason, 2, 6, "j", "no") for job_type, reason in JOB_TYPES_AND_REASONS]
    found = figures._dead_letters(spark.createDataFrame(rows, schemas.DEAD_LETTERS))
    assert [(row.reason, row.jobs, row.job_types) for row in found] == [
        ("Timeout", 60, [f"t{number:02}" for number in range(12)]),
        ("Crash", 4, ["other"]),
        ("unknown", 2, []),
    ]
