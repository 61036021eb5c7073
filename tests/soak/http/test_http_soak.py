"""A small run of the soak over HTTP: a hundred jobs, while workers, the backend and the broker are killed."""

import random
from pathlib import Path

import pytest

from tests.soak.http.house import HttpHouse
from tests.soak.jobs.run import Run

pytest.importorskip("aiohttp", reason="needs aiohttp: make setup")

JOBS = 100
PAUSE = (0.1, 0.2)


class EachOnce(HttpHouse):
    """Kills one of each, in turn, and then none."""

    def kill_something(self) -> str:
        return "nothing" if all(self.kills.values()) else super().kill_something()

    def _choose(self) -> str:
        return next(kind for kind, count in self.kills.items() if not count)


@pytest.mark.timeout(600)
async def test_every_job_ends_once_whoever_is_killed(tmp_path: Path) -> None:
    chance = random.Random("http")
    house = EachOnce("waybill", tmp_path, 1, chance)
    house.environment["LEASE_SECONDS"] = "2"
    try:
        figures = await Run(house, tmp_path, JOBS, chance).go(PAUSE, 120.0, lambda _: None)
    finally:
        house.close()
    print(figures)
    assert all(figures.kills.values())
    assert figures.states.total() == JOBS
    assert figures.effects >= JOBS
