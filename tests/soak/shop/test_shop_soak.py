"""A small run of the shop: a few kills, and the program of its front as users start it.

On RabbitMQ it is a run of its own: `make soak-shop`.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.jobs.house import REPOSITORY
from tests.soak.shop.house import ShopHouse
from tests.soak.shop.run import run_shop

KILLS = 3
PAUSE = (0.5, 1.5)
SHOWN = (
    "price: 38.00",
    "invoice: R000001",
    "pictures: 6",
    "reminder: cancelled",
)


# Processes start all the time here.
@pytest.mark.timeout(600)
def test_everything_in_the_shop_ends_as_it_should_whoever_is_killed(tmp_path: Path) -> None:
    chance = random.Random("waybill")
    house = ShopHouse("waybill", tmp_path, 2, chance)
    try:
        figures = run_shop(house, tmp_path, KILLS, PAUSE, chance, lambda _: None)
        front = subprocess.run(
            [sys.executable, "-m", "examples.shop.front"],
            env={**os.environ, **house.environment},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    finally:
        house.close()
    print(figures)
    assert sum(figures.kills.values()) == KILLS
    assert front.returncode == 0, front.stderr
    for line in SHOWN:
        assert line in front.stdout
