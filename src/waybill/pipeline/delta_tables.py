"""The tables as Delta tables, below a path or URI that Spark can write.

    ROOT/bronze/events, ROOT/silver/jobs, ...      Delta tables
    ROOT/checkpoint                                Spark's own: offsets and commits of the batches

Every write is one commit of Delta's log, which readers see completely or not at all. A batch replaces the rows with its
number, so one that runs again after a crash is there once, even after its files were compacted. (Delta can also skip a
number that it has seen, but then the rows of such a batch would not be counted.)

Nothing locks the directory. Two runs with one checkpoint are kept apart by Spark, which ends the one that finds the
other's entry in the log of offsets.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline import tables
from waybill.pipeline.tables import Table, TablesError, TableStore

EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_DAY: Final = "date"


class DeltaTables(TableStore):
    """The tables below `root`. Raises TablesError if the session is not set up for Delta."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        if spark.conf.get("spark.sql.catalog.spark_catalog", None) != CATALOG:
            raise TablesError(
                f"table format delta: the session has no Delta: set spark.sql.extensions to {EXTENSION} and "
                f"spark.sql.catalog.spark_catalog to {CATALOG}, and add Delta's jars (spark.jars.packages)"
            )
        self._spark = spark
        self.root = root.rstrip("/")

    def checkpoint_location(self) -> str:
        return f"{self.root}/checkpoint"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nothing to do: see above."""
        yield

    def prepare(self) -> None:
        """Raise TablesError for events without their checkpoint: batches would be numbered from 0 again."""
        if self._is_there(f"{self._place(tables.EVENTS)}/_delta_log") and not self._is_there(
            self.checkpoint_location()
        ):
            raise TablesError(
                f"{self.root} has events but no checkpoint, so it is not known up to where they were read: "
                "restore 'checkpoint', or start with an empty place."
            )

    def has(self, table: Table) -> bool:
        return self._is_there(f"{self._place(table)}/_delta_log")

    def read(self, spark: SparkSession, table: Table) -> DataFrame:
        if not self.has(table):
            return spark.createDataFrame([], table.schema)
        return spark.read.format("delta").load(self._place(table)).select(*table.schema.fieldNames())

    def write_batch(self, rows: DataFrame, table: Table, batch_id: int) -> None:
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", f"batch_id = {batch_id}")
        if _DAY in table.partitions:
            writer = writer.partitionBy(_DAY)
        writer.save(self._place(table))

    def replace(self, rows: DataFrame, table: Table) -> None:
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(self._place(table))

    def file_count(self) -> int:
        """The number of files that the events are in."""
        row = self._spark.sql(f"DESCRIBE DETAIL {self._name(tables.EVENTS)}").first()
        return 0 if row is None else int(row["numFiles"])

    def optimize(self) -> int:
        """Rewrite the events in few files. Returns the number of days rewritten."""
        row = self._spark.sql(f"OPTIMIZE {self._name(tables.EVENTS)}").first()
        return 0 if row is None else int(row["metrics"]["partitionsOptimized"])

    def drop_before(self, first: date) -> int:
        """Drop the events of the days before `first`. Returns the number of these days."""
        old = self.read(self._spark, tables.EVENTS).where(F.col(_DAY) < F.lit(first))
        count = old.select(_DAY).distinct().count()
        if count:
            # Delta's DELETE takes no arguments. The text of a date has only digits and dashes.
            self._spark.sql(f"DELETE FROM {self._name(tables.EVENTS)} WHERE {_DAY} < DATE'{first.isoformat()}'")  # noqa: S608
        return count

    def vacuum(self) -> None:
        """Remove files that no version of the last week uses."""
        for table in tables.ALL:
            if self.has(table):
                self._spark.sql(f"VACUUM {self._name(table)}")

    def _place(self, table: Table) -> str:
        return f"{self.root}/{table.name}"

    def _name(self, table: Table) -> str:
        """The table in SQL, whose quotes are doubled where a path has them."""
        return f"delta.`{self._place(table).replace('`', '``')}`"

    def _is_there(self, place: str) -> bool:
        """Asks Spark's file system for that path. PySpark has no public function for it."""
        hadoop: Any = self._spark._jvm.org.apache.hadoop  # type: ignore[union-attr]  # noqa: SLF001 - see above
        path = hadoop.fs.Path(place)
        configuration = self._spark._jsc.hadoopConfiguration()  # noqa: SLF001 - see above
        return bool(path.getFileSystem(configuration).exists(path))
