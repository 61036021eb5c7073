"""Who is next in a line with a crowd in it."""

import pytest

from waybill.backend.fair_line import CROWD, FairLine


def test_addresses_take_turns() -> None:
    line = FairLine[str]()
    for number in range(1000):
        line.add("crowd", f"one of many {number}")
    line.add("other", "a single one")
    assert [line.take(), line.take()] == ["one of many 0", "a single one"]
    assert len(line) == 999


def test_a_few_of_one_address_are_taken_in_order() -> None:
    line = FairLine[int]()
    for number in range(CROWD):
        line.add("", number)
    assert [line.take() for _ in range(CROWD)] == list(range(CROWD))


def test_of_a_crowd_the_oldest_and_the_newest_are_taken_alternately() -> None:
    line = FairLine[int]()
    for number in range(CROWD + 4):
        line.add("", number)
    assert [line.take() for _ in range(5)] == [0, CROWD + 3, 1, CROWD + 2, 2]


def test_one_that_joins_after_a_crowd_is_among_the_next_two() -> None:
    line = FairLine[int]()
    for number in range(2 * CROWD):
        line.add("", number)
    line.take()
    line.add("", -1)
    assert -1 in (line.take(), line.take())


def test_everybody_is_taken_while_newer_ones_keep_coming() -> None:
    line = FairLine[int]()
    crowd = range(2 * CROWD)
    for number in crowd:
        line.add("", number)
    taken = set()
    for newer in range(len(crowd), 4 * len(crowd)):
        line.add("", newer)
        taken.add(line.take())
    assert taken >= set(crowd)


def test_an_empty_queue_has_nothing_to_take() -> None:
    line = FairLine[int]()
    line.add("", 1)
    line.take()
    with pytest.raises(IndexError, match="no request is waiting"):
        line.take()
