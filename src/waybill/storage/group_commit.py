"""Group commit: what goes into a commit, in which order, and what is durable when it has ended.

A commit syncs if anybody waits. It then syncs everything written since the last sync, in such an order that nothing
becomes durable before what it depends on: definitions, streams, messages. From time to time it also writes the
manifest, when all that is listed there is durable.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.errors import StoreFailed
from waybill.model.store import CommitWaiter
from waybill.storage.commit import Commit, DiskCommit
from waybill.storage.definitions import Definitions
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import DEFINITIONS, JOURNAL, STREAM, LogFile
from waybill.storage.manifest import Extent, encode_manifest, extent_of
from waybill.storage.message_log import MessageLog
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.segment import Segment
from waybill.storage.stream import DiskStream
from waybill.storage.stream_segment import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream_table import StreamTable

# The manifest is written after IDLE_S without a commit, and under load every MARK_INTERVAL_S.
IDLE_S: Final = 0.2
MARK_INTERVAL_S: Final = 10.0
SYNC_ORDER: Final = [DEFINITIONS, STREAM, JOURNAL]


class GroupCommit:
    """Makes commits of what definitions, streams and messages have pending; one runs at a time.

    `is_mark_wanted`: the next commit writes the manifest. `lost`: entries of the manifest for files that are missing
    or cut, which are kept. After any exception `has_failed` is True for good.
    """

    def __init__(self, filesystem: Filesystem, definitions: Definitions, streams: StreamTable, log: MessageLog) -> None:
        self._filesystem = filesystem
        self._definitions = definitions
        self._streams = streams
        self._log = log
        self.has_failed = False
        self.is_closing = False
        self.is_mark_wanted = False
        self.is_unmarked = False
        self.lost: list[Extent] = []
        self._committing_streams: list[DiskStream] = []
        self._running: DiskCommit | None = None
        self._removing: list[Segment] = []
        self._closing: list[LogFile] = []
        self._dirty: list[LogFile] = []
        self._dirty_directories: list[str] = []
        self._waiters: list[CommitWaiter] = []
        self._waiter_marks: list[int] = []
        self._seen_batch: i64 = 0
        self._seen_at = 0.0
        self._marked_at = 0.0
        self._marked_files: i64 = 0

    def wait(self, waiter: CommitWaiter, mark: i64) -> None:
        """See `Store.wait`."""
        self._waiters.append(waiter)
        self._waiter_marks.append(mark)

    @property
    def pending_bytes(self) -> int:
        """Bytes that no commit has taken yet."""
        pending = int(self._log.batch_bytes() + self._definitions.pending_bytes)
        return pending + self._streams.pending_bytes() if self._streams.busy else pending

    def begin(self) -> DiskCommit | None:
        """See `CommittingStore.begin_commit`."""
        if self.has_failed:
            raise StoreFailed("the store has failed and accepts no more work")
        if self._running is not None or not self.has_work or self._log.is_in_atomic_section:
            return None
        try:
            return self._begin()
        except Exception:
            # A part of the batch may have been taken and will not be written: nothing after it may be confirmed.
            self.has_failed = True
            raise

    def _begin(self) -> DiskCommit | None:
        removable = self._log.take_removable() if self._log.dying else []
        commit = DiskCommit(self._filesystem, self._log.batch)
        self._take_everything(commit)
        for write in commit.writes:
            commit.size += write.size
        for segment in removable:
            commit.removals.append(segment.log.name)
        self._removing = removable
        # Removing blocks too, so it is done with the syncs.
        has_removals = bool(commit.removals or commit.ordered_removals)
        is_marked = has_removals or self.is_mark_wanted
        is_synced = bool(commit.replacements or self._waiters) or is_marked or self._log.is_sync_wanted
        if not (commit.writes or is_synced):
            return None
        if is_synced:
            self._take_dirty(commit)
        if is_marked:
            commit.manifest = self._manifest(removable)
            self.is_mark_wanted = False
        self._log.batch += 1
        self._running = commit
        return commit

    @property
    def has_work(self) -> bool:
        """Whether there is something to commit."""
        return bool(
            self._waiters
            or self._log.is_sync_wanted
            or self.is_mark_wanted
            or self._log.dying
            or self._streams.busy
            or self._streams.removed
            or self._log.batch_bytes() > 0
            or self._definitions.has_pending
        )

    def _manifest(self, leaving: list[Segment]) -> bytes:
        """What will be durable once the present commit has synced."""
        definitions = self._definitions
        entries = [extent_of(definitions.log)]
        entries.extend(extent.encoded() for extent in self.lost)
        lost = {extent.name for extent in self.lost}
        for segment in self._log.segments.values():
            log = segment.log
            if segment.is_present and log.is_begun and log.name not in lost and segment not in leaving:
                entries.append(extent_of(log))
        entries.extend(self._streams.manifest_entries())
        return encode_manifest(definitions.next_id, entries, is_clean=self.is_closing)

    def _take_everything(self, commit: DiskCommit) -> None:
        """Definitions, then streams, then messages: the order in which they are written and synced."""
        if self._definitions.has_pending:
            self._note_dirty(self._definitions.take_batch(commit))
        for stream in self._streams.busy:
            stream.is_busy = False
            self._take_stream(commit, stream)
            self._committing_streams.append(stream)
        self._streams.busy.clear()
        for stream in self._streams.removed:
            self._remove_logs(commit.removals, stream.logs())
            if not stream.is_new:
                commit.removals.append(f"{STREAMS_DIRECTORY}/{stream.stream_id}")
        self._streams.removed = []
        log = self._log.head.log
        self._log.take_batch(commit)
        if commit.writes and commit.writes[-1].log is log:
            self._note_dirty(log)

    def _take_stream(self, commit: DiskCommit, stream: DiskStream) -> None:
        log = stream.take_batch(commit)
        if log is not None:
            if stream.is_new:
                stream.is_new = False
                commit.directories.append(log.directory)
                self._dirty_directories.append(STREAMS_DIRECTORY)
            self._note_dirty(log)
            # Readers see only what is durable: after a crash, no other message may get an offset that they have seen.
            self._log.is_sync_wanted = True
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
        self._log.is_sync_wanted = False

    def end(self, commit: Commit) -> None:
        """See `CommittingStore.end_commit`."""
        try:
            self._end(commit)
        except Exception:
            self.has_failed = True
            raise

    def _end(self, commit: Commit) -> None:
        running = self._running
        self._running = None
        if running is not commit or not commit.is_done:
            raise StoreFailed("a commit could not be written: it is unknown which data is durable")
        self._log.written_batch = commit.batch
        if running.manifest:
            self.is_unmarked = False
        elif running.writes or running.replacements:
            self.is_unmarked = True
        if running.is_synced:
            self._became_durable(running)
        for segment in self._removing:
            self._log.removed(segment)
        self._removing = []
        for log in self._closing:
            self._log.open_logs.close(log)
        self._closing = []

    def _became_durable(self, commit: DiskCommit) -> None:
        self._log.durable_batch = commit.batch
        for index in range(len(commit.dirty)):
            log = commit.dirty[index]
            size: i64 = commit.dirty_sizes[index]
            log.durable_size = size
            if log.directory == MESSAGES_DIRECTORY:
                self._log.durable_position = max(self._log.durable_position, (log.number << 32) | size)
                if log is not self._log.head.log:
                    self._log.open_logs.seal(log)
        for stream in self._committing_streams:
            stream.committed()
        self._committing_streams.clear()

    # --- marking what is durable ---

    def consider_mark(self, now: float) -> None:
        """Request a manifest if nothing was committed for a while, there are new files, or the last one is old."""
        is_idle = self._log.batch == self._seen_batch and now - self._seen_at >= IDLE_S
        if self._log.batch != self._seen_batch:
            self._seen_batch = self._log.batch
            self._seen_at = now
        files = (
            self._log.head.number
            + self._definitions.log.size
            + self._definitions.log.number
            + len(self._streams.in_use)
        )
        if is_idle or now - self._marked_at >= MARK_INTERVAL_S or files != self._marked_files:
            self._marked_files = files
            self._marked_at = now
            self.is_mark_wanted = True


def _sync_rank(log: LogFile) -> tuple[int, str, int]:
    return (SYNC_ORDER.index(log.purpose), log.directory, int(log.number))
