"""Runs of transfers in a window, beside single ones in a dictionary."""

from random import Random

import pytest

from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.ids import WRAP, Spans
from waybill.engine.amqp010.server.windowed import Windowed


class Counting(CreditedConsumer):
    """Counts what comes back to it."""

    def __init__(self) -> None:
        super().__init__("", False, False, 0)
        self.total = (0, 0)

    def completed(self, count: int, size: int) -> None:
        self.total = (self.total[0] + count, self.total[1] + size)


@pytest.mark.parametrize("seed", range(30))
def test_runs_in_a_window_are_as_single_transfers(seed: int) -> None:
    random = Random(seed)
    consumers = [Counting(), Counting()]
    windowed = Windowed()
    known: dict[int, tuple[Counting, int]] = {}
    totals = [(0, 0), (0, 0)]
    number = WRAP
    for _ in range(300):
        kind = random.randrange(12)
        if kind < 6:
            at, size, count = random.randrange(2), random.choice((10, 10, 20)), random.randrange(1, 8)
            windowed.add(consumers[at], size, number, count)
            for one in range(number, number + count):
                known[one] = (consumers[at], size)
            number += count + random.randrange(2)
        elif kind < 11 and known:
            ranges = []
            for _ in range(random.choice((1, 1, 2, 9))):
                first = random.randrange(WRAP - 5, number + 5) & 0xFFFFFFFF
                ranges.append((first, first + random.randrange(30)))
            spans = Spans(tuple(ranges), number, windowed.first, windowed.count)
            windowed.complete(spans)
            for one in [one for one in known if spans.has(one)]:
                consumer, size = known.pop(one)
                at = consumers.index(consumer)
                totals[at] = (totals[at][0] + 1, totals[at][1] + size)
        elif kind == 11 and random.random() < 0.2:
            gone = consumers[random.randrange(2)]
            windowed.forget(gone)
            known = {one: what for one, what in known.items() if what[0] is not gone}
        assert windowed.count == len(known)
        assert windowed.first == min(known, default=0)
        assert [one.total for one in consumers] == totals
