"""No event stops a table: whatever a message holds is counted once, in a table or in quarantine, and all goes on."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from rich.console import Console

from tests.pipeline.histories import START, event, rows_of, stamp
from tests.pipeline.odd_events import bodies, encoded, listed
from waybill.pipeline import run, tables
from waybill.pipeline.message import MessageBlock, Metadata, Properties
from waybill.pipeline.message_columns import MessageColumns
from waybill.pipeline.nesting import DEEPEST, elements, is_too_deep
from waybill.pipeline.report.figures import OTHERS, Report, collect
from waybill.pipeline.report.page import render
from waybill.pipeline.report.terminal import show
from waybill.pipeline.schemas import EVENT
from waybill.pipeline.tables import Tables

NAMES = EVENT.fieldNames()
NOW = datetime(2026, 6, 1, tzinfo=UTC)
TYPES = 60


def alone(messages: list[bytes]) -> list[tuple[object, ...]]:
    """The rows of messages each of which is read by itself, behind one that is no event: the slow way."""
    return [row for offset, body in enumerate(messages) for row in rows_of([b"junk", body], offset - 1)[1:]]


def test_each_odd_event_has_the_same_row_wherever_it_is_read() -> None:
    messages = listed()
    rows = rows_of(messages)
    assert rows == alone(messages)
    assert {row[1] for row in rows} == set(range(len(messages)))
    # How deep the stack is makes no difference.
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert rows_of(messages) == rows
    finally:
        sys.setrecursionlimit(limit)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(bodies(), min_size=1, max_size=5))
def test_generated_events_have_the_same_row_wherever_they_are_read(messages: list[bytes]) -> None:
    rows = rows_of(messages)
    assert rows == alone(messages)
    assert {row[1] for row in rows} == set(range(len(messages)))


def test_one_that_is_nested_too_deep_does_not_spoil_its_neighbours() -> None:
    def nested(depth: int) -> bytes:
        # Two levels are those of the event itself.
        return encoded("job.enqueued", "j", 1, args="[" * (depth - 2) + "]" * (depth - 2))

    for depth, is_kept in ((DEEPEST, True), (DEEPEST + 1, False), (1500, False), (50_000, False)):
        good, other = nested(10), nested(depth)
        rows = rows_of([b"[" + b", ".join([good, other, good]) + b"]", other])
        reasons = [dict(zip(NAMES, row, strict=True))["malformed"] for row in rows]
        assert [reason is None for reason in reasons] == [True, is_kept, True, is_kept]
        assert is_kept or "nested deeper" in str(reasons[1])


def test_brackets_in_text_are_no_nesting() -> None:
    text = json.dumps({"a": '\\"[{' * 1000}).encode()
    assert not is_too_deep(text)
    assert list(elements(b"[" + text + b", 1,[2 , 3]]")) == [text, b"1", b"[2 , 3]"]
    with pytest.raises(ValueError, match="not closed"):
        list(elements(b"[1, 2"))


def test_what_is_no_text_in_properties_and_headers_is_replaced() -> None:
    """Decoders keep such octets as halves of surrogate pairs, which no column holds."""
    headers: dict[str, object] = {"h\udcfe": "\udcff", "n": {"a": ["\udcff", float("inf"), 2**70]}, "t": NOW}
    sent = Metadata(None, Properties(content_type="a\udcff", priority=255), headers)
    columns = MessageColumns("s")
    columns.add(MessageBlock("s", [0], [b"\xff"], [sent]))
    (row,) = columns.record_batch().to_pylist()
    assert row["properties"]["content_type"] == "a\ufffd"
    assert dict(row["headers"])["h\ufffd"] == "\ufffd"
    assert json.loads(dict(row["headers"])["n"])["a"][0] == "\ufffd"


def many_errors() -> list[bytes]:
    """A job of each of many types, failing with an error of its own and with one that all have."""
    found = []
    for number in range(TYPES):
        for attempt, name in ((1, "Common"), (2, f"Own{number}")):
            data = {"job_type": f"t{number}", "attempt": attempt, "error": {"type": name, "message": "x" * 2000}}
            found.append(event("job.failed", START, f"e{number}", attempt, worker_id=f"w{number}", **data))
        found.append(
            event(
                "job.discarded",
                START,
                f"e{number}",
                3,
                job_type=f"t{number}",
                total_attempts=2,
                last_error=data["error"],
            )
        )
    return [json.dumps(one).encode() for one in found]


def long_runs() -> list[bytes]:
    """As many of the longest run times as fit, of one job and in one minute; places beyond all measure."""
    runs = [encoded("job.completed", "long", n, attempt=str(n), duration_ms="31622400000") for n in range(1, 40)]
    return [*runs, encoded("worker.started", "w1", 99, concurrency="2147483647")]


def written(spark: SparkSession, directory: Path, messages: list[bytes]) -> tuple[Tables, int]:
    """All tables of these messages; and how many rows there were."""
    store = Tables(directory)
    store.prepare()
    rows = rows_of(messages)
    step = run.write_bronze(spark.createDataFrame(rows, EVENT).coalesce(2), 0, store)
    assert step.events + step.malformed == len(rows)
    (directory / "checkpoint").mkdir()
    run.refresh(spark, store, lambda _: None)
    return store, len(rows)


def check_report(report: Report, rows: int) -> None:
    totals = report.totals
    assert totals.events + totals.malformed == rows
    assert len(report.timeline) <= 121
    for parts, name, total in (
        (report.failures, "failed", totals.failures),
        (report.errors, "failed", totals.failures),
        (report.dead_letters, "jobs", totals.discarded),
        (report.workers, "attempts", totals.attempts),
        (report.job_types, "pushed", totals.pushed),
        (report.job_types, "failures", totals.failures),
    ):
        assert sum(getattr(part, name) for part in parts) == total
    page = render(report, NOW)
    assert len(page) < 300_000
    console = Console(file=io.StringIO(), width=160)
    show(report, console)
    assert "\x1b[2J" not in console.file.getvalue()  # type: ignore[attr-defined]
    json.dumps(report.as_json())


@settings(max_examples=1, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(bodies(), min_size=150, max_size=200))
def test_odd_events_stop_no_table_and_no_report(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, generated: list[bytes]
) -> None:
    """One run for the listed and the generated ones, as each costs many queries."""
    ahead = encoded("job.enqueued", "ahead", 1, time=json.dumps(stamp(NOW + timedelta(days=3000))))
    old = encoded("job.enqueued", "old", 1, time='"2000-01-01T00:00:00Z"')
    messages = [*listed(), *many_errors(), *long_runs(), ahead, old, *generated]
    store, count = written(spark, tmp_path_factory.mktemp("odd"), messages)
    report = collect(spark, store, NOW)
    check_report(report, count)
    common = next(error for error in report.errors if error.error_type == "Common")
    assert common.failed == TYPES
    assert report.failures[-1].job_type == report.job_types[-1].job_type == OTHERS
    assert report.totals.ahead >= 1
    assert report.end is not None
    assert report.end.replace(tzinfo=UTC) < NOW
    jobs = {row["job_id"]: row for row in store.read(spark, tables.JOBS).collect()}
    assert jobs["long"]["run_ms"] == 39 * 31_622_400_000
    assert max(row["attempt"] for row in store.read(spark, tables.ATTEMPTS).collect()) == 2**31 - 1
