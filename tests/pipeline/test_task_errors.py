"""Errors of Spark in one line, with the way out if it is known."""

from pathlib import Path

import pytest

from waybill.pipeline.parquet_files import REPAIRED, DamagedFileError, read_table, row_count
from waybill.pipeline.task_errors import spark_error

UNREADABLE = """An error occurred while calling o351.collectToPython.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a/b.parquet.
\tat org.apache.spark.sql.errors.QueryExecutionErrors
Caused by: java.lang.RuntimeException: file:/a/b.parquet is not a Parquet file. Expected magic number at tail
"""
FULL = """Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times
\tat org.apache.spark.executor.Executor
Caused by: java.io.IOException: No space left on device
"""
OWN = """An exception was thrown from the Python worker:
waybill.pipeline.sink.SinkError: row 3 of partition 0: [ODD] thing
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            UNREADABLE,
            f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///a/b.parquet.; {REPAIRED}",
        ),
        (FULL, "No space left on device: free disk space, and start again, which continues where this ended"),
        (OWN, "row 3 of partition 0: [ODD] thing"),
        (
            "An error occurred\n: java.lang.AssertionError: assertion failed\n",
            "java.lang.AssertionError: assertion failed",
        ),
        ("[UNRESOLVED_COLUMN] no such column\nmore", "[UNRESOLVED_COLUMN] no such column"),
        (
            "\n[PARSE_SYNTAX_ERROR] Syntax error at '('.\n\n== SQL ==\nx (((\n",
            "[PARSE_SYNTAX_ERROR] Syntax error at '('.",
        ),
        ("", "the query failed"),
    ],
)
def test_an_error_of_spark_is_one_line(text: str, line: str) -> None:
    assert spark_error(text) == line


@pytest.mark.parametrize("content", [None, b"", b"hello", b"PAR1" + b"\0" * 50 + b"PAR1"])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "odd.parquet"
    if content is not None:
        file.write_bytes(content)
    for read in (row_count, read_table):
        with pytest.raises(
            DamagedFileError, match=r"odd\.parquet cannot be read as Parquet: .*how tables are repaired"
        ):
            read(file)
