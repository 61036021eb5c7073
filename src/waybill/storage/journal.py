"""The durable store: messages, definitions and streams of one data directory, under one group commit.

    manifest                  which files there are, and how much of them is durable for certain
    definitions.log           what is declared
    messages/00000001.log     the messages of all queues, see `message_log`
    streams/7/...             one directory a stream

A commit is taken from the store by `begin_commit`, executed wherever blocking is allowed, and brought back to
`end_commit`. It syncs if anybody waits, and then everything written since the last sync is synced, in an order in which
nothing becomes durable before what it builds upon. After an OSError the store has failed for good: a disk that failed
one sync may report the next one as a success without having kept anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import EIO
from typing import Final

from mypy_extensions import i64

from waybill.model.errors import DamagedMessage, ReadPostponed, StoreFailed
from waybill.model.message import Message, MessageFormat
from waybill.model.operator_log import OperatorLog
from waybill.model.store import CommitWaiter, StoredMessage, StoredStream
from waybill.storage.commit import Commit, DiskCommit, tell_waiters
from waybill.storage.definitions import NAME as DEFINITIONS_NAME
from waybill.storage.definitions import Definitions
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import DEFINITIONS, JOURNAL, STREAM, LogFile
from waybill.storage.manifest import NAME as MANIFEST_NAME
from waybill.storage.manifest import (
    Extent,
    Manifest,
    encode_manifest,
    extent_of,
    lacks_manifest,
    read_manifest,
    write_manifest,
)
from waybill.storage.message_log import Mark, MessageLog
from waybill.storage.open_logs import OPEN_LOGS_MAX
from waybill.storage.queue_table import QueueTable
from waybill.storage.read_faults import TRIES_MAX
from waybill.storage.reclaim import Reclaimer
from waybill.storage.record import CLEAN, small_record
from waybill.storage.recovery import ENTIRE_QUEUE, Recovery
from waybill.storage.report import MISSING, RecoveryReport
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.segment import Requeued, Segment
from waybill.storage.stream import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream import JournalStream, stream_ids

NOT_REQUEUED: Final = Requeued(0, b"")
# Nothing was committed for so long: then all that is there is marked as durable, and while it is busy so often.
IDLE_S: Final = 0.2
MARK_INTERVAL_S: Final = 10.0
SYNC_ORDER: Final = [DEFINITIONS, STREAM, JOURNAL]


@dataclass(frozen=True)
class JournalOptions:
    """A segment is full when it has `segment_bytes`; the batch that fills it stays whole.

    `open_logs_max`: so many full segments, of messages and streams, are open for reading at once.
    """

    segment_bytes: int = 64 << 20
    open_logs_max: int = OPEN_LOGS_MAX


class Journal(MessageLog):
    """See the module's text, and `Store` for what each method promises. Make one with `open`."""

    def __init__(self, filesystem: Filesystem, formats: list[MessageFormat], options: JournalOptions) -> None:
        super().__init__(filesystem, formats, options.segment_bytes, options.open_logs_max)
        self.report = RecoveryReport()
        self.has_failed = False
        self.reclaimer = Reclaimer(self)
        self._definitions = Definitions(filesystem)
        self._streams: dict[int, JournalStream] = {}
        self._stream_names: dict[int, list[str]] = {}
        self._busy_streams: list[JournalStream] = []
        self._committing_streams: list[JournalStream] = []
        self._removed_streams: list[JournalStream] = []
        self._recovered: dict[int, QueueTable] = {}
        self._next_sequences: dict[int, int] = {}
        self._running: DiskCommit | None = None
        self._removing: list[Segment] = []
        self._closing: list[LogFile] = []
        self._dirty: list[LogFile] = []
        self._dirty_directories: list[str] = []
        self._directories: list[str] = []
        self._waiters: list[CommitWaiter] = []
        self._waiter_marks: list[int] = []
        # Entries of the manifest for what nobody has asked for, or what is lost: they stay as they are.
        self._unclaimed_extents: dict[int, list[Extent]] = {}
        self._lost: list[Extent] = []
        self._is_closing = False
        self._is_mark_wanted = False
        self.is_unmarked = False
        self._seen_batch: i64 = 0
        self._seen_at = 0.0
        self._marked_at = 0.0
        self._marked_files: i64 = 0

    @staticmethod
    def open(filesystem: Filesystem, formats: list[MessageFormat], options: JournalOptions | None = None) -> "Journal":
        """Recover a data directory, or begin a new one. `report` tells what was found.

        Raises OSError, UnsupportedStoreVersion if a newer version has written there, and DefinitionsLost.
        """
        journal = Journal(filesystem, formats, options or JournalOptions())
        try:
            journal._recover()
        except Exception:
            journal.close(clean=False)
            raise
        return journal

    def _recover(self) -> None:
        filesystem = self.filesystem
        manifest = self._take_manifest()
        for directory in (MESSAGES_DIRECTORY, STREAMS_DIRECTORY):
            filesystem.make_directory(directory)
        filesystem.sync_directory("")
        recovery = Recovery(self, self.report, manifest)
        recovery.run()
        self._lost = recovery.lost
        highest_id: i64 = 0
        for queue_id, table in recovery.tables.items():
            highest_id = max(highest_id, queue_id)
            self._next_sequences[queue_id] = int(table.highest) + 1
            if table.live > 0:
                self._recovered[queue_id] = table
        for stream_id in stream_ids(filesystem):
            self._stream_names[stream_id] = filesystem.list_directory(f"{STREAMS_DIRECTORY}/{stream_id}")
            highest_id = max(highest_id, stream_id)
        for extent in manifest.within(STREAMS_DIRECTORY):
            stream_id = int(extent.name.split("/")[1])
            self._unclaimed_extents.setdefault(stream_id, []).append(extent)
            highest_id = max(highest_id, stream_id)
        # As with messages: what is built upon must be durable, and the process before may have died before its sync.
        filesystem.sync_directory(STREAMS_DIRECTORY)
        self._definitions.next_id = max(self._definitions.next_id, highest_id + 1, manifest.next_id)
        self._commit_now()

    def _take_manifest(self) -> Manifest:
        """Read the manifest and the definitions, without which nothing else is touched."""
        filesystem = self.filesystem
        manifest = read_manifest(filesystem)
        report = self.report
        if manifest.is_bad:
            report.damaged(MANIFEST_NAME, 0, "the manifest is bad")
        elif not manifest.is_present and lacks_manifest(filesystem):
            report.damaged(MANIFEST_NAME, 0, MISSING)
        is_used = any(filesystem.list_directory(name) for name in (MESSAGES_DIRECTORY, STREAMS_DIRECTORY))
        if not (manifest.is_present or is_used):
            report.is_new = True
            # Before any file of which it could be told that its manifest is missing.
            write_manifest(filesystem, encode_manifest(1, [], is_clean=False))
        self._definitions.recover(report, manifest.extents.get(DEFINITIONS_NAME), is_used=is_used)
        return manifest

    def _commit_now(self) -> None:
        self._is_mark_wanted = True
        commit = self.begin_commit()
        if commit is not None:
            commit.execute()
            self.end_commit(commit)

    # --- definitions ---

    def define(self, kind: str, key: str, value: dict[str, object]) -> None:
        self._definitions.define(kind, key, value)

    def undefine(self, kind: str, key: str) -> None:
        self._definitions.define(kind, key, None)

    def definitions(self, kind: str) -> Iterable[tuple[str, dict[str, object]]]:
        return self._definitions.items(kind)

    def new_id(self) -> i64:
        given = self._definitions.next_id
        self._definitions.next_id = given + 1
        return given

    # --- recovered messages ---

    def recovered(self, queue_id: i64) -> Iterator[StoredMessage]:
        table = self._recovered.pop(queue_id, None)
        if table is None:
            return
        mark = self.marks.get(queue_id, Mark())
        redelivered = set(mark.redelivered)
        for sequence, location in table.pairs():
            segment = self.segments[location >> 32]
            try:
                message = self._read_at_start(location)
            except DamagedMessage as error:
                segment.is_damaged = True
                self.report.damaged(segment.log.name, location & 0xFFFFFFFF, str(error))
                continue
            was_delivered = sequence <= mark.redelivered_up_to or sequence in redelivered
            requeued = segment.requeued.get((queue_id, sequence), NOT_REQUEUED)
            yield StoredMessage(sequence, location, message, requeued.delivery_count, was_delivered, requeued.changes)

    def _read_at_start(self, location: i64) -> Message:
        """Nobody could wait now: what fails passingly is tried again at once. Raises DamagedMessage, and OSError."""
        for _ in range(TRIES_MAX):
            try:
                return self.read(location)
            except ReadPostponed as error:
                reason = str(error)
        raise OSError(EIO, f"the store cannot be read: {reason}")

    def report_to(self, operator_log: OperatorLog) -> None:
        """Say there what goes wrong from now on."""
        self.faults.operator_log = operator_log

    def next_sequence(self, queue_id: i64) -> i64:
        return self._next_sequences.get(queue_id, 0)

    def remove_queue(self, queue_id: i64) -> None:
        self.purge(queue_id, ENTIRE_QUEUE, [])
        self.marks.pop(queue_id, None)

    def remove_unclaimed(self) -> int:
        count = 0
        deleted = self._definitions.deleted_ids
        for queue_id in [queue_id for queue_id in self._recovered if queue_id in deleted]:
            table = self._recovered.pop(queue_id)
            self.remove_queue(queue_id)
            for _, location in table.pairs():
                self.forget(location)
                count += 1
        for stream_id in sorted({*self._stream_names, *self._unclaimed_extents}):
            if stream_id in deleted:
                self.remove_stream(stream_id)
        return count

    def unclaimed(self) -> tuple[dict[int, int], list[int]]:
        """What is kept though nobody knows it: messages by id of a queue, and ids of streams."""
        messages = {queue_id: int(table.live) for queue_id, table in self._recovered.items()}
        return messages, sorted({*self._stream_names, *self._unclaimed_extents})

    # --- streams ---

    def stream(self, stream_id: i64, segment_bytes: i64) -> StoredStream:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = JournalStream(
                self.filesystem, self.open_logs, self.reader, stream_id, segment_bytes, self._busy_streams, self.faults
            )
            names = self._stream_names.pop(stream_id, None)
            extents = self._unclaimed_extents.pop(stream_id, [])
            if names is not None or extents:
                stream.recover(names, extents, self.report)
            self._streams[stream_id] = stream
        return stream

    def remove_stream(self, stream_id: i64) -> None:
        self.stream(stream_id, 0)
        stream = self._streams.pop(stream_id)
        if stream.is_busy:
            self._busy_streams.remove(stream)
        self._removed_streams.append(stream)

    # --- committing ---

    def wait(self, waiter: CommitWaiter, mark: i64) -> None:
        self._waiters.append(waiter)
        self._waiter_marks.append(mark)

    @property
    def pending_bytes(self) -> int:
        total = int(self.batch_bytes() + self._definitions.pending_bytes)
        for stream in self._busy_streams:
            total += stream.pending_bytes
        return total

    def begin_commit(self) -> DiskCommit | None:
        if self.has_failed:
            raise StoreFailed("the store has failed and takes no more work")
        if self._running is not None or self.is_in_atomic_section or not self.has_work:
            return None
        try:
            return self._begin_commit()
        except Exception:
            # A part of the batch may be taken and will not be written: nothing after it may be confirmed.
            self.has_failed = True
            raise

    def _begin_commit(self) -> DiskCommit | None:
        removable = self.take_removable() if self.dying else []
        commit = DiskCommit(self.filesystem, self.batch)
        self._take_everything(commit)
        for write in commit.writes:
            commit.size += write.size
        for segment in removable:
            commit.removals.append(segment.log.name)
        self._removing = removable
        # Removing is slow as well, so it goes with the syncs, to where blocking is allowed.
        has_removals = bool(commit.removals or commit.ordered_removals)
        is_marked = has_removals or self._is_mark_wanted
        is_synced = bool(commit.replacements or self._waiters) or is_marked or self.is_sync_wanted
        if not (commit.writes or is_synced):
            return None
        if is_synced:
            self._take_dirty(commit)
        if is_marked:
            commit.manifest = self._manifest(removable)
            self._is_mark_wanted = False
        self.batch += 1
        self._running = commit
        return commit

    @property
    def has_work(self) -> bool:
        return bool(
            self._waiters
            or self.is_sync_wanted
            or self._is_mark_wanted
            or self.dying
            or self._busy_streams
            or self._removed_streams
            or self.batch_bytes() > 0
            or self._definitions.has_pending
        )

    def _manifest(self, leaving: list[Segment]) -> bytes:
        """What is durable once the commit that is being made has synced."""
        definitions = self._definitions
        entries = [extent_of(definitions.log)]
        entries.extend(extent.encoded() for extent in self._lost)
        lost = {extent.name for extent in self._lost}
        for segment in self.segments.values():
            log = segment.log
            if segment.is_present and log.is_begun and log.name not in lost and segment not in leaving:
                entries.append(extent_of(log))
        for stream in self._streams.values():
            entries.extend(stream.extents())
        for extents in self._unclaimed_extents.values():
            entries.extend(extent.encoded() for extent in extents)
        return encode_manifest(definitions.next_id, entries, is_clean=self._is_closing)

    def _take_everything(self, commit: DiskCommit) -> None:
        """Definitions, then streams, then messages: the order in which they are written and synced."""
        self._note_dirty(self._definitions.take_batch(commit))
        for stream in self._busy_streams:
            stream.is_busy = False
            self._take_stream(commit, stream)
            self._committing_streams.append(stream)
        self._busy_streams.clear()
        for stream in self._removed_streams:
            self._remove_logs(commit.removals, stream.logs())
            if not stream.is_new:
                commit.removals.append(f"{STREAMS_DIRECTORY}/{stream.stream_id}")
        self._removed_streams = []
        log = self.head.log
        self.take_batch(commit)
        if commit.writes and commit.writes[-1].log is log:
            self._note_dirty(log)

    def _take_stream(self, commit: DiskCommit, stream: JournalStream) -> None:
        log = stream.take_batch(commit)
        if log is not None:
            if stream.is_new:
                stream.is_new = False
                commit.directories.append(log.directory)
                self._dirty_directories.append(STREAMS_DIRECTORY)
            self._note_dirty(log)
            # Readers see what is durable only, or a crash could give an offset that they have seen to another message.
            self.is_sync_wanted = True
        self._remove_logs(commit.ordered_removals, stream.take_retired())

    def _remove_logs(self, removals: list[str], logs: list[LogFile]) -> None:
        for log in logs:
            if log.is_begun:
                removals.append(log.name)
                self._closing.append(log)
            if log.is_dirty:
                self._dirty.remove(log)

    def _note_dirty(self, log: LogFile | None) -> None:
        if log is None:
            return
        if not log.is_begun:
            log.is_begun = True
            if log.directory not in self._dirty_directories:
                self._dirty_directories.append(log.directory)
        if not log.is_dirty:
            log.is_dirty = True
            self._dirty.append(log)

    def _take_dirty(self, commit: DiskCommit) -> None:
        commit.is_synced = True
        commit.dirty = self._dirty if len(self._dirty) < 2 else sorted(self._dirty, key=_sync_rank)
        commit.dirty_sizes = [int(log.size) for log in commit.dirty]
        commit.dirty_directories = self._dirty_directories
        for log in commit.dirty:
            log.is_dirty = False
        self._dirty = []
        self._dirty_directories = []
        commit.waiters = self._waiters
        commit.marks = self._waiter_marks
        self._waiters = []
        self._waiter_marks = []
        self.is_sync_wanted = False

    def end_commit(self, commit: Commit) -> None:
        try:
            self._end_commit(commit)
        except Exception:
            self.has_failed = True
            raise
        tell_waiters(commit)

    def _end_commit(self, commit: Commit) -> None:
        running = self._running
        self._running = None
        if running is not commit or not commit.is_done:
            raise StoreFailed("a commit could not be written: nothing is known about what is durable now")
        self.written_batch = commit.batch
        if running.manifest:
            self.is_unmarked = False
        elif running.writes or running.replacements:
            self.is_unmarked = True
        if running.is_synced:
            self._became_durable(running)
        for segment in self._removing:
            self.removed(segment)
        self._removing = []
        for log in self._closing:
            self.open_logs.close(log)
        self._closing = []

    def _became_durable(self, commit: DiskCommit) -> None:
        self.durable_batch = commit.batch
        for index in range(len(commit.dirty)):
            log = commit.dirty[index]
            size: i64 = commit.dirty_sizes[index]
            log.durable_size = size
            if log.directory == MESSAGES_DIRECTORY:
                self.durable_position = max(self.durable_position, (log.number << 32) | size)
                if log is not self.head.log:
                    self.open_logs.seal(log)
        for stream in self._committing_streams:
            stream.committed()
        self._committing_streams.clear()

    # --- upkeep ---

    def maintain(self, now: float) -> bool:
        if self.is_unmarked:
            self._consider_mark(now)
        return self.reclaimer.step()

    def _consider_mark(self, now: float) -> None:
        """Have a manifest written if nothing was committed for a while, files have come, or the last one is old."""
        is_idle = self.batch == self._seen_batch and now - self._seen_at >= IDLE_S
        if self.batch != self._seen_batch:
            self._seen_batch = self.batch
            self._seen_at = now
        files = self.head.number + self._definitions.log.size + self._definitions.log.number + len(self._streams)
        if is_idle or now - self._marked_at >= MARK_INTERVAL_S or files != self._marked_files:
            self._marked_files = files
            self._marked_at = now
            self._is_mark_wanted = True

    def close(self, *, clean: bool = True, redelivered: dict[int, list[int]] | None = None) -> None:
        if clean and not self.has_failed:
            self._is_closing = True
            if redelivered is not None:
                self._replace_marks(redelivered)
            self.append_record(small_record(CLEAN, b""))
            self._commit_now()
        self._definitions.close()
        for stream in self._streams.values():
            stream.close()
        for segment in self.segments.values():
            segment.log.close()

    def _replace_marks(self, redelivered: dict[int, list[int]]) -> None:
        for queue_id in sorted(set(self.marks) | set(redelivered)):
            last = self.marks.get(queue_id, Mark())
            mark = Mark(
                given_up_to=max(last.given_up_to, last.delivering_up_to), redelivered=redelivered.get(queue_id, [])
            )
            self.marks[queue_id] = mark
            self.append_record(mark.record(queue_id))


def _sync_rank(log: LogFile) -> tuple[int, str, int]:
    return (SYNC_ORDER.index(log.purpose), log.directory, int(log.number))
