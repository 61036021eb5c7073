"""Sums of gold for alert rules, by queue and job type. `now` is a Unix time in whole seconds."""

from collections.abc import Iterable
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline.alert_conditions import Sums
from waybill.pipeline.alert_rules import COUNTS, AnomalyRule, BurnRule
from waybill.pipeline.transforms.gold import merged_percentiles

Key: TypeAlias = tuple[str, str]
"""A queue and a job type."""
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_RANK: Final = 0.95


def window_sums(rule: BurnRule, activity: DataFrame, objectives: DataFrame, now: int) -> dict[Key, Sums]:
    """The jobs that ended and those that missed the objective, in each window of a rule that ends now."""
    if rule.measure == "in_time":
        rows, ended, good = objectives, F.col("ended"), F.col("in_time")
    else:
        rows, ended, good = activity, F.col("completed") + F.col("discarded"), F.col("completed")
    lengths = sorted({length for window in rule.windows for length in (window.long_s, window.short_s)})
    age = _age(now)
    chosen = _of(rows, rule.queue, rule.job_type).where((age > 0) & (age <= lengths[-1]))
    sums = [
        F.sum(F.when(age <= length, value).otherwise(0)).alias(f"{name}_{length}")
        for length in lengths
        for name, value in (("ended", ended), ("missed", ended - good))
    ]
    return {
        _key(row): {length: (int(row[f"ended_{length}"]), int(row[f"missed_{length}"])) for length in lengths}
        for row in chosen.groupBy("queue", "job_type").agg(*sums).collect()
    }


def hours(rule: AnomalyRule, activity: DataFrame, now: int) -> dict[Key, tuple[float | None, list[float]]]:
    """The value of the last hour, and those of the same hour on previous days with data, newest first.

    An hour without rows counts 0 jobs, and has no times.
    """
    # A bucket may end now; a bucket that begins now is incomplete.
    second = _age(now) - 1
    lookback = (rule.days + 1) * _DAY_S
    rows = _of(activity, rule.queue, rule.job_type).where((second >= 0) & (second < lookback))
    days = rows.groupBy("queue", "job_type", F.floor(second / _DAY_S).alias("day"))
    is_counted = rule.measure in COUNTS
    is_wanted = second % _DAY_S < _HOUR_S
    if is_counted:
        value = F.sum(F.when(is_wanted, F.col(rule.measure)).otherwise(0)).cast("double")
    else:
        sketch = F.when(is_wanted, F.col(f"{rule.measure.removesuffix('_ms')}_sketch"))
        rows = rows.withColumn("sketch", sketch)
        days = rows.groupBy("queue", "job_type", F.floor(second / _DAY_S).alias("day"))
        value = merged_percentiles("sketch", (_RANK,))[0].cast("double")
    found: dict[Key, dict[int, float | None]] = {}
    for row in days.agg(value.alias("value")).collect():
        found.setdefault(_key(row), {})[int(row["day"])] = row["value"]
    return {key: _in_order(values, rule.days, missing=0.0 if is_counted else None) for key, values in found.items()}


def _in_order(values: dict[int, float | None], days: int, *, missing: float | None) -> tuple[float | None, list[float]]:
    oldest = min(max(values), days)
    former: Iterable[float | None] = (values.get(day, missing) for day in range(1, oldest + 1))
    return values.get(0, missing), [value for value in former if value is not None]


def _of(rows: DataFrame, queue: str | None, job_type: str | None) -> DataFrame:
    for name, value in (("queue", queue), ("job_type", job_type)):
        if value is not None:
            rows = rows.where(F.col(name) == value)
    return rows


def _age(now: int) -> Column:
    """Seconds from the start of a bucket to now."""
    return F.lit(now) - F.unix_seconds("bucket")


def _key(row: Row) -> Key:
    return str(row["queue"] or ""), str(row["job_type"] or "")
