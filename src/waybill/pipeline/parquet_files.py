"""Reads Parquet files without Spark. A file that is damaged, missing or of another kind is named."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

REPAIRED: Final = "docs/how-to/pipeline.md says how tables are repaired"


class DamagedFileError(RuntimeError):
    """A file cannot be read as Parquet. The message names it."""


def row_count(file: str | Path) -> int:
    """The rows of a local file. Raises DamagedFileError."""
    with _named(file):
        return int(pq.read_metadata(file).num_rows)


def read_table(file: str | Path, **options: Any) -> pa.Table:  # noqa: ANN401 - those of pyarrow
    """The rows of a file; `options` are pyarrow's, and directories are no columns. Raises DamagedFileError."""
    with _named(file):
        return pq.read_table(file, partitioning=None, **options)


@contextmanager
def _named(file: str | Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        raise DamagedFileError(f"{file} cannot be read as Parquet: {str(problem).strip()}; {REPAIRED}") from None
