"""The ready messages of one priority, in order, with bounded memory: entries at both ends, and a backlog on the disk.

    loaded | head (both entries in memory) | backlog (chunks of sequence, location, size) | sealed | tail (entries)
    returned: entries that were put back, anywhere in the order

A short queue has only a head. When that is full, new entries go to the tail. A full tail is sealed, and once its batch
is written, the sealed entries shrink to a chunk: 24 bytes per message, 32 if some expire. `load` reads the oldest chunk
back. With a store that frees no memory, all entries are in the head, and count as used memory.

Returned entries are in a heap: putting one back takes logarithmic time, in any order.
"""

import heapq
from bisect import bisect_right
from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.model.backlog import CHUNK_BYTES, CHUNK_LENGTH, Chunk, Removed, chunks_of
from waybill.model.entry import NO_LOCATION, Entry, EntryQueue
from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.paging import PagedIn, page_in_all, page_in_first
from waybill.model.read_retry import ReadRetry
from waybill.model.runtime import BYTES_PER_UNIT, Runtime, Sealed

CHUNK_BYTES_UNDER_PRESSURE: Final = 8 << 10
LEVEL_BYTES: Final = 2000
HEAD_LIMIT_BYTES: Final = 8 << 20
HEAD_LIMIT_UNDER_PRESSURE_BYTES: Final = 256 << 10
HEAD_LIMIT_LENGTH: Final = 32768
RUN_LENGTH: Final = 256
RUN_BYTES: Final = 64 << 10
READ_UNITS: Final = 4


# The backlog of every level that has none: an empty deque takes 760 bytes. Never add to it.
NO_BACKLOG: Final[deque[Chunk]] = deque()


def _index_after(entries: deque[Entry], sequence: i64) -> i64:
    """The index of the first entry beyond a sequence. The entries are in order."""
    low: i64 = 0
    high: i64 = len(entries)
    while low < high:
        middle = (low + high) // 2
        if entries[int(middle)].sequence > sequence:
            high = middle
        else:
            low = middle + 1
    return low


def _sequence_of(entry: Entry) -> int:
    return int(entry.sequence)


