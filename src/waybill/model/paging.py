"""Pages out messages that are delivered and not settled: while memory is short, their content is dropped.

Most of them are accepted, which needs no content. For those that are rejected or redelivered, the store has a
copy. Only what is certainly written is paged out: entries that were in the queue before a batch that is.
"""

import heapq
from typing import Final

from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION, Entry, EntryQueue, Holder
from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.message import Message
from waybill.model.read_retry import ReadRetry
from waybill.model.runtime import BYTES_PER_UNIT, Runtime

READ_UNITS: Final = 4


def empty(entry: Entry) -> None:
    """Drop the content of an entry."""
    message = entry.message
    entry.message = Message(
        message.format,
        b"",
        message.address,
        message.durable,
        message.priority,
        message.ttl_ms,
        message.published_at,
    )
    entry.is_paged_out = True


def page_in(runtime: Runtime, entry: Entry) -> i64:
    """Read the message of an entry back. Returns the growth in bytes. Raises DamagedMessage, ReadPostponed."""
    runtime.work_left -= READ_UNITS
    message = runtime.messages.read(entry.location)
    runtime.work_left -= message.size // BYTES_PER_UNIT
    if entry.changes:
        message = message.amended(entry.changes)
    growth = message.size - entry.message.size
    runtime.memory_bytes += growth
    entry.message = message
    entry.is_paged_out = False
    return growth


class PagedIn:
    """The result of paging in. `growth`: in bytes. `lost`: the number of damaged entries, which are skipped.

    `is_postponed`: the disk could not serve a read now.
    """

    def __init__(self) -> None:
        self.growth: i64 = 0
        self.lost: i64 = 0
        self.is_postponed = False

    def take(self, runtime: Runtime, entry: Entry) -> bool:
        """Page in one entry. False if it is damaged."""
        try:
            self.growth += page_in(runtime, entry)
        except ReadPostponed:
            self.is_postponed = True
        except DamagedMessage:
            runtime.memory_bytes -= entry.message.size
            self.growth -= entry.message.size
            self.lost += 1
            return False
        return True


def page_in_first(runtime: Runtime, heap: list[tuple[int, Entry]]) -> PagedIn:
    """Page in the first entry of a heap."""
    result = PagedIn()
    while heap and heap[0][1].is_paged_out and not result.is_postponed:
        if not result.take(runtime, heap[0][1]):
            heapq.heappop(heap)
    return result


def page_in_all(runtime: Runtime, heap: list[tuple[int, Entry]]) -> PagedIn:
    """Page in the entries of a heap, in order."""
    result = PagedIn()
    # A sorted list is a heap, too.
    heap.sort()
    whole = [item for item in heap if not item[1].is_paged_out or result.is_postponed or result.take(runtime, item[1])]
    heap[:] = whole
    return result


class Outcome:
    """The outcome of an entry that cannot be read yet. `is_rejected`: otherwise it is released, `failed` or not."""

    def __init__(self, entry: Entry, *, is_rejected: bool, failed: bool) -> None:
        self.entry = entry
        self.is_rejected = is_rejected
        self.failed = failed


class Paging:
    """Pages out the entries of one queue. `waiting`: outcomes of entries that could not be read."""

    def __init__(self, runtime: Runtime, queue: EntryQueue) -> None:
        self.waiting: list[Outcome] = []
        self._runtime = runtime
        self._retry = ReadRetry(runtime, queue)
        self._written_to: i64 = 0
        self._marked_batch: i64 = -1
        self._marked_sequence: i64 = 0

    def page_out(self, entries: list[Entry], holder: Holder, next_sequence: i64) -> None:
        """Drop the content of entries that `holder` holds. `next_sequence`: of the queue."""
        runtime = self._runtime
        messages = runtime.messages
        if messages.written_batch >= self._marked_batch:
            if self._marked_batch >= 0:
                self._written_to = self._marked_sequence
            self._marked_batch = messages.batch
            self._marked_sequence = next_sequence - 1
        for entry in entries:
            # One that could not be delivered is settled already.
            if entry.holder is not holder or entry.location == NO_LOCATION or entry.sequence > self._written_to:
                continue
            size = entry.message.size
            empty(entry)
            runtime.memory_bytes -= size - entry.message.size

    def wait(self, entry: Entry, *, is_rejected: bool, failed: bool) -> None:
        """The disk could not serve a read: the queue's `read_again` is called later."""
        self.waiting.append(Outcome(entry, is_rejected=is_rejected, failed=failed))
        self._retry.wait()

    def succeeded(self) -> None:
        self._retry.succeeded()
