"""The local session, as the commands start it."""

from pyspark.sql import SparkSession


def test_java_has_room_for_the_code_of_many_queries(spark: SparkSession) -> None:
    """When the room is full, Java compiles no more, and each later query is a third slower."""
    pools = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    room = sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code"))
    assert room >= 200 << 20