class PriorityLevel(Sealed):
    """A FIFO of entries. `count` is its length, `size` their bytes of content."""

    def __init__(self, queue: EntryQueue, runtime: Runtime) -> None:
        self.queue = queue
        self.runtime = runtime
        self.count: i64 = 0
        # The chunk that was read back last, reversed: a list pops its last item in constant time.
        self.loaded: list[Entry] = []
        self.head: deque[Entry] = deque()
        self.returned: list[tuple[int, Entry]] = []
        self.head_bytes: i64 = 0
        self.is_spilling = False
        self.backlog = NO_BACKLOG
        self.sealed: list[Entry] = []
        self.sealed_batch: i64 = 0
        self.tail: list[Entry] = []
        self.tail_bytes: i64 = 0
        # The growth in bytes of entries that were paged in, and the number of damaged ones; the queue collects both.
        self.growth: i64 = 0
        self._lost: i64 = 0
        self._retry: ReadRetry | None = None
        self._is_listed = False
        queue.footprint += LEVEL_BYTES
        runtime.add_footprint(LEVEL_BYTES)

    @property
    def is_blocked(self) -> bool:
        """The disk could not serve a read; `EntryQueue.read_again` is called later."""
        return self._retry is not None and self._retry.is_waiting

    def _postpone(self) -> None:
        if self._retry is None:
            self._retry = ReadRetry(self.runtime, self.queue)
        self._retry.wait()

    def push(self, entry: Entry) -> None:
        """Add at the end."""
        self.count += 1
        if not self.is_spilling:
            limit: i64 = HEAD_LIMIT_BYTES
            runtime = self.runtime
            if runtime.memory_bytes > runtime.memory_limit_bytes:
                limit = 0 if runtime.is_overfull() else HEAD_LIMIT_UNDER_PRESSURE_BYTES
            is_short = self.head_bytes < limit and len(self.head) < HEAD_LIMIT_LENGTH
            if is_short or not self.runtime.messages.frees_memory:
                self.head_bytes += entry.message.size
                self.head.append(entry)
                return
            self.is_spilling = True
        self._spill(entry)
        is_full = len(self.tail) >= CHUNK_LENGTH or self.tail_bytes >= CHUNK_BYTES
        if is_full:
            self._seal()
        if (is_full or self.tail_bytes >= CHUNK_BYTES_UNDER_PRESSURE) and not self._is_listed:
            runtime = self.runtime
            if runtime.memory_bytes > runtime.memory_limit_bytes:
                if not is_full:
                    self._seal()
                self._is_listed = True
                runtime.sealed.append(self)

    def let_go(self) -> bool:
        if self.sealed:
            if self.runtime.messages.written_batch < self.sealed_batch:
                return False
            self._shrink(self.sealed)
            self.sealed = []
        if self.tail_bytes >= CHUNK_BYTES:
            # It grew while the sealed entries were not written, such as by a large transaction.
            self._seal()
            return False
        self._is_listed = False
        return True

    def list_tail(self) -> i64:
        """Free what is behind the head once it is written. Returns its bytes."""
        size = self.tail_bytes
        if (self.sealed or self.tail) and not self._is_listed:
            self._seal()
            self._is_listed = True
            self.runtime.sealed.append(self)
        return size

    def push_front(self, entry: Entry) -> None:
        """Return an entry that was taken to its place, by its sequence."""
        self.count += 1
        self.head_bytes += entry.message.size
        heapq.heappush(self.returned, (int(entry.sequence), entry))

    def pop(self) -> Entry | None:
        """Take the first entry. Returns None if there is none in memory: then call `load`."""
        if self.returned:
            if not (self.loaded or self.head) and not self._is_before_backlog():
                return None
            if self._is_returned_first():
                if self.returned[0][1].is_paged_out:
                    return None
                entry = heapq.heappop(self.returned)[1]
                self.count -= 1
                self.head_bytes -= entry.message.size
                return entry
        if self.loaded:
            entry = self.loaded.pop()
        elif self.head:
            entry = self.head.popleft()
        else:
            return None
        self.count -= 1
        self.head_bytes -= entry.message.size
        return entry

    def _is_before_backlog(self) -> bool:
        """Whether the first returned entry comes before everything that is, or will be, on disk."""
        sequence = self.returned[0][0]
        if self.backlog:
            return sequence < self.backlog[0].sequences[0]
        entries = self.sealed or self.tail
        return not entries or sequence < entries[0].sequence

    def _is_returned_first(self) -> bool:
        """Whether the first returned entry comes before all others in memory."""
        sequence = self.returned[0][0]
        if self.loaded:
            return sequence < self.loaded[-1].sequence
        return not self.head or sequence < self.head[0].sequence

    def pop_run(self, count: i64, last: i64, now: float) -> list[Entry]:
        """Take up to `count` of the first entries that are in memory, not expired, and not beyond `last`.

        Fewer if they are large (`RUN_BYTES`). None if the first needs `pop` or `load`.
        """
        run: list[Entry] = []
        if self.returned:
            last = min(last, self.returned[0][0] - 1)
        loaded = self.loaded
        head = self.head
        size: i64 = 0
        count = min(count, RUN_LENGTH)
        while count > 0 and size < RUN_BYTES:
            if loaded:
                entry = loaded[-1]
            elif head:
                entry = head[0]
            else:
                break
            if entry.sequence > last or 0.0 < entry.expires_at <= now:
                break
            if loaded:
                loaded.pop()
            else:
                head.popleft()
            run.append(entry)
            size += entry.message.size
            count -= 1
        self.count -= len(run)
        self.head_bytes -= size
        return run

    def _unload(self) -> None:
        """Merge loaded and returned entries into the head, in order."""
        if self.returned:
            self._paged_in(page_in_all(self.runtime, self.returned))
        if self.loaded:
            self.head.extendleft(self.loaded)
            self.loaded = []
        if self.returned:
            runtime = self.runtime
            returned = [entry for _, entry in sorted(self.returned) if not entry.is_paged_out]
            self.returned = [item for item in self.returned if item[1].is_paged_out]
            if not returned:
                return
            head = self.head
            if not head or returned[-1].sequence < head[0].sequence:
                runtime.work_left -= len(returned) >> 4
                returned.reverse()
                head.extendleft(returned)
                return
            runtime.work_left -= (len(returned) + len(head)) >> 4
            self.head = deque(heapq.merge(returned, head, key=_sequence_of))

    def first_after(self, sequence: i64) -> Entry | None:
        """The first entry after a sequence, which stays in its place. If it is in the backlog, it is read back."""
        found: Entry | None = None
        self._unload()
        if self.returned:
            # Some of them cannot be read now, and may be the first.
            return None
        head = self.head
        if head and head[-1].sequence > sequence:
            found = head[int(_index_after(head, sequence))]
        for place in range(self._chunk_after(sequence), len(self.backlog)):
            chunk = self.backlog[place]
            index = bisect_right(chunk.sequences, sequence)
            # A returned entry in the head may belong behind the first chunks of the backlog.
            if found is not None and found.sequence < chunk.sequences[index]:
                return found
            entry = self._look(chunk, index)
            if entry is not None or self.is_blocked:
                return entry
        if found is not None:
            return found
        for entries in (self.sealed, self.tail):
            if entries and entries[-1].sequence > sequence:
                return entries[bisect_right(entries, sequence, key=_sequence_of)]
        return None

    def _chunk_after(self, sequence: i64) -> int:
        """The index of the first chunk of the backlog with entries beyond a sequence."""
        low = 0
        high = len(self.backlog)
        while low < high:
            middle = (low + high) // 2
            if self.backlog[middle].sequences[-1] > sequence:
                high = middle
            else:
                low = middle + 1
        return low

    def _look(self, chunk: Chunk, start: int) -> Entry | None:
        """The first readable entry of a chunk, from an index on."""
        self.runtime.work_left -= READ_UNITS
        for index in range(start, len(chunk.sequences)):
            if self.is_blocked:
                return None
            try:
                return self._entry_of(chunk, index)
            except ReadPostponed:
                self._postpone()
            except DamagedMessage:
                continue
        return None

    def _entry_of(self, chunk: Chunk, index: int) -> Entry:
        message = self.runtime.messages.read(chunk.locations[index])
        self.runtime.work_left -= message.size // BYTES_PER_UNIT
        entry = Entry(self.queue, message, chunk.sequences[index])
        entry.location = chunk.locations[index]
        entry.is_stored = chunk.are_stored
        entry.redelivered = chunk.redelivered
        chunk.restore(entry, index)
        return entry

    def extract(self, entry: Entry) -> None:
        """Take out an entry that `first_after` found."""
        self.count -= 1
        self._unload()
        sequence = entry.sequence
        head = self.head
        self.runtime.work_left -= len(head) >> 12
        place = _index_after(head, sequence - 1)
        if place < len(head) and head[int(place)] is entry:
            del head[int(place)]
            self.head_bytes -= entry.message.size
            return
        index = self._chunk_after(sequence - 1)
        if index < len(self.backlog):
            chunk = self.backlog[index]
            chunk.remove(bisect_right(chunk.sequences, sequence - 1))
            if not chunk.sequences:
                del self.backlog[index]
            self.runtime.memory_bytes += entry.message.size
            return
        if entry in self.sealed:
            self.sealed.remove(entry)
        else:
            self.tail.remove(entry)
            self.tail_bytes -= entry.message.size

    def first_expiry(self) -> float:
        """When the first entry expires; 0.0 for never, or if there is none."""
        if self.returned and (self.loaded or self.head or self._is_before_backlog()) and self._is_returned_first():
            return self.returned[0][1].expires_at
        if self.loaded:
            return self.loaded[-1].expires_at
        if self.head:
            return self.head[0].expires_at
        if self.backlog:
            expiries = self.backlog[0].expiries
            return 0.0 if expiries is None else float(expiries[0])
        entries = self.sealed or self.tail
        return entries[0].expires_at if entries else 0.0

    def load(self) -> i64:
        """Load entries into memory. Returns how many are skipped because they are damaged.

        Afterwards `pop` has an entry, or the level is empty, or it is blocked.
        """
        lost: i64 = 0
        while not (self.loaded or self.head) and self.count > len(self.returned) and not self.is_blocked:
            try:
                lost += self._refill()
            except ReadPostponed:
                self._postpone()
                return lost
            if self._retry is not None:
                self._retry.succeeded()
        self._paged_in(page_in_first(self.runtime, self.returned))
        lost += self._lost
        self._lost = 0
        return lost

    def _paged_in(self, result: PagedIn) -> None:
        self.count -= result.lost
        self._lost += result.lost
        self.head_bytes += result.growth
        self.growth += result.growth
        if result.is_postponed:
            self._postpone()

    def entries(self) -> list[Entry]:
        """The entries in memory, in order."""
        first = [*reversed(self.loaded), *self.head]
        if self.returned:
            first = sorted([*first, *(entry for _, entry in self.returned)], key=_sequence_of)
        return [*first, *self.sealed, *self.tail]

    @property
    def size(self) -> int:
        """Bytes of content that wait here."""
        backlog = sum(sum(chunk.sizes) for chunk in self.backlog)
        return int(self.head_bytes) + backlog + sum(int(entry.message.size) for entry in [*self.sealed, *self.tail])

    def remove_all(self) -> Removed:
        """Empty the level. The entries count as memory until they are taken from the result."""
        returned = [entry for _, entry in self.returned]
        removed = Removed(self.runtime, [self.loaded, returned, self.sealed, self.tail], self.head, self.backlog)
        self.loaded = []
        self.returned = []
        self.head = deque()
        self.head_bytes = 0
        self.backlog = NO_BACKLOG
        self.sealed = []
        self.tail = []
        self.tail_bytes = 0
        self.count = 0
        self.is_spilling = False
        return removed

    def redelivered_sequences(self) -> list[int]:
        entries = self.entries()
        found = [int(entry.sequence) for entry in entries if entry.redelivered]
        for chunk in self.backlog:
            if chunk.redelivered:
                found.extend(chunk.sequences)
        return found

    def recover(self, entry: Entry) -> None:
        """Add an entry found in the store, in order of sequences. It takes no more memory than after `push`."""
        if not self.is_spilling:
            self.push(entry)
            return
        # Recovered entries are on the disk, so a full tail becomes a chunk without being sealed.
        self.count += 1
        self.tail.append(entry)
        self.tail_bytes += entry.message.size
        if len(self.tail) >= CHUNK_LENGTH or self.tail_bytes >= CHUNK_BYTES:
            self._shrink([*self.sealed, *self.tail])
            self.sealed = []
            self.tail = []
            self.tail_bytes = 0

    def _spill(self, entry: Entry) -> None:
        if entry.location == NO_LOCATION:
            entry.location = self.runtime.messages.spill(entry.message)
        tail = self.tail
        if tail and (tail[0].is_stored != entry.is_stored or tail[0].redelivered != entry.redelivered):
            self._seal()
        self.tail.append(entry)
        self.tail_bytes += entry.message.size

    def _seal(self) -> None:
        messages = self.runtime.messages
        if self.sealed:
            if messages.written_batch < self.sealed_batch:
                return
            self._shrink(self.sealed)
        self.sealed = self.tail
        self.sealed_batch = messages.batch
        self.tail = []
        self.tail_bytes = 0

    def _shrink(self, entries: list[Entry]) -> None:
        runtime = self.runtime
        if self.backlog is NO_BACKLOG:
            self.backlog = deque()
        self.backlog.extend(chunks_of(entries))
        for entry in entries:
            runtime.memory_bytes -= entry.message.size

    def _refill(self) -> i64:
        lost: i64 = 0
        if self.backlog:
            lost = self._read_back(self.backlog[0])
            self.backlog.popleft()
            self.count -= lost
            return lost
        entries = self.sealed or self.tail
        if self.sealed:
            self.sealed = []
        else:
            self.tail = []
            self.tail_bytes = 0
            self.is_spilling = False
        for entry in entries:
            self._to_head(entry)
        return lost

    def _read_back(self, chunk: Chunk) -> i64:
        """Load the entries of a chunk. Returns how many were lost."""
        lost: i64 = 0
        size: i64 = 0
        queue = self.queue
        loaded: list[Entry] = []
        is_plain = chunk.is_plain
        are_stored = chunk.are_stored
        redelivered = chunk.redelivered
        messages = self.runtime.messages.read_all(chunk.locations)
        index: i64 = -1
        for message, sequence, location in zip(messages, chunk.sequences, chunk.locations, strict=True):
            index += 1
            if message is None:
                lost += 1
                continue
            entry = Entry(queue, message, sequence)
            entry.location = location
            entry.is_stored = are_stored
            entry.redelivered = redelivered
            if not is_plain:
                chunk.restore(entry, index)
            loaded.append(entry)
            size += entry.message.size
        loaded.reverse()
        self.loaded = loaded
        self.head_bytes += size
        self.runtime.memory_bytes += size
        self.runtime.work_left -= READ_UNITS + size // BYTES_PER_UNIT
        return lost

    def _to_head(self, entry: Entry) -> None:
        self.head.append(entry)
        self.head_bytes += entry.message.size
