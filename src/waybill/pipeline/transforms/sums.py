"""Sums that cannot overflow."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

# An integer overflow is an error in Spark, and would fail each refresh. Doubles do not overflow, and are exact up to
# 2**53: as milliseconds, 285,000 years. Larger sums are capped.
LARGEST: Final = 2.0**62


def total(values: Column) -> Column:
    """An aggregate: the sum of whole numbers as a bigint; null if there are none."""
    added = F.sum(values.cast("double"))
    return F.when(added.isNotNull(), F.least(added, F.lit(LARGEST)).cast("bigint"))
