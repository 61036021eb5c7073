"""The log of a table, which lists its files. A commit adds and removes files atomically.

Delta and Iceberg tables are Parquet files and such a log. Spark writes the files, and the format's own library the log,
so no jars are needed, which would depend on the exact version of Spark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from pyspark.sql.types import StructType

from waybill.pipeline.tables import TablesError

DAY: Final = "date"
"""The column by which a table may be partitioned: each file has rows of one day."""
RETENTION_DAYS: Final = 7
"""How long removed files stay for readers of an older version."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table, with its name in the log. `day`: the day of its rows, if the table is partitioned."""

    name: str
    size: int
    rows: int
    day: date | None = None


class TableLog:
    """The log of one table, which need not exist. `schema` is that of the rows; files may lack columns of it."""

    day_directory = DAY
    """The column in the names of directories, which is not in the files."""

    def __init__(self, uri: str, schema: StructType, *, by_day: bool) -> None:
        self.uri = uri
        # All columns are nullable for other readers.
        self.schema = StructType.fromJson(schema.jsonValue())
        for field in self.schema.fields:
            field.nullable = True
        self.by_day = by_day

    @property
    def directory(self) -> str | None:
        """The column in the directory names of one write."""
        return self.day_directory if self.by_day else None

    def exists(self) -> bool:
        raise NotImplementedError

    def identity(self) -> str | None:
        """What tells the table from one that is made again at its place; None if there is no table."""
        raise NotImplementedError

    def files(self) -> list[DataFile]:
        """The files of the current version; none if there is no table."""
        raise NotImplementedError

    def batch(self) -> int:
        """The number of the last batch that was committed; -1 if there was none."""
        raise NotImplementedError

    def commit(self, added: Sequence[DataFile], removed: Sequence[DataFile] = (), batch: int | None = None) -> None:
        """Add and remove files in one step; creates the table and new columns if they are missing.

        `added` are paths relative to the table, `removed` are names from `files`. `batch`: record this number. Raises
        TablesError if another process has written meanwhile.
        """
        raise NotImplementedError

    def check_order(self, batch: int | None, last: int) -> None:
        """Raise TablesError for a batch that is not after the last one."""
        if batch is not None and batch <= last:
            raise TablesError(
                f"{self.uri} has batch {last}, but the query is at batch {batch}: the checkpoint is older than the "
                "tables, or two runs write them. Restore the matching checkpoint, or stop one run."
            )

    def clean(self) -> None:
        """Delete the files that are in no version of the last `RETENTION_DAYS` days."""
        raise NotImplementedError


OpenLog = Callable[[str, StructType, bool], TableLog]
"""Opens the log of a table by its name, its schema, and whether it is partitioned by day."""
