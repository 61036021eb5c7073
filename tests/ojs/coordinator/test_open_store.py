"""A database that cannot be used says so, and what to do."""

from pathlib import Path

import pytest

from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.errors import DatabaseUnusable


@pytest.mark.parametrize("content", [b"no database" * 1000, b"SQLite format 3\0" + b"\xff" * 8176])
def test_a_damaged_file_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "jobs.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseUnusable, match="rebuilt from the event stream"):
        open_job_store(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_directory_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match="unable to open"):
        open_job_store(f"sqlite:///{tmp_path}/none/jobs.db")
