"""Settings of Spark for tests of a few rows each: their plans take longer to compile than to run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

FOR_FEW_ROWS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
_AS_USERS_HAVE_THEM: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "true",
}


@contextmanager
def as_users_have_it(spark: SparkSession) -> Iterator[None]:
    """With compiled and adaptive plans."""
    before = {name: str(spark.conf.get(name)) for name in _AS_USERS_HAVE_THEM}
    _set(spark, _AS_USERS_HAVE_THEM)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        spark.conf.set(name, value)
