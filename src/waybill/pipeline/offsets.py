"""Ranges of offsets: what a trigger reads, and how it is split into tasks. Pure, so a replay has the same result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class DataLossError(RuntimeError):
    """Requested messages are no longer in the stream, or it is another stream of the same name."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of `stream` from offset `start` up to, not including, `end`."""

    stream: str
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


def ranges_between(start: Mapping[str, int], end: Mapping[str, int]) -> list[OffsetRange]:
    """One range for each stream of `end` that has messages to read.

    A stream whose end is below its start was recreated: it is read from its first message. A stream that is not in
    `start` joined later, and is read from its first message, too.
    """
    ranges = []
    for stream, last in sorted(end.items()):
        first = start.get(stream, 0)
        if last < first:
            first = 0
        if first < last:
            ranges.append(OffsetRange(stream, first, last))
    return ranges


def distance(start: Mapping[str, int], end: Mapping[str, int]) -> int:
    """The number of messages between two positions, in all streams."""
    return sum(span.count for span in ranges_between(start, end))


def split(ranges: list[OffsetRange], minimum: int, largest: int | None = None) -> list[OffsetRange]:
    """Cut `ranges` into at least `minimum` pieces, if there are that many messages, of at most `largest` messages."""
    total = sum(whole.count for whole in ranges)
    pieces: list[OffsetRange] = []
    for whole in ranges:
        share = -(-whole.count * minimum // total)
        needed = 1 if largest is None else -(-whole.count // largest)
        pieces += _cut(whole, min(max(share, needed), whole.count))
    return pieces


def limited(start: Mapping[str, int], end: Mapping[str, int], maximum: int | None) -> dict[str, int]:
    """`end`, brought closer to `start` until about `maximum` messages lie between, shared as Spark's Kafka source does.

    Each stream gets a share in proportion to its messages, rounded down, but at least one message. So none starves,
    and with more streams than `maximum` the limit is exceeded.
    """
    sizes = {span.stream: span.count for span in ranges_between(start, end)}
    total = sum(sizes.values())
    if maximum is None or total <= maximum:
        return dict(end)
    return {
        stream: last - size + max(1, maximum * size // total) if (size := sizes.get(stream)) else last
        for stream, last in end.items()
    }


def check_not_recreated(start: Mapping[str, int], end: Mapping[str, int], address: str) -> None:
    """Raise DataLossError if a stream now ends before the position up to which it was read."""
    for stream, last in end.items():
        first = start.get(stream, 0)
        if last < first:
            raise DataLossError(
                f"stream {stream!r} on {address} ends at offset {last}, but it was read up to {first} before: it was "
                "deleted and created again. Set failOnDataLoss to false to read the new one from its start."
            )


def _cut(whole: OffsetRange, pieces: int) -> Iterator[OffsetRange]:
    """Split a range into `count` pieces of nearly equal size."""
    for index in range(pieces):
        start = whole.start + whole.count * index // pieces
        end = whole.start + whole.count * (index + 1) // pieces
        yield OffsetRange(whole.stream, start, end)
