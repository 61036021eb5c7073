"""A small run of the soak: some thousand jobs, while workers, the coordinator and the broker are killed."""

import random
from pathlib import Path

import pytest

from tests.rabbitmq import INSTALL_HINT, installed
from tests.soak.jobs.house import House
from tests.soak.jobs.run import Run

JOBS = 2000
PAUSE = (0.3, 1.2)


# Processes start all the time here, and a killed RabbitMQ takes its time to come back.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", ["rabbitmq", "waybill"])
async def test_every_job_ends_once_whoever_is_killed(broker: str, tmp_path: Path) -> None:
    if broker == "rabbitmq" and not installed():
        pytest.skip(INSTALL_HINT)
    chance = random.Random(broker)
    house = House(broker, tmp_path, 2, chance)
    try:
        figures = await Run(house, tmp_path, JOBS, chance).go(PAUSE, 120.0, lambda _: None)
    finally:
        house.close()
    print(figures)
    assert all(figures.kills.values())
    assert figures.states.total() == JOBS
    assert figures.effects >= JOBS
