"""What is recommended, and that the evidence is what the attempts say."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from waybill.pipeline import gold_tables
from waybill.pipeline.report.inputs import Inputs
from waybill.pipeline.report.recommendations import Advice, Evidence, advise, gather, mean_wait
from waybill.pipeline.schemas import ATTEMPTS, JOBS
from waybill.pipeline.tables import Tables
from waybill.pipeline.transforms import gold

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def advice(found: Advice | None) -> Advice:
    assert found is not None
    return found


def test_as_few_attempts_as_keep_nearly_all_recoveries() -> None:
    tries = {1: (1000, 800), 2: (200, 150), 3: (50, 40), 4: (10, 1), 5: (9, 0)}
    found = advice(advise(Evidence("t", tries, recovery=(1500, 9000))).max_attempts)
    assert found.value == 3
    assert "191 of 200 jobs that failed at first recovered" in found.evidence
    assert "half within 1.5 s, 95 % within 9 s" in found.evidence
    assert "19 attempts beyond it helped 1 jobs" in found.evidence


def test_retries_that_never_helped_are_not_recommended() -> None:
    found = advice(advise(Evidence("t", {1: (100, 40), 2: (60, 0), 3: (60, 0)})).max_attempts)
    assert found.value == 1
    assert "none of 120 further attempts succeeded" in found.evidence


def test_a_timeout_is_what_all_but_one_in_a_thousand_stay_below() -> None:
    found = advice(advise(Evidence("t", {}, run=(40, 900, 12_300), ends=5000)).timeout_s)
    assert found.value == 13
    assert "99.9 % at most 12.3 s" in found.evidence


def test_places_for_a_wait_are_at_least_what_littles_law_says() -> None:
    evidence = Evidence("t", {}, run=(1, 1, 1), ends=1000, busy_ms=2_000_000, busiest=600, wait_p95=4000)
    found = advice(advise(evidence, target_wait_ms=1000).concurrency)
    assert found.value > 600 / 60 * 2
    assert mean_wait(20, int(found.value), 2000) <= 1000 < mean_wait(20, int(found.value) - 1, 2000)
    stricter = advice(advise(evidence, target_wait_ms=10).concurrency)
    assert stricter.value > found.value


@pytest.mark.parametrize(("load", "places"), [(0.5, 1), (0.9, 1)])
def test_with_one_place_the_wait_is_that_of_a_single_server(load: float, places: int) -> None:
    assert mean_wait(load, places, 100.0) == pytest.approx(100.0 * load / (1 - load))


def test_too_little_evidence_gives_no_advice() -> None:
    found = advise(Evidence("t", {1: (10, 5), 2: (5, 5)}, run=(1, 1, 1), ends=99, busy_ms=1, busiest=1))
    assert (found.max_attempts, found.timeout_s, found.concurrency) == (None, None, None)


def attempt(job_id: str, number: int, outcome: str, second: float) -> Row:
    cells: dict[str, object] = dict.fromkeys(ATTEMPTS.fieldNames())
    moment = NOON + timedelta(seconds=second)
    cells |= {"job_id": job_id, "attempt": number, "job_type": "t", "queue": "q", "outcome": outcome, "retried": False}
    return Row(**(cells | {"started_at": moment, "finished_at": moment, "queue_wait_ms": 5, "run_ms": 10 * number}))


@pytest.mark.spark
def test_the_evidence_is_what_the_attempts_say(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        attempt("a", 1, "failed", 0),
        attempt("a", 2, "failed", 2),
        attempt("a", 3, "completed", 7),
        attempt("b", 1, "failed", 61),
        attempt("b", 2, "completed", 64),
        attempt("c", 1, "completed", 62),
        attempt("d", 1, "running", 63),
    ]
    attempts = spark.createDataFrame(rows, ATTEMPTS)
    store = Tables(tmp_path)
    store.replace(gold.retries(attempts), gold_tables.RETRIES)
    store.replace(gold.activity(spark.createDataFrame([], JOBS), attempts), gold_tables.ACTIVITY)
    (found,) = gather(Inputs(spark, store))
    assert found.job_type == "t"
    assert found.tries == {1: (3, 1), 2: (2, 1), 3: (1, 1)}
    assert found.recovery == (3000, 7000)
    assert found.run == (10, 30, 30)
    assert (found.ends, found.busy_ms, found.busiest, found.wait_p95) == (6, 100, 4, 5)
