"""The durable store: messages, definitions and streams of one data directory, under one group commit.

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
from typing import Final

from mypy_extensions import i64

from waybill.model.errors import DamagedMessage, StoreFailed
from waybill.model.message import MessageFormat
from waybill.model.store import CommitWaiter, StoredMessage, StreamLog
from waybill.storage.commit import Commit, DiskCommit
from waybill.storage.definitions import Definitions
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import DEFINITIONS, JOURNAL, STREAM, LogFile
from waybill.storage.message_log import Mark, MessageLog
from waybill.storage.open_logs import OPEN_LOGS_MAX
from waybill.storage.queue_table import QueueTable
from waybill.storage.reclaim import Reclaimer
from waybill.storage.record import CLEAN, small_record
from waybill.storage.recovery import ENTIRE_QUEUE, Recovery
from waybill.storage.report import Damage, RecoveryReport
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.segment import Requeued, Segment
from waybill.storage.stream import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream import JournalStream

NOT_REQUEUED: Final = Requeued(0, b"")
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

    @staticmethod
    def open(filesystem: Filesystem, formats: list[MessageFormat], options: JournalOptions | None = None) -> "Journal":
        """Recover a data directory, or begin a new one. `report` tells what was found.

        Raises OSError, and UnsupportedStoreVersion if a newer version has written there.
        """
        journal = Journal(filesystem, formats, options or JournalOptions())
        journal._recover()
        return journal

    def _recover(self) -> None:
        filesystem = self.filesystem
        for directory in (MESSAGES_DIRECTORY, STREAMS_DIRECTORY):
            filesystem.make_directory(directory)
        filesystem.sync_directory("")
        self._definitions.recover(self.report)
        recovery = Recovery(self, self.report)
        recovery.run()
        highest_id: i64 = 0
        for queue_id, table in recovery.tables.items():
            highest_id = max(highest_id, queue_id)
            self._next_sequences[queue_id] = int(table.highest) + 1
            if table.live > 0:
                self._recovered[queue_id] = table
        for name in filesystem.list_directory(STREAMS_DIRECTORY):
            if name.isdigit():
                self._stream_names[int(name)] = filesystem.list_directory(f"{STREAMS_DIRECTORY}/{name}")
                highest_id = max(highest_id, int(name))
        # As with messages: what is built upon must be durable, and the process before may have died before its sync.
        filesystem.sync_directory(STREAMS_DIRECTORY)
        self._definitions.next_id = max(self._definitions.next_id, highest_id + 1)
        self._commit_now()

    def _commit_now(self) -> None:
        self.is_sync_wanted = True
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
                message = self.read(location)
            except DamagedMessage as error:
                self.report.damage.append(Damage(segment.log.name, location & 0xFFFFFFFF, str(error)))
                continue
            was_delivered = sequence <= mark.redelivered_up_to or sequence in redelivered
            requeued = segment.requeued.get((queue_id, sequence), NOT_REQUEUED)
            yield StoredMessage(sequence, location, message, requeued.delivery_count, was_delivered, requeued.changes)

    def next_sequence(self, queue_id: i64) -> i64:
        return self._next_sequences.get(queue_id, 0)

    def remove_queue(self, queue_id: i64) -> None:
        self.purge(queue_id, ENTIRE_QUEUE, [])
        self.marks.pop(queue_id, None)

    def remove_unclaimed(self) -> int:
        count = 0
        for queue_id, table in self._recovered.items():
            self.remove_queue(queue_id)
            for _, location in table.pairs():
                self.forget(location)
                count += 1
        self._recovered.clear()
        return count

    # --- streams ---

    def stream(self, stream_id: i64, segment_bytes: i64) -> StreamLog:
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = JournalStream(
                self.filesystem, self.open_logs, self.reader, stream_id, segment_bytes, self._busy_streams
            )
            names = self._stream_names.pop(stream_id, None)
            if names is not None:
                stream.recover(names, self.report)
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
        total = int(self.batch_bytes())
        for stream in self._busy_streams:
            total += stream.pending_bytes
        return total

    def begin_commit(self) -> DiskCommit | None:
        if self.has_failed:
            raise StoreFailed("the store has failed and takes no more work")
        if self._running is not None or self.is_in_atomic_section or not self.has_work:
            return None
        removable = self.take_removable() if self.dying else []
        commit = DiskCommit(self.filesystem, self.batch)
        self._take_everything(commit)
        for write in commit.writes:
            commit.size += write.size
        for segment in removable:
            commit.removals.append(segment.log.name)
        self._removing = removable
        # Removing is slow as well, so it goes with the syncs, to where blocking is allowed.
        is_synced = (
            bool(commit.removals or commit.ordered_removals or commit.replacements or self._waiters)
            or self.is_sync_wanted
        )
        if not (commit.writes or is_synced):
            return None
        if is_synced:
            self._take_dirty(commit)
        self.batch += 1
        self._running = commit
        return commit

    @property
    def has_work(self) -> bool:
        return bool(
            self._waiters
            or self.is_sync_wanted
            or self.dying
            or self._busy_streams
            or self._removed_streams
            or self.batch_bytes() > 0
            or self._definitions.has_pending
        )

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
        running = self._running
        self._running = None
        if running is not commit or not commit.is_done:
            self.has_failed = True
            raise StoreFailed("a commit could not be written: nothing is known about what is durable now")
        self.written_batch = commit.batch
        if running.is_synced:
            self._became_durable(running)
        for segment in self._removing:
            self.removed(segment)
        self._removing = []
        for log in self._closing:
            self.open_logs.close(log)
        self._closing = []
        for index in range(len(commit.waiters)):
            commit.waiters[index].committed(commit.marks[index])

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
        return self.reclaimer.step()

    def close(self, *, clean: bool = True, redelivered: dict[int, list[int]] | None = None) -> None:
        if clean and not self.has_failed:
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
