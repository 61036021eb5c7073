"""Progress reports of the pipeline."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class BatchWritten:
    """A batch was written to bronze: how many events were usable, and how many went to quarantine."""

    batch_id: int
    events: int
    malformed: int


@dataclass(frozen=True)
class TableWritten:
    """A table of silver or gold was updated."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Pace:
    """How fast the stream is read, and how many messages remain after the last batch."""

    rows_per_second: float
    behind: int


@dataclass(frozen=True)
class Compacted:
    """Bronze was compacted."""

    files_before: int
    files_after: int
    days_rewritten: int
    days_dropped: int


Step: TypeAlias = BatchWritten | TableWritten | Pace | Compacted
Progress: TypeAlias = Callable[[Step], None]
