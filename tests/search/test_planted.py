"""A search that finds nothing proves something only if it finds what is there: see `planting`."""

import gc
from random import Random

import pytest

from tests.search.evolution import Evolution
from tests.search.generator import generate
from tests.search.planting import FAULTS, planted
from tests.search.verdict import judge

CASES_MAX = 300


@pytest.mark.plain_source
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str) -> None:
    evolution = Evolution()
    gc.collect()
    with planted(name) as fault:
        for number in range(CASES_MAX):
            case = evolution.propose(Random(f"planted/{number}"))
            verdict = judge(generate(case, fault.scale, fault.scale))
            evolution.learn(case, verdict)
            if verdict.kind in fault.kinds:
                break
        else:
            pytest.fail(f"{CASES_MAX} cases have not found it")
    print(f"{name}: found after {number + 1} cases")
