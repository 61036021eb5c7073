"""Recommendations for each job type, from gold, with the evidence that each rests on.

- A retry policy: the fewest attempts that keep nearly all recoveries, and how long these took.
- A timeout: the 99.9th percentile of run times.
- A concurrency: by Little's law, the average number of busy places in the busiest minute (arrivals per second times
  seconds each), plus what a short wait requires by Sakasegawa's approximation of a queue with several servers (1977),
  which uses only the means of arrivals and run times.

Without enough evidence there is no recommendation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, GroupedData, Row
from pyspark.sql import functions as F  # noqa: N812 - the name in Spark's own documentation

from waybill.pipeline.report.formatting import duration, number, share
from waybill.pipeline.report.inputs import Inputs
from waybill.pipeline.transforms import gold
from waybill.pipeline.transforms.sums import total

TARGET_WAIT_MS: Final = 1000
_KEPT_RECOVERIES: Final = 0.99
_FAILURES_MIN: Final = 20
_RUNS_MIN: Final = 100
_RUN_RANKS: Final = (0.5, 0.99, 0.999)
_RECOVERY_RANKS: Final = (0.5, 0.95)
_TYPES_MAX: Final = 50
_ATTEMPTS_MAX: Final = 1000
_PLACES_MAX: Final = 10_000
_BUCKET_S: Final = 60


@dataclass(frozen=True)
class Evidence:
    """The evidence for a job type. `tries` are ended and completed attempts by their number; times in milliseconds.

    `run` are the percentiles 50, 99 and 99.9 of run times, `recovery` 50 and 95 of the time from a first failure to
    completion, `wait_p95` of queue waits. `busiest` is how many attempts started in the busiest minute.
    """

    job_type: str
    tries: Mapping[int, tuple[int, int]]
    recovery: tuple[int, ...] | None = None
    run: tuple[int, ...] | None = None
    ends: int = 0
    busy_ms: int = 0
    busiest: int = 0
    wait_p95: int | None = None


@dataclass(frozen=True)
class Advice:
    """A value to set, and why."""

    value: float
    evidence: str


@dataclass(frozen=True)
class Recommendation:
    """For one job type: total attempts, timeout in seconds, concurrency. None: too little evidence."""

    job_type: str
    max_attempts: Advice | None
    timeout_s: Advice | None
    concurrency: Advice | None


def recommend(inputs: Inputs, target_wait_ms: int = TARGET_WAIT_MS) -> list[Recommendation]:
    """Recommendations for the job types with the most attempts."""
    found = [advise(evidence, target_wait_ms) for evidence in gather(inputs)]
    return [one for one in found if one.max_attempts or one.timeout_s or one.concurrency]


def advices(recommendation: Recommendation) -> list[tuple[str, Advice]]:
    """The recommendations that exist, by setting."""
    named = (
        ("retry.max_attempts", recommendation.max_attempts),
        ("timeout (s)", recommendation.timeout_s),
        ("concurrency", recommendation.concurrency),
    )
    return [(name, advice) for name, advice in named if advice is not None]


def gather(inputs: Inputs) -> list[Evidence]:
    """Collect the evidence from gold, the types with the most attempts first."""
    activity, retries, peaks = inputs.activity, inputs.retries, inputs.peaks
    ends = F.sum(F.col("completed") + F.col("failed")).alias("ends")
    top = activity.groupBy("job_type").agg(ends).orderBy(F.desc("ends"), "job_type").limit(_TYPES_MAX + 1).collect()
    if len(top) > _TYPES_MAX:
        chosen = [row["job_type"] for row in top[:_TYPES_MAX]]
        is_chosen = F.col("job_type").isin(chosen)
        activity, retries, peaks = (rows.where(is_chosen) for rows in (activity, retries, peaks))
    busiest = {row["job_type"]: row["busiest"] for row in _rows(peaks.groupBy("job_type"), busiest=F.max("started"))}
    runs = _rows(
        activity.groupBy("job_type"),
        ends=F.sum(F.col("completed") + F.col("failed")),
        busy_ms=total(F.col("busy_ms")),
        run=gold.merged_percentiles("run_sketch", _RUN_RANKS),
        wait=gold.merged_percentiles("queue_wait_sketch", (0.95,)),
    )
    tries: dict[str, dict[int, tuple[int, int]]] = {}
    # Attempt numbers come from peers: those beyond any policy are counted together.
    numbered = retries.withColumn("attempt", F.least("attempt", F.lit(_ATTEMPTS_MAX)))
    for row in _rows(numbered.groupBy("job_type", "attempt"), ended=F.sum("ended"), completed=F.sum("completed")):
        tries.setdefault(row["job_type"], {})[row["attempt"]] = (row["ended"], row["completed"])
    recoveries = {
        row["job_type"]: row["recovery"]
        for row in _rows(
            retries.groupBy("job_type"), recovery=gold.merged_percentiles("recovery_sketch", _RECOVERY_RANKS)
        )
    }
    evidence = [
        Evidence(
            job_type=row["job_type"] or gold.UNKNOWN,
            tries=tries.get(row["job_type"], {}),
            recovery=_times(recoveries.get(row["job_type"])),
            run=_times(row["run"]),
            ends=row["ends"] or 0,
            busy_ms=row["busy_ms"] or 0,
            busiest=busiest.get(row["job_type"]) or 0,
            wait_p95=None if row["wait"] is None else int(row["wait"][0]),
        )
        for row in runs
    ]
    return sorted(evidence, key=lambda one: (-one.ends, one.job_type))[:_TYPES_MAX]


def advise(evidence: Evidence, target_wait_ms: int = TARGET_WAIT_MS) -> Recommendation:
    """The recommendations that follow from the evidence."""
    return Recommendation(
        evidence.job_type, _attempts(evidence), _timeout(evidence), _concurrency(evidence, target_wait_ms)
    )


def _attempts(evidence: Evidence) -> Advice | None:
    ended, completed = evidence.tries.get(1, (0, 0))
    failed = ended - completed
    later = {attempt: pair for attempt, pair in sorted(evidence.tries.items()) if attempt > 1}
    tried = sum(pair[0] for pair in later.values())
    recovered = sum(pair[1] for pair in later.values())
    if failed < _FAILURES_MIN or tried < _FAILURES_MIN:
        return None
    if recovered == 0:
        return Advice(
            1, f"{number(failed)} jobs failed at first, and none of {number(tried)} further attempts succeeded"
        )
    kept = 0
    enough = 1
    for attempt, pair in later.items():
        enough = attempt
        kept += pair[1]
        if kept >= _KEPT_RECOVERIES * recovered:
            break
    beyond = [pair for attempt, pair in later.items() if attempt > enough]
    text = (
        f"{number(recovered)} of {number(failed)} jobs that failed at first recovered, {share(kept, recovered)} of them"
    )
    text += f" by attempt {enough}"
    if evidence.recovery is not None:
        text += f", half within {duration(evidence.recovery[0])}, 95 % within {duration(evidence.recovery[1])}"
    if beyond:
        helped = sum(pair[1] for pair in beyond)
        text += f"; {number(sum(pair[0] for pair in beyond))} attempts beyond it helped {number(helped)} jobs"
    return Advice(enough, text)


def _timeout(evidence: Evidence) -> Advice | None:
    if evidence.run is None or evidence.ends < _RUNS_MIN:
        return None
    median, p99, p999 = evidence.run
    text = f"of {number(evidence.ends)} attempts half took {duration(median)}, 99 % at most {duration(p99)}, "
    return Advice(max(1, math.ceil(p999 / 1000)), text + f"99.9 % at most {duration(p999)}")


def _concurrency(evidence: Evidence, target_wait_ms: int) -> Advice | None:
    if evidence.ends < _RUNS_MIN or evidence.busiest == 0:
        return None
    run_ms = evidence.busy_ms / evidence.ends
    load = evidence.busiest / _BUCKET_S * run_ms / 1000
    places = next(
        (
            count
            for count in range(math.floor(load) + 1, _PLACES_MAX)
            if mean_wait(load, count, run_ms) <= target_wait_ms
        ),
        _PLACES_MAX,
    )
    text = f"{number(evidence.busiest)} started in the busiest minute and took {duration(run_ms)} each: "
    text += f"{number(load)} run at a time; a mean wait of {duration(target_wait_ms)} needs spare concurrency"
    if evidence.wait_p95 is not None:
        text += f". 95 % waited at most {duration(evidence.wait_p95)} so far"
    return Advice(places, text)


def mean_wait(load: float, places: int, run_ms: float) -> float:
    """The mean wait in milliseconds if `load` of `places` are busy on average."""
    busy = load / places
    return run_ms / places * math.pow(busy, math.sqrt(2 * (places + 1)) - 1) / (1 - busy)


def _rows(grouped: GroupedData, **aggregates: Column) -> list[Row]:
    return grouped.agg(*(column.alias(name) for name, column in aggregates.items())).collect()


def _times(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(value) for value in values)
