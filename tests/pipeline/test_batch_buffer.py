"""What a sink keeps of a partition until all of it is checked: in memory, and in a file."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from waybill.pipeline.batch_buffer import BatchBuffer, NoRoomError

ROWS = pa.RecordBatch.from_pydict({"x": list(range(1000)), "text": [f"row {number}" for number in range(1000)]})
BATCHES = [ROWS.slice(0, 300), ROWS.slice(300, 0), ROWS.slice(300, 1), ROWS.slice(301)]


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/nowhere")
    return tmp_path


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(("memory_bytes", "in_file"), [(1 << 20, False), (5000, True), (0, True)])
def test_batches_come_back_in_their_order_as_often_as_asked(directory: Path, memory_bytes: int, in_file: bool) -> None:
    with BatchBuffer(memory_bytes) as kept:
        assert list(kept.through(iter(BATCHES))) == BATCHES
        assert kept.is_in_file is in_file
        for _ in range(2):
            assert rows_of(list(kept)) == ROWS.to_pylist()
        # A task that is killed leaves nothing.
        assert list(directory.iterdir()) == []


def test_nothing_is_nothing() -> None:
    with BatchBuffer(0) as kept:
        assert list(kept) == []


def test_a_partition_without_a_place_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "gone"))
    with (
        BatchBuffer(0) as kept,
        pytest.raises(NoRoomError, match=r"gone.*Free disk space there, set spark\.local\.dir"),
    ):
        kept.add(ROWS)
