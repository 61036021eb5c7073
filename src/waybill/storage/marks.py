"""Marks of a queue in the log: how far it was delivered, and how far purged."""

from typing import Final

from mypy_extensions import i64

from waybill.storage.record import GIVEN, MARK, PURGE, integers, small_record

ENTIRE_QUEUE: Final = 1 << 62


class Mark:
    """Which of a queue's messages were delivered before.

    Those up to the sequence `redelivered_up_to` and those in `redelivered` were; after a crash, perhaps also those up
    to `delivering_up_to`. Consumers of former processes know messages up to `given_up_to`: those sequences are not
    used again, even if all of these messages are gone.
    """

    def __init__(
        self,
        *,
        delivering_up_to: i64 = -1,
        redelivered_up_to: i64 = -1,
        given_up_to: i64 = -1,
        redelivered: list[int] | None = None,
    ) -> None:
        self.delivering_up_to: i64 = delivering_up_to
        self.redelivered_up_to: i64 = redelivered_up_to
        self.given_up_to: i64 = given_up_to
        self.redelivered = redelivered or []

    def record(self, queue_id: i64) -> bytes:
        """As it is written."""
        head = [queue_id, self.delivering_up_to, self.redelivered_up_to]
        octets = small_record(MARK, integers(head + self.redelivered))
        if self.given_up_to >= 0:
            octets += small_record(GIVEN, integers([queue_id, self.given_up_to]))
        return octets


class Purge:
    """The latest purge of a queue, and the segment that has its record."""

    def __init__(self, up_to: i64, kept: list[int], segment: i64) -> None:
        self.up_to: i64 = up_to
        self.kept = set(kept)
        self.segment: i64 = segment

    def record(self, queue_id: i64) -> bytes:
        """As it is written."""
        return small_record(PURGE, integers([queue_id, self.up_to, *sorted(self.kept)]))
