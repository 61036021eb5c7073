"""The simulator as part of the tests: kept seeds, many fresh ones, and the proof that it finds planted bugs.

The many run on the compiled build, in two processes; the plain source takes a tenth of them.
"""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.pool import Pool

import pytest

from tests.simulation.logic_bug import READ_ERRORS
from tests.simulation.planting import IS_COMPILED, PLANT_NAMES, can_be_planted, is_found_by, short_levels
from tests.simulation.simulate import kept_seeds, run_seed, try_seed
from tests.simulation.world import World

RUNS = 2000 if IS_COMPILED else 200
BLOCK = 50
# The seeds of the normal suite are fixed, so that a failure belongs to a change and not to the day; `make simulate`
# takes new ones.
FIRST_SEED = 1_000_000
PLANT_SEEDS = 150
READ_SEEDS = 30
PROCESSES = 2


@pytest.fixture(scope="module")
def workers() -> Iterator[Pool]:
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        yield pool
        pool.close()
        pool.join()


def test_seeds_that_once_failed() -> None:
    for seed in kept_seeds():
        run_seed(seed)
        if World(seed).speaks_amqp010:
            # Many are older than its clients of 0-10.
            World(seed, speaks_amqp010=False).run()


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + RUNS, BLOCK))
def test_promises_hold_under_faults(first: int, workers: Pool) -> None:
    results = workers.map(try_seed, range(first, first + BLOCK), chunksize=5)
    assert [result.details for result in results if result.outcome is None] == []


def test_reads_that_fail_for_a_while_cost_nothing() -> None:
    with short_levels():
        # The limits of the compiled build are compiled in: there is nothing to read back.
        for seed in range(0 if IS_COMPILED else READ_SEEDS):
            World(seed, troubles=READ_ERRORS, theme="plain", speaks_amqp10=False, speaks_amqp010=False).run()


@pytest.mark.parametrize("name", [name for name in PLANT_NAMES if can_be_planted(name)])
def test_planted_bug_is_found(name: str) -> None:
    for seed in range(PLANT_SEEDS):
        try:
            run_seed(seed, name)
        except Exception as error:  # noqa: BLE001 - a planted bug may break anything
            if is_found_by(name, error):
                return
    pytest.fail(f"{PLANT_SEEDS} runs did not find the planted bug {name}")


def test_a_seed_decides_everything() -> None:
    first, second = World(7), World(7)
    assert first.run() == second.run()
    assert first.clock.now() == second.clock.now()
