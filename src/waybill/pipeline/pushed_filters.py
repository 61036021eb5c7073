"""Filters that Spark pushes into a batch read: `offset` and `stream` reduce what is read, `timestamp` what is decoded.

In Spark 4.2 and 4.3 `spark.sql.python.filterPushdown.enabled` turns this on. While it is off, the default, they refuse
every read of a source that has `pushFilters`, whether the query has filters or not. The result of a query is the same
with and without, so such a read is allowed here: see `FilterPushdown`.

A filter on the publisher's timestamp drops rows early but moves no offset, because the clocks of publishers differ. To
read from a time on, use `startingTimestamp`, which follows the broker's clock.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from waybill.pipeline.message import MessageBlock
from waybill.pipeline.offsets import OffsetRange

Compare: TypeAlias = Callable[[Any, Any], bool]

_COMPARISONS: Final[dict[type[Filter], Compare]] = {
    EqualTo: lambda value, bound: bool(value == bound),
    GreaterThan: lambda value, bound: bool(value > bound),
    GreaterThanOrEqual: lambda value, bound: bool(value >= bound),
    LessThan: lambda value, bound: bool(value < bound),
    LessThanOrEqual: lambda value, bound: bool(value <= bound),
}


@dataclass
class PushedFilters:
    """The offsets that the filters of a query allow: from `least` up to, not including, `below`."""

    least: int = 0
    below: int | None = None
    streams: frozenset[str] | None = None
    moments: list[tuple[type[Filter], datetime]] = field(default_factory=list)
    has_timestamp: bool = False

    def take(self, given: Filter) -> bool:
        """Whether the filter is applied completely here; if not, Spark must apply it, too."""
        column = getattr(given, "attribute", None)
        if column == ("offset",):
            return self._take_offset(given)
        if column == ("stream",):
            return self._take_stream(given)
        if column == ("timestamp",):
            return self._take_timestamp(given)
        return False

    def ranges(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The parts of `ranges` that may hold wanted messages."""
        cut = (
            OffsetRange(
                span.stream,
                max(span.start, self.least),
                span.end if self.below is None else min(span.end, self.below),
            )
            for span in ranges
            if self.streams is None or span.stream in self.streams
        )
        return [span for span in cut if span.start < span.end]

    def wanted(self, block: MessageBlock) -> MessageBlock:
        """The messages of a block whose timestamps pass the filters."""
        if not self.has_timestamp:
            return block
        return block.chosen([index for index, sent in enumerate(block.metadata) if self._is_wanted(sent.timestamp)])

    def _is_wanted(self, moment: datetime | None) -> bool:
        return moment is not None and all(_COMPARISONS[kind](moment, bound) for kind, bound in self.moments)

    def _take_offset(self, given: Filter) -> bool:
        if isinstance(given, IsNotNull):
            return True
        if isinstance(given, In):
            numbers = [value for value in given.value if isinstance(value, int)]
            self._keep(min(numbers, default=0), max(numbers, default=-1) + 1)
            return False
        bound = getattr(given, "value", None)
        if not isinstance(bound, int):
            return False
        if isinstance(given, EqualTo):
            self._keep(bound, bound + 1)
        elif isinstance(given, GreaterThan):
            self._keep(bound + 1, None)
        elif isinstance(given, GreaterThanOrEqual):
            self._keep(bound, None)
        elif isinstance(given, LessThan):
            self._keep(0, bound)
        elif isinstance(given, LessThanOrEqual):
            self._keep(0, bound + 1)
        else:
            return False
        return True

    def _keep(self, least: int, below: int | None) -> None:
        self.least = max(self.least, least)
        if below is not None:
            self.below = below if self.below is None else min(self.below, below)

    def _take_stream(self, given: Filter) -> bool:
        if isinstance(given, IsNotNull):
            return True
        if isinstance(given, EqualTo):
            names = frozenset([str(given.value)])
        elif isinstance(given, In):
            names = frozenset(map(str, given.value))
        else:
            return False
        self.streams = names if self.streams is None else self.streams & names
        return True

    def _take_timestamp(self, given: Filter) -> bool:
        bound = getattr(given, "value", None)
        if not isinstance(given, IsNotNull):
            if type(given) not in _COMPARISONS or not isinstance(bound, datetime) or bound.tzinfo is None:
                return False
            self.moments.append((type(given), bound))
        self.has_timestamp = True
        return True


class FilterPushdown:
    """`DataSourceReader.pushFilters` of one reader.

    Spark refuses a reader that pushes filters while the setting is off. It recognizes one by its method, which must not
    be the base class's: this object qualifies.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, pushed: PushedFilters) -> None:
        self._pushed = pushed

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Return the filters that Spark must apply itself."""
        return [given for given in filters if not self._pushed.take(given)]
