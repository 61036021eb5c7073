"""The search in small: new cases from fixed seeds, and everything that was ever found, again.

Bounds of CPU are looser here than in `make search`: what is interpreted takes longer, and the machine has other work
(see `verdict`). What exceeds one is run again, and counts only if it always does. As with the simulator, the compiled
build takes all cases and the plain source a tenth of them.
"""

import gc
from pathlib import Path
from random import Random

import pytest

from tests.search.choices import GENE_BYTES
from tests.search.evolution import fresh
from tests.search.finding import SEEDS
from tests.search.generator import generate
from tests.search.script import Script
from tests.search.verdict import judge
from tests.simulation.planting import IS_COMPILED

CASES = 2000 if IS_COMPILED else 200
BATCH = 100
SMALL = 100
LARGE_ONE_IN = 20


@pytest.fixture(autouse=True)
def _no_garbage_of_others() -> None:
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_no_case_stops_stalls_or_bloats_the_node(batch: int) -> None:
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        case = fresh(Random(f"suite/{number}"))
        script = generate(case, SMALL if number % LARGE_ONE_IN else 1 << 20)
        verdict = judge(script)
        assert not verdict.fault, f"{case.hex()}\n{verdict.fault}"


@pytest.mark.parametrize("path", sorted(SEEDS.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_stays_mended(path: Path) -> None:
    verdict = judge(Script.load(path))
    assert not verdict.fault


def test_a_case_is_the_same_each_time() -> None:
    for seed in range(20):
        case = fresh(Random(seed))
        assert generate(case) == generate(case)


def test_a_script_survives_its_file(tmp_path: Path) -> None:
    script = generate(fresh(Random(7)))
    script.save(tmp_path / "script.json", "note")
    assert Script.load(tmp_path / "script.json") == script


def test_genes_are_moves_of_their_own() -> None:
    case = fresh(Random(11))
    longer = case + bytes(GENE_BYTES)
    steps = generate(case).steps
    assert generate(longer).steps[: len(steps)] == steps
