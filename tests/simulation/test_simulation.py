"""The simulator as part of the tests: kept seeds, many fresh ones, and the proof that it finds planted bugs."""

import pytest

from tests.simulation.ledger import Violation
from tests.simulation.planting import IS_COMPILED
from tests.simulation.simulate import PLANT_NAMES, kept_seeds, run_seed
from tests.simulation.world import World

RUNS = 320
BLOCK = 20
# The seeds of the normal suite are fixed, so that a failure belongs to a change and not to the day; `make simulate`
# takes new ones.
FIRST_SEED = 1_000_000
PLANT_SEEDS = 150


def test_seeds_that_once_failed() -> None:
    for seed in kept_seeds():
        run_seed(seed)


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + RUNS, BLOCK))
def test_promises_hold_under_faults(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_seed(seed)


@pytest.mark.parametrize("name", [name for name in PLANT_NAMES if not (IS_COMPILED and name == "no_checksum")])
def test_planted_bug_is_found(name: str) -> None:
    for seed in range(PLANT_SEEDS):
        try:
            run_seed(seed, name)
        except (Violation, ValueError):  # A promise, or what a client can read at all.
            return
    pytest.fail(f"{PLANT_SEEDS} runs did not find the planted bug {name}")


def test_a_seed_decides_everything() -> None:
    first, second = World(7), World(7)
    assert first.run() == second.run()
    assert first.clock.now() == second.clock.now()
