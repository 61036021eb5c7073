"""The table of capacities is what the script computes."""

from pathlib import Path

from benchmarks.capacity import DAYS, Sizing, need_of, table

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "capacity.md"


def test_the_page_holds_what_the_script_prints() -> None:
    assert f"\n{table(Sizing())}\n" in PAGE.read_text(encoding="utf-8")


def test_more_jobs_need_no_fewer_machines_and_there_is_always_one_to_spare() -> None:
    needs = [need_of(jobs, Sizing()) for jobs in DAYS]
    assert [need.total for need in needs] == sorted(need.total for need in needs)
    assert all(need.brokers % 3 == 0 and need.coordinators >= 2 for need in needs)


def test_machines_follow_cores_and_peak() -> None:
    jobs = DAYS[-1]
    assert need_of(jobs, Sizing(cores=16)).workers < need_of(jobs, Sizing(cores=8)).workers
    assert need_of(jobs, Sizing(peak=6)).shards > need_of(jobs, Sizing(peak=3)).shards
    assert need_of(jobs, Sizing(handler_ms=10)).workers > 9 * need_of(jobs, Sizing(handler_ms=1)).workers
