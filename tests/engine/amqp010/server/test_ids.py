"""Sets of command ids answer as sets of numbers do, whatever a peer names."""

from random import Random

from waybill.engine.amqp010.server.ids import WRAP, IdRanges, Spans


def numbers(ranges: IdRanges) -> set[int]:
    return {
        number for first, last in zip(ranges.firsts, ranges.lasts, strict=True) for number in range(first, last + 1)
    }


def filled(random: Random, size: int) -> IdRanges:
    ranges = IdRanges()
    number = WRAP
    for _ in range(size):
        number += random.randrange(3)
        last = number + random.randrange(4)
        ranges.add(number, last)
        number = last + 1
    return ranges


def test_ranges_are_removed_as_from_a_set() -> None:
    random = Random(1)
    for _ in range(2000):
        ranges = filled(random, 1 + random.randrange(8))
        present = numbers(ranges)
        near = ranges.lasts[-1] + 1
        lows = [random.randrange(WRAP - 4, near + 4) for _ in range(5)]
        named = [(low, low + random.randrange(-1, 12)) for low in lows]
        spans = Spans(tuple([(low % WRAP, high % WRAP) for low, high in named]), near, ranges.firsts[0], 0)
        ranges.remove(spans)
        left = {number for number in present if not any(low <= number <= high for low, high in named)}
        assert numbers(ranges) == left
        assert all(last + 1 < first for last, first in zip(ranges.lasts, ranges.firsts[1:], strict=False))


def test_what_is_below_a_mark_is_removed() -> None:
    random = Random(2)
    for _ in range(500):
        ranges = filled(random, 1 + random.randrange(5))
        present = numbers(ranges)
        mark = random.randrange(WRAP - 1, ranges.lasts[-1] + 3)
        ranges.remove_below(mark)
        assert numbers(ranges) == {number for number in present if number >= mark}
