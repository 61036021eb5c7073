"""The log of a table: which files it has. A commit adds and removes files in one step, which readers see whole or not.

Delta and Iceberg tables are Parquet files and such a log. Spark writes the files, and the format's own library the log.
So neither needs jars, which would have to be for exactly this version of Spark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from pyspark.sql.types import StructType

from waybill.pipeline.tables import TablesError

DAY: Final = "date"
"""The column by which a table may be divided: each of its files has rows of one day."""
RETENTION_DAYS: Final = 7
"""Days for which files stay that are in the table no longer: for readers of an older version."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as its log names it. `day`: of its rows, in a table that is divided by day."""

    name: str
    size: int
    rows: int
    day: date | None = None


class TableLog:
    """The log of one table, which need not exist. `schema` is that of the rows; files may lack columns of it."""

    day_directory = DAY
    """Names the directories of days. A column of the rows that has this name is not in the files."""

    def __init__(self, uri: str, schema: StructType, *, by_day: bool) -> None:
        self.uri = uri
        # Whether a value is missing is known to the pipeline; other readers need not rely on it.
        self.schema = StructType.fromJson(schema.jsonValue())
        for field in self.schema.fields:
            field.nullable = True
        self.by_day = by_day

    @property
    def directory(self) -> str | None:
        """The column that names the directories that files of one write are in."""
        return self.day_directory if self.by_day else None

    def exists(self) -> bool:
        raise NotImplementedError

    def files(self) -> list[DataFile]:
        """The files of the current version; none if there is no table."""
        raise NotImplementedError

    def batch(self) -> int:
        """The number of the last batch that was committed; -1 if there was none."""
        raise NotImplementedError

    def commit(self, added: Sequence[DataFile], removed: Sequence[DataFile] = (), batch: int | None = None) -> None:
        """Add and remove files in one step, and create the table, or its new columns, if need be.

        `added` are named by their paths below the table, `removed` as `files` names them. `batch`: note this number.
        Raises TablesError if somebody else has written meanwhile.
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
        """Delete the files that no version of the last `RETENTION_DAYS` days has."""
        raise NotImplementedError


OpenLog = Callable[[str, StructType, bool], TableLog]
"""Opens the log of a table by its name, schema, and whether it is divided by day."""
