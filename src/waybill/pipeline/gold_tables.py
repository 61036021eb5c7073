"""The gold tables and how each is computed, from all of silver or from the facts of some hours.

A new gold table needs its columns in `schemas`, a function in `transforms`, and a row here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from waybill.pipeline import schemas
from waybill.pipeline.tables import BEFORE_GOLD, Table
from waybill.pipeline.transforms import facts, gold, workers
from waybill.pipeline.transforms.objectives import Objectives, attainment

_BUCKET_MS: Final = 60_000


@dataclass(frozen=True)
class Inputs:
    """The common inputs of both computations: jobs and attempts, or their facts."""

    jobs: DataFrame
    attempts: DataFrame
    objectives: Objectives


@dataclass(frozen=True)
class Silver(Inputs):
    """All jobs and attempts, and all events."""

    events: DataFrame


@dataclass(frozen=True)
class HourFacts(Inputs):
    """The facts of some hours (`transforms.facts`), and the reports of workers (`transforms.workers.reports`)."""

    reports: DataFrame


@dataclass(frozen=True)
class GoldTable:
    """A gold table and its two computations, which give equal rows."""

    table: Table
    from_silver: Callable[[Silver], DataFrame]
    from_facts: Callable[[HourFacts], DataFrame]


def _alike(table: Table, compute: Callable[[Inputs], DataFrame]) -> GoldTable:
    return GoldTable(table, compute, compute)


ACTIVITY: Final = Table("gold/activity", schemas.ACTIVITY)
FAILURES: Final = Table("gold/failures", schemas.FAILURES)
DEAD_LETTERS: Final = Table("gold/dead_letters", schemas.DEAD_LETTERS)
RETRIES: Final = Table("gold/retries", schemas.RETRIES)
OBJECTIVES: Final = Table("gold/objectives", schemas.OBJECTIVES)
WORKERS: Final = Table("gold/workers", schemas.WORKERS)

GOLD_TABLES: Final = (
    _alike(ACTIVITY, lambda given: gold.activity(given.jobs, given.attempts)),
    _alike(FAILURES, lambda given: gold.failures(given.attempts)),
    _alike(DEAD_LETTERS, lambda given: gold.dead_letters(given.jobs)),
    GoldTable(
        RETRIES,
        lambda given: gold.retries(given.attempts),
        lambda given: gold.recoveries(given.attempts),
    ),
    GoldTable(
        OBJECTIVES,
        lambda given: attainment(given.jobs, given.objectives),
        lambda given: attainment(facts.timed_jobs_of(given.jobs), given.objectives),
    ),
    GoldTable(
        WORKERS,
        lambda given: workers.utilisation(given.attempts, given.events),
        lambda given: workers.busy_minutes(facts.minutes_of(given.attempts, _BUCKET_MS), given.reports),
    ),
)
GOLD: Final = tuple(one.table for one in GOLD_TABLES)
ALL: Final = (*BEFORE_GOLD, *GOLD)
