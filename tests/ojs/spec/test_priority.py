"""Priorities on queues with many levels and with few."""

import pytest

from waybill.ojs.spec.priority import message_priority


def test_two_hundred_levels_order_every_priority_exactly() -> None:
    assert [message_priority(value, 200) for value in range(-100, 101)] == list(range(201))
    assert message_priority(-1000, 200) == 0
    assert message_priority(1000, 255) == 200


@pytest.mark.parametrize("levels", [10, 9])
def test_ten_levels_are_monotonic_around_zero(levels: int) -> None:
    mapped = [message_priority(value, levels) for value in range(-150, 151)]
    assert mapped == sorted(mapped)
    assert set(mapped) == set(range(10))
    expected = {-51: 0, -50: 1, -10: 2, -6: 2, -5: 3, -1: 3, 0: 4, 1: 5, 5: 5, 6: 6, 9: 6, 10: 7, 11: 8, 50: 8, 51: 9}
    assert {value: message_priority(value, levels) for value in expected} == expected


@pytest.mark.parametrize("levels", [0, 1, 2, 5, 8])
def test_fewer_levels_stay_monotonic_and_within_bounds(levels: int) -> None:
    mapped = [message_priority(value, levels) for value in range(-150, 151)]
    assert mapped == sorted(mapped)
    assert (min(mapped), max(mapped)) == (0, levels)
