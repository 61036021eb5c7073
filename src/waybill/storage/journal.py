"""The durable store: messages, definitions and streams of one data directory, under one group commit.

    manifest                  which files there are, and how much of them is durable for certain
    definitions.log           what is declared
    messages/00000001.log     the messages of all queues, see `message_log`
    streams/7/...             one directory a stream

`begin_commit` takes a commit from the store, which is executed where blocking is allowed and passed to `end_commit`;
see `group_commit` for what goes into it. After an OSError the store has failed for good: a disk that failed one sync
may report the next one as a success without having kept anything.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from errno import EIO
from typing import Final

from mypy_extensions import i64

from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.message import Message, MessageFormat
from waybill.model.operator_log import OperatorLog
from waybill.model.store import CommitWaiter, StoredMessage, StoredStream
from waybill.storage.commit import Commit, CommittingStore
from waybill.storage.definitions import NAME as DEFINITIONS_NAME
from waybill.storage.definitions import Definitions
from waybill.storage.filesystem import Filesystem
from waybill.storage.group_commit import GroupCommit
from waybill.storage.manifest import NAME as MANIFEST_NAME
from waybill.storage.manifest import Manifest, encode_manifest, lacks_manifest, read_manifest, write_manifest
from waybill.storage.marks import Mark
from waybill.storage.message_log import MessageLog
from waybill.storage.open_logs import OPEN_LOGS_MAX
from waybill.storage.queue_table import QueueTable
from waybill.storage.read_faults import TRIES_MAX
from waybill.storage.reclaim import Reclaimer
from waybill.storage.record import CLEAN, small_record
from waybill.storage.recovery import Recovery
from waybill.storage.report import MISSING, RecoveryReport
from waybill.storage.segment import DIRECTORY as MESSAGES_DIRECTORY
from waybill.storage.segment import Requeued
from waybill.storage.stream_segment import DIRECTORY as STREAMS_DIRECTORY
from waybill.storage.stream_table import StreamTable

NOT_REQUEUED: Final = Requeued(0, b"")


@dataclass(frozen=True)
class JournalOptions:
    """A segment is full when it has `segment_bytes`; the batch that fills it is not split.

    `open_logs_max`: how many full segments, of messages and streams, may be open for reading.
    """

    segment_bytes: int = 64 << 20
    open_logs_max: int = OPEN_LOGS_MAX


class Journal(CommittingStore):
    """The store of a data directory. See the module's docstring and `Store`. Make one with `open`.

    `log` is `messages` with its real type. `report` tells what recovery has found.
    """

    def __init__(self, filesystem: Filesystem, formats: list[MessageFormat], options: JournalOptions) -> None:
        self.filesystem = filesystem
        self.report = RecoveryReport()
        self.log = MessageLog(filesystem, formats, options.segment_bytes, options.open_logs_max)
        self.messages = self.log
        self._reclaimer = Reclaimer(self.log)
        self._definitions = Definitions(filesystem)
        self._streams = StreamTable(filesystem, self.log.open_logs, self.log.records, self.log.faults, self.report)
        self._commits = GroupCommit(filesystem, self._definitions, self._streams, self.log)
        self._recovered: dict[int, QueueTable] = {}
        self._next_sequences: dict[int, int] = {}

    @staticmethod
    def open(filesystem: Filesystem, formats: list[MessageFormat], options: JournalOptions | None = None) -> "Journal":
        """Recover a data directory, or begin a new one.

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
        recovery = Recovery(self.log, self.report, manifest)
        recovery.run()
        self._commits.lost = recovery.lost
        highest_id: i64 = 0
        for queue_id, table in recovery.tables.items():
            highest_id = max(highest_id, queue_id)
            self._next_sequences[queue_id] = int(table.highest) + 1
            if table.live > 0:
                self._recovered[queue_id] = table
        highest_id = max(highest_id, self._streams.recover(manifest))
        self._definitions.next_id = max(self._definitions.next_id, highest_id + 1, manifest.next_id)
        self._commit_now()

    def _take_manifest(self) -> Manifest:
        """Read the manifest and the definitions, before anything else is touched."""
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
            # The manifest comes first: a file without one would count as damage.
            write_manifest(filesystem, encode_manifest(1, [], is_clean=False))
        self._definitions.recover(report, manifest.extents.get(DEFINITIONS_NAME), is_used=is_used)
        return manifest

    def _commit_now(self) -> None:
        self._commits.is_mark_wanted = True
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
        mark = self.log.marks.get(queue_id, Mark())
        redelivered = set(mark.redelivered)
        for sequence, location in table.pairs():
            segment = self.log.segments[location >> 32]
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
        """Read during recovery, where a temporary failure is retried immediately. Raises DamagedMessage, OSError."""
        for _ in range(TRIES_MAX):
            try:
                return self.log.read(location)
            except ReadPostponed as error:
                reason = str(error)
        raise OSError(EIO, f"the store cannot be read: {reason}")

    def report_to(self, operator_log: OperatorLog) -> None:
        """Report faults to `operator_log` from now on."""
        self.log.faults.operator_log = operator_log

    def next_sequence(self, queue_id: i64) -> i64:
        return self._next_sequences.get(queue_id, 0)

    def remove_unclaimed(self) -> int:
        count = 0
        deleted = self._definitions.deleted_ids
        for queue_id in [queue_id for queue_id in self._recovered if queue_id in deleted]:
            table = self._recovered.pop(queue_id)
            self.log.remove_queue(queue_id)
            for _, location in table.pairs():
                self.log.forget(location)
                count += 1
        for stream_id in self._streams.unclaimed():
            if stream_id in deleted:
                self.remove_stream(stream_id)
        return count

    def unclaimed(self) -> tuple[dict[int, int], list[int]]:
        """What no definition has claimed: message counts by queue id, and ids of streams."""
        messages = {queue_id: int(table.live) for queue_id, table in self._recovered.items()}
        return messages, self._streams.unclaimed()

    # --- streams ---

    def stream(self, stream_id: i64, segment_bytes: i64) -> StoredStream:
        return self._streams.stream(stream_id, segment_bytes)

    def remove_stream(self, stream_id: i64) -> None:
        self._streams.remove(stream_id)

    # --- committing ---

    @property
    def has_failed(self) -> bool:
        return self._commits.has_failed

    @property
    def is_unmarked(self) -> bool:
        return self._commits.is_unmarked

    @property
    def pending_bytes(self) -> int:
        return self._commits.pending_bytes

    @property
    def has_work(self) -> bool:
        return self._commits.has_work

    def save_space(self, *, is_needed: bool) -> None:
        self.log.saves_space = is_needed

    def wait(self, waiter: CommitWaiter, mark: i64) -> None:
        self._commits.wait(waiter, mark)

    def want_mark(self) -> None:
        """Write the manifest with the next commit."""
        self._commits.is_mark_wanted = True

    def durable_files(self) -> list[str]:
        """The manifest, and what it lists. Raises OSError."""
        return [MANIFEST_NAME, *read_manifest(self.filesystem).extents]

    def begin_commit(self) -> Commit | None:
        return self._commits.begin()

    def end_commit(self, commit: Commit) -> None:
        self._commits.end(commit)

    def maintain(self, now: float) -> bool:
        if self._commits.is_unmarked:
            self._commits.consider_mark(now)
        return self._reclaimer.step()

    def close(self, *, clean: bool = True, redelivered: dict[int, list[int]] | None = None) -> None:
        if clean and not self.has_failed:
            self._commits.is_closing = True
            if redelivered is not None:
                self.log.replace_marks(redelivered)
            self.log.append_record(small_record(CLEAN, b""))
            self._commit_now()
        self._definitions.close()
        self._streams.close()
        for segment in self.log.segments.values():
            segment.log.close()
