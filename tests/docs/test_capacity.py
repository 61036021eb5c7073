"""The tables of capacities are what the script computes, and the simulated day keeps its promises."""

import dataclasses
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.capacity import DAYS, Sizing, day_of, day_table, main, need_of, table
from benchmarks.capacity_costs import Costs
from benchmarks.capacity_day import FAILOVER_S, Rates, simulate

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "capacity.md"
COSTS = Costs()
BILLION = DAYS[-1]


def test_the_page_holds_what_the_script_prints() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"\n{table(Sizing(), COSTS)}\n" in page
    assert f"\n{day_table(Sizing(), COSTS)}\n" in page
    assert table(Sizing(state=False), COSTS).splitlines()[-1] in page


def test_more_jobs_need_no_fewer_machines_and_there_is_always_one_to_spare() -> None:
    needs = [need_of(jobs, Sizing(), COSTS) for jobs in DAYS]
    assert [need.total for need in needs] == sorted(need.total for need in needs)
    for need in needs:
        assert need.brokers % 3 == 0
        assert min(need.coordinators, need.databases, need.workers) >= 2


def test_machines_follow_cores_peak_and_costs() -> None:
    need = need_of(BILLION, Sizing(), COSTS)
    assert need_of(BILLION, Sizing(cores=16), COSTS).workers < need.workers
    assert need_of(BILLION, Sizing(peak=6), COSTS).event_partitions > need.event_partitions
    assert need_of(BILLION, Sizing(handler_ms=10), COSTS).workers > 9 * need.workers
    dear = dataclasses.replace(COSTS, event_us=70)
    assert need_of(BILLION, Sizing(), dear).event_partitions == 2 * need.event_partitions - 1
    slow = dataclasses.replace(COSTS, queue_jobs_per_s=1000)
    assert need_of(BILLION, Sizing(), slow).partitions == math.ceil(need.peak_a_second / 500)
    assert need_of(BILLION, Sizing(state=False), COSTS).partitions > 1


def test_a_day_with_faults_ends_with_all_jobs_done_and_their_state_known() -> None:
    sizing = Sizing()
    day = day_of(need_of(BILLION, sizing, COSTS), sizing, COSTS)
    assert day.pushed == pytest.approx(BILLION, rel=0.001)
    assert day.done == pytest.approx(day.pushed, rel=1e-6)
    assert day.folded == pytest.approx(day.pushed, rel=1e-6)
    # The state waits for the database to fail over, and no longer: the spare half of the machines catches up.
    assert FAILOVER_S <= day.longest_lag_s < 2 * FAILOVER_S
    assert day.longest_wait_s < FAILOVER_S


def test_a_fleet_that_is_too_small_falls_behind() -> None:
    """The simulation can say no: with half of the mean rate, half of the jobs at least are left."""
    ample = Rates(broker=1e4, queue=1e4, worker=1e4, fold=1e4, database=1e4)
    jobs = 10_000_000
    for stage in ("broker", "worker", "fold", "database"):
        scarce = dataclasses.replace(ample, **{stage: jobs / 86_400 / 2})
        day = simulate(jobs, 3, scarce, event_partitions=1, partitions=2, workers=1, clusters=1)
        assert 0.3 * jobs < day.folded < 0.51 * jobs, stage
        assert max(day.longest_wait_s, day.longest_lag_s) > 3600, stage


def test_costs_are_options() -> None:
    printed = CliRunner().invoke(main, ["--event-us", "70", "--cores", "16"]).output
    assert "event_us: 70.0" in printed
    assert table(Sizing(cores=16), dataclasses.replace(COSTS, event_us=70)) in printed
