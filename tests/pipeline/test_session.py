"""The local session, as the commands start it."""

from pyspark.sql import SparkSession


def test_java_has_room_for_the_code_of_many_queries(spark: SparkSession) -> None:
    """When the room is full, Java compiles no more, and each later query is a third slower."""
    pools = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    room = sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code"))
    assert room >= 200 << 20


def test_no_table_is_copied_to_each_task_by_a_guess_of_its_size(spark: SparkSession) -> None:
    """300,000 jobs with names of 4 KB are 7 MB in a file, and did not fit in memory: no refresh ended."""
    joined = spark.range(10).join(spark.range(10), "id")
    assert "Broadcast" not in joined._jdf.queryExecution().executedPlan().toString()
