"""How a budget is divided over queues."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.ojs.worker.prefetch import divide, step

QUEUES = "abcd"
counts = st.fixed_dictionaries({queue: st.integers(1, 50) for queue in QUEUES})
held_counts = st.fixed_dictionaries({queue: st.integers(0, 50) for queue in QUEUES})


@pytest.mark.parametrize(
    ("budget", "weights", "demands", "allocation"),
    [
        (4, "aaab", "aaaabbbb", "aaab"),
        (10, "aaaaaabbbc", "a" * 10 + "b" * 10 + "c" * 10, "aaaaaabbbc"),
        (10, "ab", "a" * 10 + "b", "aaaaaaaaab"),
        (10, "ab", "ab", "aaaaabbbbb"),
        (3, "aaaaaaaaaabc", "aaabbbccc", "abc"),
    ],
)
def test_shares(budget: int, weights: str, demands: str, allocation: str) -> None:
    caps = dict.fromkeys(weights, budget)
    assert divide(budget, Counter(weights), Counter(demands), caps) == Counter(allocation)


def test_a_cap_is_kept_and_others_get_the_rest() -> None:
    assert divide(10, {"a": 5, "b": 5}, {"a": 10, "b": 1}, {"a": 2, "b": 10}) == {"a": 2, "b": 8}
    assert divide(10, {"a": 5, "b": 5}, {"a": 10, "b": 10}, {"a": 2, "b": 2}) == {"a": 2, "b": 2}


@given(st.integers(4, 200), counts, counts)
def test_the_whole_budget_is_given_and_nobody_starves(
    budget: int, weights: dict[str, int], demands: dict[str, int]
) -> None:
    allocation = divide(budget, weights, demands, dict.fromkeys(QUEUES, budget))
    assert sum(allocation.values()) == budget
    assert min(allocation.values()) >= 1
    for queue in QUEUES:
        for other in QUEUES:
            if allocation[queue] < demands[queue] and allocation[other] > 1:
                # The last place that another one got would not have been more deserved here.
                assert (allocation[other] - 1) / weights[other] <= allocation[queue] / weights[queue]


@given(st.integers(4, 200), counts, held_counts, counts, counts)
def test_no_more_than_the_budget_can_be_held_on_the_way(
    budget: int, weights: dict[str, int], held: dict[str, int], before: dict[str, int], demands: dict[str, int]
) -> None:
    caps = dict.fromkeys(QUEUES, budget)
    limits = divide(budget, weights, before, caps)
    held = {queue: min(count, limits[queue]) for queue, count in held.items()}
    wanted = divide(budget, weights, demands, caps)
    for _ in range(2):
        before, limits = limits, step(limits, held, wanted, budget)
        # What was sent before a limit came into force is still on its way.
        assert sum(max(before[queue], limits[queue], held[queue]) for queue in QUEUES) <= budget
        assert all(limits[queue] <= max(wanted[queue], held[queue]) for queue in QUEUES)
    # Once what was held is done, the limits are what was wanted.
    assert step(limits, dict.fromkeys(QUEUES, 0), wanted, budget) == wanted
