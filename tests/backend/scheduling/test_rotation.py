"""The order of queues within a fetch, without jobs."""

from collections import Counter
from random import Random

import pytest

from waybill.backend.scheduling.dispatches import OTHER, Dispatches
from waybill.backend.scheduling.rotation import (
    Rotation,
    Rotations,
    deepest_first,
    guaranteed_steps,
    in_order,
    with_rest,
)


def fetch(rotation: Rotation, weights: dict[str, float], count: int, empty: str = "") -> Counter[str]:
    """Fetch from queues that have jobs without end, but for the empty ones."""
    due = rotation.plan(weights, count)
    found = Counter[str]()
    for queue, most in with_rest(due, count):
        if queue not in empty:
            found[queue] += min(most, count - found.total())
    found = +found
    rotation.advance(weights, due, found, count)
    return found


def turns(rotation: Rotation, weights: dict[str, float], count: int, empty: str = "") -> str:
    return "".join(next(iter(fetch(rotation, weights, 1, empty))) for _ in range(count))


def test_equal_weights_take_turns() -> None:
    assert turns(Rotation(), {"a": 1, "b": 1, "c": 1}, 7) == "abcabca"


def test_weights_are_interleaved_and_every_queue_has_its_turn() -> None:
    assert turns(Rotation(), {"a": 4, "b": 1}, 11) == "abaaaabaaaa"
    found = turns(Rotation(), {"a": 1000, "b": 0.5}, 4002)
    assert Counter(found) == {"a": 4000, "b": 2}


def test_the_turn_of_an_empty_queue_goes_round_and_nothing_is_saved_up() -> None:
    rotation, weights = Rotation(), dict.fromkeys("abc", 1.0)
    assert turns(rotation, weights, 6, empty="c") == "ababab"
    assert sorted(turns(rotation, weights, 3)) == ["a", "b", "c"]
    assert sorted(turns(rotation, weights, 3)) == ["a", "b", "c"]
    assert fetch(rotation, weights, 9, empty="ac") == {"b": 9}
    assert fetch(rotation, weights, 9) == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("seed", range(20))
def test_shares_do_not_depend_on_how_many_jobs_a_fetch_takes(seed: int) -> None:
    random = Random(seed)
    weights: dict[str, float] = {name: random.choice((random.randint(1, 9), random.random() * 9)) for name in "abcd"}
    rotation, found, total = Rotation(), Counter[str](), 0
    while total < 3000:
        count = random.choice((1, 2, 7, 50, 1000))
        taken = fetch(rotation, weights, count)
        assert taken.total() == count
        found.update(taken)
        total += count
    for name, weight in weights.items():
        assert abs(found[name] - total * weight / sum(weights.values())) <= len(weights)


def test_what_others_leave_anybody_may_fill() -> None:
    assert in_order(["a", "b"], 5) == [("a", 5), ("b", 5)]
    assert with_rest(Rotation().plan({"a": 1, "b": 1}, 1), 1) == [("a", 1), ("a", 1), ("b", 1)]
    assert deepest_first(["a", "b", "c"], {"b": 2, "c": 9}, 3) == [("c", 3), ("b", 3), ("a", 3)]


def test_a_queue_that_had_too_little_comes_first() -> None:
    assert guaranteed_steps(["a", "b", "c"], {"a": 95, "b": 4}, 0.05, 1) == [("c", 1), ("b", 1)]
    assert guaranteed_steps(["a", "b"], {"a": 9, "b": 1}, 0.1, 10) == [("b", 1)]
    assert guaranteed_steps(["a", "b"], {"a": 5, "b": 5}, 0.1, 1) == []


def test_rotations_are_kept_by_key_and_the_oldest_go() -> None:
    rotations = Rotations()
    first = rotations.get("pool")
    for number in range(999):
        rotations.get(number)
    assert rotations.get("pool") is first
    for number in range(1000):
        rotations.get(("other", number))
    assert rotations.get("pool") is not first


def test_dispatches_are_counted_by_second() -> None:
    now = [100.0]
    dispatches = Dispatches(lambda: now[0])
    dispatches.add("a", "p", [10])
    dispatches.add("a", "", [30])
    now[0] += 45
    dispatches.add("b", "p", [0, 0])
    assert dispatches.by_queue() == {"a": (2, 20.0), "b": (2, 0.0)}
    assert dispatches.of_pool("p", 60) == {"a": 1, "b": 2}
    assert dispatches.of_pool("p", 30) == {"b": 2}
    now[0] += 16
    assert dispatches.by_queue() == {"b": (2, 0.0)}
    assert dispatches.totals == {("a", "p"): 1, ("a", ""): 1, ("b", "p"): 2}


@pytest.mark.plain_source
def test_there_are_so_many_labels_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waybill.backend.scheduling.dispatches.MAX_QUEUES", 2)
    dispatches = Dispatches(lambda: 0.0)
    for queue in ("a", "b", "c", "d", "a"):
        dispatches.add(queue, "", [0])
    assert dispatches.totals == {("a", ""): 2, ("b", ""): 1, (OTHER, ""): 2}
