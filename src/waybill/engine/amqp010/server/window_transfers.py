"""The transfers of a session that count against the credit of a window until the peer has completed them.

They are kept as runs: transfers in a row to one subscription, of one size. A peer that completes many at once costs as
little as one that completes a single transfer.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.ids import Spans

FEW_SPANS: Final = 4
"""Up to this many are searched individually; more are compared with all runs at once."""
MOVE_UNIT_BITS: Final = 10
SCAN_UNIT_BITS: Final = 4


class _Run:
    """The transfers with the counts from `first` to `last`, of `size` octets each."""

    def __init__(self, consumer: CreditedConsumer, size: i64, first: i64, last: i64) -> None:
        self.consumer = consumer
        self.size: i64 = size
        self.first: i64 = first
        self.last: i64 = last


class WindowTransfers:
    """Runs in rising order of counts. `count` is how many transfers they have."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._runs: list[_Run] = []

    @property
    def run_count(self) -> i64:
        return len(self._runs)

    @property
    def first(self) -> i64:
        """The lowest count; 0 if there is none."""
        return self._runs[0].first if self._runs else i64(0)

    def add(self, consumer: CreditedConsumer, size: i64, first: i64, count: i64) -> None:
        """A subscription got `count` more transfers, from `first` on, above all existing ones."""
        self.count += count
        runs = self._runs
        if runs:
            last = runs[-1]
            if last.last + 1 == first and last.size == size and last.consumer is consumer:
                last.last += count
                return
        runs.append(_Run(consumer, size, first, first + count - 1))

    def complete(self, spans: Spans) -> i64:
        """Return the credit of all transfers in the spans. Returns the cost of this, in units."""
        runs = self._runs
        firsts = spans.firsts
        lasts = spans.lasts
        count: i64 = len(runs)
        if len(firsts) > FEW_SPANS:
            self._runs = self._without(runs, firsts, lasts)
            return (count + i64(len(firsts))) >> SCAN_UNIT_BITS
        for index in range(len(firsts)):
            start = self._place(i64(firsts[index]))
            end = start
            last: i64 = lasts[index]
            while end < len(runs) and runs[end].first <= last:
                end += 1
            if start < end:
                runs[start:end] = self._without(runs[start:end], [firsts[index]], [lasts[index]])
        return count >> MOVE_UNIT_BITS

    def _place(self, number: i64) -> i64:
        """The index of the first run that ends at `number` or later."""
        runs = self._runs
        low: i64 = 0
        high: i64 = len(runs)
        while low < high:
            middle = (low + high) >> 1
            if runs[middle].last < number:
                low = middle + 1
            else:
                high = middle
        return low

    def _without(self, runs: list[_Run], firsts: list[int], lasts: list[int]) -> list[_Run]:
        """The runs without the spans, which are in order. The credit of these transfers is returned."""
        left: list[_Run] = []
        at = 0
        count = len(firsts)
        for run in runs:
            while at < count and lasts[at] < run.first:
                at += 1
            while at < count and firsts[at] <= run.last:
                first: i64 = firsts[at]
                last: i64 = lasts[at]
                if run.first < first:
                    left.append(_Run(run.consumer, run.size, run.first, first - 1))
                first = max(first, run.first)
                last = min(last, run.last)
                run.first = last + 1
                done = last - first + 1
                self.count -= done
                run.consumer.completed(done, run.size * done)
                if run.first > run.last:
                    break
                at += 1
            if run.first <= run.last:
                left.append(run)
        return left

    def forget(self, consumer: CreditedConsumer) -> i64:
        """Forget the transfers of one subscription. Returns the cost of this, in units."""
        runs = self._runs
        left: list[_Run] = []
        for run in runs:
            if run.consumer is consumer:
                self.count -= run.last - run.first + 1
            else:
                left.append(run)
        self._runs = left
        return i64(len(runs)) >> SCAN_UNIT_BITS

    def clear(self) -> None:
        """Forget all."""
        self.count = 0
        self._runs = []
