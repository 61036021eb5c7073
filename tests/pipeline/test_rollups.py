"""Rows of days are what their minutes come to, whichever files these lie in."""

from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from waybill.pipeline import gold_tables, rollups
from waybill.pipeline.snapshots import Contents, Draft, Snapshots
from waybill.pipeline.tables import Table

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PART = int(NOON.timestamp()) // 3600 * 2
DAY = PART // 48


def put(draft: Draft, table: Table, part: int, *files: list[dict[str, object]]) -> None:
    """Let a part be these files, with the columns of their rows."""
    place = draft.scratch / "written" / f"number={part}"
    place.mkdir(parents=True)
    for number, rows in enumerate(files):
        moments = pa.timestamp("us", tz="UTC")
        whole = pa.Table.from_pylist(rows)
        if "bucket" in whole.column_names:
            whole = whole.set_column(whole.schema.get_field_index("bucket"), "bucket", whole["bucket"].cast(moments))
        pq.write_table(whole, place / f"{number}.parquet")
    draft.replace(table, [part], draft.scratch / "written")


def of_day(draft: Draft, days: rollups._Days) -> list[dict[str, object]]:
    found = days.of(draft.files(days.source, range(DAY * 48, DAY * 48 + 48)))
    return [] if found is None else found.to_pylist()


def days_of(table: Table) -> rollups._Days:
    (found,) = [one for one in (*rollups._DAYS_OF_MINUTES, *rollups._DAYS_OF_TOTALS) if one.table == table]
    return found


def minute(number: int, **cells: object) -> dict[str, object]:
    return {"bucket": NOON + timedelta(minutes=number), "queue": "q", "job_type": "t", **cells}


def test_the_example_of_a_day_is_that_of_its_first_minute_even_if_it_is_none(tmp_path: Path) -> None:
    draft = Snapshots(tmp_path).draft(None, number=1)
    late = minute(70, error_type="E", failed=2, retried=1, example_job_id="late", example_message="late")
    early = minute(3, error_type="E", failed=5, retried=0, example_job_id="early", example_message=None)
    other = minute(1, error_type=None, failed=1, retried=0, example_job_id="other", example_message="other")
    put(draft, gold_tables.FAILURES, PART + 2, [late])
    put(draft, gold_tables.FAILURES, PART, [other, early])
    rows = sorted(of_day(draft, days_of(rollups.FAILURE_DAYS)), key=lambda row: str(row["error_type"]))
    assert [(row["error_type"], row["failed"], row["retried"], row["example_job_id"]) for row in rows] == [
        ("E", 7, 1, "early"),
        (None, 1, 0, "other"),
    ]
    assert rows[0]["example_message"] is None
    assert (rows[0]["bucket"], rows[0]["last"]) == (NOON + timedelta(minutes=3), NOON + timedelta(minutes=70))


def test_the_peak_of_a_day_is_a_minute_of_all_queues_and_files(tmp_path: Path) -> None:
    draft = Snapshots(tmp_path).draft(None, number=1)
    put(
        draft,
        gold_tables.ACTIVITY,
        PART,
        [minute(0, started=4), minute(0, queue="p", started=2), minute(1, started=7)],
        [minute(0, started=3, queue="r")],
    )
    (row,) = of_day(draft, days_of(rollups.PEAK_DAYS))
    assert (row["job_type"], row["started"]) == ("t", 9)


def test_sums_of_milliseconds_end_before_their_type_does(tmp_path: Path) -> None:
    draft = Snapshots(tmp_path).draft(None, number=1)
    row = {"worker_id": "w", "attempts": 1, "redelivered": 0, "completed": 1, "failed": 0, "busy_ms": 2**62}
    for part in (PART, PART + 1, PART + 3):
        put(draft, rollups.ATTEMPT_TOTALS, part, [row])
    (found,) = of_day(draft, days_of(rollups.ATTEMPT_DAYS))
    assert (found["attempts"], found["busy_ms"]) == (3, 2**62)


def test_a_day_without_anything_has_no_rows(tmp_path: Path) -> None:
    draft = Snapshots(tmp_path).draft(None, number=1)
    rollups._store(draft, days_of(rollups.WORKER_DAYS), DAY, range(DAY * 48, DAY * 48 + 48))
    done = draft.finish(Contents(), rollups.ROLLUPS)
    assert done.all_parts(rollups.WORKER_DAYS) == []


def test_days_with_few_hours_are_rolled_up_together() -> None:
    """A history of one event for each day would take several queries for each month."""
    hours, parts = [24 * day + 5 for day in range(3000)], [48 * day + 10 for day in range(3000)]
    steps = list(rollups._steps(hours, parts))
    assert len(steps) == 3
    assert [list(chain(*found)) for found in zip(*steps, strict=True)] == [hours, parts]
    busy = list(rollups._steps(range(24 * 62), range(48 * 62)))
    assert [(len(found), len(also)) for found, also in busy] == [(24 * 31, 48 * 31)] * 2
    assert list(rollups._steps([7], [])) == [([7], [])]
    assert not list(rollups._steps([], []))
