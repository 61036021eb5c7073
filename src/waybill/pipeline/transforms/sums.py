"""Sums that cannot overflow."""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's own documentation uses

# A sum of whole numbers that outgrows its type is an error in Spark, and would be one at each refresh. Doubles grow on,
# and are exact up to 2**53: as milliseconds, 285,000 years. What is larger ends here.
LARGEST: Final = 2.0**62


def total(values: Column) -> Column:
    """An aggregate: the sum of whole numbers as a bigint; null if there are none."""
    added = F.sum(values.cast("double"))
    return F.when(added.isNotNull(), F.least(added, F.lit(LARGEST)).cast("bigint"))
