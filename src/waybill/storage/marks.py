"""What the log says of a queue as a whole: how far it was delivered, and up to where it was purged."""

from typing import Final

from mypy_extensions import i64

from waybill.storage.record import GIVEN, MARK, PURGE, integers, small_record

ENTIRE_QUEUE: Final = 1 << 62


class Mark:
    """What is known of a queue's messages having been delivered before.

    Those up to the sequence `redelivered_up_to` and those in `redelivered` were; a crash makes it those up to
    `delivering_up_to`, too. Messages of former processes were delivered up to `given_up_to`, which is of use when they
    are all gone: their sequences are not given again.
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
