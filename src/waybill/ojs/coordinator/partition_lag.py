"""How far a coordinator is behind each partition of the event stream."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from waybill.ojs.errors import InvalidJob
from waybill.ojs.spec.events import read_events
from waybill.ojs.spec.timestamps import parse_timestamp


class PartitionLag(NamedTuple):
    """A partition, by the name of its stream.

    `seconds` is the age of the oldest event that is not in the state yet, 0 if all are, and None while the stream
    cannot be read. `is_folded_here` is False while another coordinator that shares the database folds the partition.
    """

    stream: str
    seconds: float | None
    is_folded_here: bool


def age_of(bodies: Iterable[bytes], now: datetime) -> float:
    """Return the age in seconds of the first event in messages of the stream; 0 if none of them has a valid one."""
    for body in bodies:
        for event in read_events(body)[0]:
            try:
                time = parse_timestamp(event.time, "time")
            except InvalidJob:
                continue
            return max(0.0, (now - time).total_seconds())
    return 0.0
