import random

import pytest

from waybill.pipeline.offsets import (
    DataLossError,
    OffsetRange,
    check_not_recreated,
    distance,
    limited,
    ranges_between,
    split,
)


def test_pieces_cover_their_range_once_and_in_order() -> None:
    chance = random.Random(7)
    for _ in range(300):
        start = chance.randint(0, 50)
        whole = OffsetRange("s", start, start + chance.randint(1, 90))
        minimum, largest = chance.randint(1, 9), chance.choice([None, 1, 4, 100])
        pieces = split([whole], minimum, largest)
        assert [offset for piece in pieces for offset in range(piece.start, piece.end)] == list(range(start, whole.end))
        assert len(pieces) >= min(minimum, whole.count)
        assert largest is None or all(piece.count <= largest for piece in pieces)


def test_nothing_to_read_makes_no_piece() -> None:
    assert ranges_between({"s": 4}, {"s": 4}) == []
    assert split([], 3) == []


def test_a_new_stream_and_one_made_anew_are_read_from_their_start() -> None:
    assert ranges_between({"old": 9}, {"old": 3, "new": 2}) == [OffsetRange("new", 0, 2), OffsetRange("old", 0, 3)]


def test_a_limit_is_shared_by_the_streams() -> None:
    assert limited({"a": 0, "b": 5}, {"a": 30, "b": 75}, 10) == {"a": 3, "b": 12}
    assert limited({"a": 0}, {"a": 3}, None) == {"a": 3}
    assert limited({"a": 0, "b": 5}, {"a": 3, "b": 9}, 7) == {"a": 3, "b": 9}


def test_no_stream_starves() -> None:
    """However small a stream is beside others: it gets on with each trigger, as they do."""
    start = {"a": 0, "b": 100, "idle": 4, "made-anew": 50}
    end = {"a": 1_000_000, "b": 103, "idle": 4, "made-anew": 20, "joined": 40}
    at = start
    for trigger in range(1, 4):
        at = limited(at, end, 100)
        assert (at["b"], at["idle"], at["made-anew"], at["joined"]) == (100 + trigger, 4, trigger, trigger)
        assert at["a"] > 99 * trigger - 5
    while at != end:
        following = limited(at, end, 30_000)
        assert distance(at, following) <= 30_003
        at = following


def test_a_trigger_at_the_end_goes_nowhere() -> None:
    assert limited({"a": 3}, {"a": 3}, 10) == {"a": 3}


def test_a_stream_that_shrank_is_another_stream() -> None:
    check_not_recreated({"s": 5}, {"s": 5}, "broker:5672")
    with pytest.raises(DataLossError, match="'s' on broker:5672 ends at offset 2"):
        check_not_recreated({"s": 5}, {"s": 2}, "broker:5672")
