"""Views in Spark's catalog of the tables in a directory: `database.silver_jobs`, `database.gold_activity`, ..."""

from pyspark.sql import SparkSession

from waybill.pipeline import gold_tables
from waybill.pipeline.tables import Tables, TablesError, TableStore


def create_views(spark: SparkSession, store: TableStore, database: str) -> list[str]:
    """Create a view of each existing table. Returns their names.

    A view reads a path that always leads to the current version, so it need not be created again after a refresh.
    Raises TablesError for tables of other formats.
    """
    if not isinstance(store, Tables):
        raise TablesError(
            "views only cover Parquet tables: Iceberg tables are in their catalog; for Delta tables, run in a Spark "
            "with Delta: CREATE TABLE name USING delta LOCATION 'place/silver/jobs'"
        )
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    made = []
    for table in gold_tables.ALL:
        if not store.has(table):
            continue
        name = table.name.replace("/", "_")
        columns = ", ".join(map(_quoted, table.schema.fieldNames()))
        # Spark's SQL takes names as text only; all of them are quoted.
        place = _quoted(str(store.directory / table.name))
        spark.sql(
            f"CREATE OR REPLACE VIEW {_quoted(database)}.{_quoted(name)} AS SELECT {columns} FROM parquet.{place}"  # noqa: S608 - see above
        )
        made.append(f"{database}.{name}")
    return made


def check_catalog_is_persistent(spark: SparkSession) -> None:
    """Raise TablesError if the catalog is lost when the session ends."""
    if spark.conf.get("spark.sql.catalogImplementation", "in-memory") != "hive":
        raise TablesError(
            "the catalog of this session ends with it: run the command under spark-submit, with your metastore and "
            "--conf spark.sql.catalogImplementation=hive"
        )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
