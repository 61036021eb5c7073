"""One segment of the journal's log, while the store is open."""

from typing import Final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from waybill.storage.filesystem import Filesystem
from waybill.storage.log import JOURNAL, LogFile, numbers_in
from waybill.storage.record import REQUEUE, integers, small_record

DIRECTORY: Final = "messages"
NUMBER_DIGITS: Final = 8
MAX_SEGMENTS: Final = 0x7FFFFFFF
MAX_SEGMENT_OFFSET: Final = 0xFFFFFFFF
FORGOTTEN: Final = (
    -1
)  # in place of a queue id: the other number is the offset of a record that one holder has forgotten


def segment_numbers(filesystem: Filesystem) -> list[int]:
    """The numbers of the existing segments, in order."""
    return numbers_in(filesystem.list_directory(DIRECTORY), NUMBER_DIGITS, MAX_SEGMENTS)


class Requeued:
    """A message that was requeued. `changes`: what consumers have changed in it."""

    def __init__(self, delivery_count: i64, changes: bytes) -> None:
        self.delivery_count: i64 = delivery_count
        self.changes = changes

    def record(self, queue_id: i64, sequence: i64) -> bytes:
        """The record as it is written."""
        return small_record(REQUEUE, integers([queue_id, sequence, self.delivery_count]) + self.changes)


class Segment:
    """One file of the journal's log.

    A segment is removed when it has no live message (`live` is 0) and every segment in `dependencies` has been removed:
    older segments whose messages this one settles, purges or counts deliveries of. If it were removed first, a crash
    would bring those messages back.
    """

    def __init__(self, number: i64) -> None:
        self.number: i64 = number
        self.log = LogFile(DIRECTORY, f"{number:0{NUMBER_DIGITS}d}.log", JOURNAL, number)
        self.is_present = True
        self.is_from_before = False
        # A part of it cannot be read. The file stays until `waybill store repair` gives that part up.
        self.is_damaged = False
        self.live: i64 = 0
        self.put_count: i64 = 0
        self.sealed_batch: i64 = -1
        self.dead_batch: i64 = -1
        self.dependencies: set[int] = set()
        self.last_dependency: i64 = -1
        # (queue id, sequence) of each former holder, 8 bytes each.
        self.dead = BytesWriter()
        self.requeued: dict[tuple[int, int], Requeued] = {}
        # Offset of a record -> location of its copy, once compaction has begun.
        self.moved: dict[int, int] | None = None
        # (queue id, sequence) of holders that get no copy: deliveries of deleted queues that are still unsettled.
        self.left_behind: set[tuple[int, int]] = set()
        self.is_emptied = False
        # A commit is about to remove the file.
        self.is_leaving = False

    def depend_on(self, number: i64) -> None:
        """Keep this segment until `number` is removed."""
        if number not in (self.last_dependency, self.number):
            self.last_dependency = number
            self.dependencies.add(number)

    def add_dead(self, queue_id: i64, sequence: i64) -> None:
        """Record that a holder has settled or dropped its message."""
        dead = self.dead
        write_i64_be(dead, queue_id)
        write_i64_be(dead, sequence)

    def garbage_bytes(self) -> i64:
        """Roughly how many bytes are no longer needed."""
        if self.put_count == 0:
            return self.log.size
        dead = self.put_count - self.live
        return self.log.size * dead // self.put_count if dead > 0 else 0


def dead_holders(data: bytes, start: i64) -> set[tuple[int, int]]:
    """The pairs in `Segment.dead` from a byte offset on."""
    pairs: set[tuple[int, int]] = set()
    for index in range(start, len(data), 16):
        pairs.add((read_i64_be(data, index), read_i64_be(data, index + 8)))
    return pairs
