"""Reclaims disk space from segments with little live data, in small steps.

Most segments need none of this: queues are consumed in order, and a segment is removed when its last message is
settled. Two things keep a segment longer than that:

- A few live messages among many dead ones. *Compaction* copies the live ones to the head, and then the segment goes.
- Settles of messages in an older segment that lives on. A *checkpoint* of that older segment writes all that is known
  about its dead messages to the head once more; from then on no other segment needs to remember it.
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.storage.log import FILE_HEADER_SIZE, LogReader
from waybill.storage.message_log import MessageLog
from waybill.storage.record import (
    KIND_OFFSET,
    PUT,
    REFERENCE,
    SETTLE,
    SPILL,
    integers,
    record_length,
    small_record,
    with_holder,
)
from waybill.storage.segment import FORGOTTEN, Segment, dead_holders

STEP_COPY_BYTES: Final = 256 << 10
STEP_SCAN_BYTES: Final = 4 << 20
BUSY_BYTES: Final = 4 << 20
SETTLES_A_RECORD: Final = 256
GARBAGE_SEGMENTS: Final = 4  # compaction begins when so many segments' worth of bytes is garbage ...
GARBAGE_SHARE: Final = 2  # ... and at least one byte in so many, over all and in the segment to be compacted


class CompactionCheckpoint:
    """Rewrites the settles of `sources` in a batch. Segments before `head` need not remember them after it."""

    def __init__(self, batch: i64, head: i64, sources: list[int]) -> None:
        self.batch: i64 = batch
        self.head: i64 = head
        self.sources = sources


class Reclaimer:
    """Decides what to do next, and does a step of it."""

    def __init__(self, log: MessageLog) -> None:
        self.log = log
        self._source: Segment | None = None
        self._scan: LogReader | None = None
        self._offset: i64 = 0
        self._dead: set[tuple[int, int]] = set()
        self._dead_bytes: i64 = 0
        self._checkpoint: CompactionCheckpoint | None = None

    def step(self) -> bool:
        """Do a little. True if there is more to do."""
        log = self.log
        if log.batch_bytes() > BUSY_BYTES:
            return self._source is not None
        self._end_checkpoint()
        waiting = False
        for segment in log.dying:
            if max(segment.dead_batch, segment.sealed_batch + 1) > log.durable_batch:
                waiting = True
        if waiting or self._checkpoint is not None:
            log.is_sync_wanted = True
        elif log.dying:
            self._begin_checkpoint()
        try:
            if self._source is None:
                self._choose_source()
            is_compacting = self._source is not None
            if self._source is not None:
                self._compact(self._source)
        except OSError as error:
            # The next step tries again.
            log.faults.operator_log.warning("a read failed", f"compaction is postponed: {error}")
            self._end()
            return False
        return is_compacting or self._checkpoint is not None or waiting

    # --- checkpoints ---

    def _begin_checkpoint(self) -> None:
        log = self.log
        sources: list[int] = []
        blocked_bytes: i64 = 0
        for segment in log.dying:
            blocked_bytes += segment.log.size
            for number in segment.dependencies:
                other = log.segments.get(number)
                if other is None or not other.is_present or other in log.dying or number in sources:
                    continue
                if other is not log.head and other.moved is None:
                    sources.append(number)
        cost: i64 = 0
        for number in sources:
            cost += len(log.segments[number].dead)
        if not sources or cost * 2 > blocked_bytes:
            return
        for number in sorted(sources):
            self._write_dead(log.segments[number])
        for queue_id, purge in log.purges.items():
            purge.segment = log.head.number
            log.append_record(purge.record(queue_id))
        self._checkpoint = CompactionCheckpoint(log.batch, log.head.number, sources)
        log.is_sync_wanted = True

    def _write_dead(self, segment: Segment) -> None:
        log = self.log
        pairs = [pair for pair in sorted(dead_holders(segment.dead.getvalue(), 0)) if pair[0] != FORGOTTEN]
        for start in range(0, len(pairs), SETTLES_A_RECORD):
            values = [value for pair in pairs[start : start + SETTLES_A_RECORD] for value in pair]
            log.append_record(small_record(SETTLE, integers(values)))
        for (queue_id, sequence), requeued in segment.requeued.items():
            log.append_record(requeued.record(queue_id, sequence))
        log.head.depend_on(segment.number)

    def _end_checkpoint(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.batch > self.log.durable_batch:
            return
        self._checkpoint = None
        for segment in self.log.segments.values():
            if segment.number < checkpoint.head:
                segment.dependencies.difference_update(checkpoint.sources)
                segment.last_dependency = -1

    # --- compaction ---

    def _choose_source(self) -> None:
        log = self.log
        total: i64 = 0
        garbage: i64 = 0
        best: Segment | None = None
        for segment in log.segments.values():
            if segment is log.head or not segment.is_present or segment.live == 0 or segment.is_emptied:
                continue
            if segment.is_damaged:
                continue
            if segment.sealed_batch > log.durable_batch:
                continue
            if segment.moved is not None:
                # A crash interrupted its compaction.
                self._begin(segment)
                return
            total += segment.log.size
            garbage += segment.garbage_bytes()
            if best is None or segment.garbage_bytes() > best.garbage_bytes():
                best = segment
        if best is None:
            return
        is_little = garbage < GARBAGE_SEGMENTS * log.segment_bytes or garbage * GARBAGE_SHARE < total
        if is_little and not log.saves_space:
            return
        if best.garbage_bytes() * GARBAGE_SHARE >= best.log.size:
            self._begin(best)

    def _begin(self, segment: Segment) -> None:
        self._source = segment
        self._scan = LogReader(self.log.open_logs.file(segment.log), segment.number)
        self._offset = FILE_HEADER_SIZE
        self._dead = set()
        self._dead_bytes = 0
        if segment.moved is None:
            segment.moved = {}

    def _compact(self, source: Segment) -> None:
        log = self.log
        reader = self._scan
        if reader is None or source.live == 0 or not source.is_present:
            self._end()
            return
        reader.file = log.open_logs.file(source.log)
        self._dead |= dead_holders(source.dead.getvalue(), self._dead_bytes)
        self._dead_bytes = len(source.dead)
        scan_limit = self._offset + STEP_SCAN_BYTES
        copy_limit = log.batch_bytes() + STEP_COPY_BYTES
        while self._offset < source.log.size:
            if self._offset >= scan_limit or log.batch_bytes() >= copy_limit:
                return
            is_whole = reader.load(self._offset)
            if not is_whole or reader.bad_count > 0:
                # Messages that are copied already are valid in either place; the others stay.
                log.reading.note_damage(source, self._offset, "a batch fails its checksums")
                self._end()
                return
            self._copy_batch(source, reader)
            self._offset = reader.end_offset
        source.is_emptied = True
        log.retire(source)
        self._end()

    def _end(self) -> None:
        self._source = None
        self._scan = None
        self._dead = set()

    def _copy_batch(self, source: Segment, reader: LogReader) -> None:
        data = reader.data
        holders: dict[int, list[tuple[int, int]]] = {}
        for index in reader.records:
            if index < 0:
                continue
            kind = data[index + KIND_OFFSET]
            if kind == PUT or (kind == SPILL and not source.is_from_before):
                holders[index] = [(read_i64_be(data, index + 16), read_i64_be(data, index + 24))]
            elif kind == REFERENCE:
                others = holders.get(index - read_i64_be(data, index + 32))
                if others is not None:
                    others.append((read_i64_be(data, index + 16), read_i64_be(data, index + 24)))
        for index, claims in holders.items():
            self._copy_record(source, reader, index, claims)

    def _copy_record(self, source: Segment, reader: LogReader, index: i64, claims: list[tuple[int, int]]) -> None:
        log = self.log
        data = reader.data
        offset = reader.base + index
        moved = source.moved
        if moved is None or offset in moved or (len(claims) == 1 and (FORGOTTEN, offset) in self._dead):
            return
        alive = [claim for claim in claims if self._is_alive(claim)]
        if not alive:
            return
        record = data[index : index + record_length(data, index, len(data))]
        if alive[0] != claims[0]:
            record = with_holder(record, alive[0][0], alive[0][1])
        moved[offset] = log.append_copy(record, alive)
        if len(alive) < len(claims):
            source.left_behind.update(claim for claim in claims if claim not in alive and claim not in self._dead)
        head = log.head
        head.depend_on(source.number)
        if source.requeued:
            for claim in alive:
                requeued = source.requeued.get(claim)
                if requeued is not None:
                    head.requeued[claim] = requeued
                    log.append_record(requeued.record(claim[0], claim[1]))

    def _is_alive(self, claim: tuple[int, int]) -> bool:
        if claim in self._dead:
            return False
        purge = self.log.purges.get(claim[0])
        return purge is None or claim[1] > purge.up_to or claim[1] in purge.kept
