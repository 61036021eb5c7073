"""One group commit: the file operations for a batch. They do not touch the store, so another thread can do them."""

from typing import Final

from mypy_extensions import i64

from waybill.model.store import CommitWaiter, Store
from waybill.storage.filesystem import Filesystem
from waybill.storage.log import LogFile
from waybill.storage.manifest import write_manifest

# From this average size on, passing the pieces to the kernel is cheaper than joining them.
LARGE_PIECE_BYTES: Final = 2048


class Write:
    """Data of `size` bytes for the end of a log file. `reserve`: bytes to reserve behind it (see `File.reserve`)."""

    def __init__(self, log: LogFile, pieces: list[bytes], size: i64, reserve: i64 = 0) -> None:
        self.log = log
        self.pieces = pieces
        self.size: i64 = size
        self.reserve: i64 = reserve


class FileReplacement:
    """New content for a whole log file. It takes the place of the old one in one step."""

    def __init__(self, log: LogFile, data: bytes) -> None:
        self.log = log
        self.data = data


def replace_file(filesystem: Filesystem, replacement: FileReplacement) -> None:
    """Replace a log's file by a new one, durably. The log continues in it."""
    log = replacement.log
    file = filesystem.create(log.name + ".new")
    file.append(replacement.data)
    file.sync()
    filesystem.rename(log.name + ".new", log.name)
    filesystem.sync_directory(log.directory)
    log.close()
    log.file = file


class Commit:
    """A batch of `size` bytes to be written. `is_synced`: a waiter needs it, so `finish` syncs.

    Every method raises OSError; then nothing is known about what is durable, and nothing is retried.
    """

    def __init__(self, batch: i64) -> None:
        self.batch: i64 = batch
        self.size: i64 = 0
        self.waiters: list[CommitWaiter] = []
        self.marks: list[int] = []
        self.is_synced = False
        self.is_done = False

    def execute(self) -> None:
        """`write`, then `finish`."""
        self.write()
        self.finish()

    def write(self) -> None:
        """Write the batch to the page cache: it then survives the process, but not yet a power failure."""

    def finish(self) -> None:
        """Sync what `write` has written, if the commit `is_synced`, and remove files that are no longer needed."""
        self.is_done = True


class DiskCommit(Commit):
    """Its methods block, and touch nothing but this object and its files.

    Recovery relies on the order: directories before the files in them; definitions, then streams, then messages;
    everything durable before the manifest says so; and the manifest before any removal.
    """

    def __init__(self, filesystem: Filesystem, batch: i64) -> None:
        super().__init__(batch)
        self.filesystem = filesystem
        self.directories: list[str] = []
        self.replacements: list[FileReplacement] = []
        self.writes: list[Write] = []
        self.dirty: list[LogFile] = []
        self.dirty_sizes: list[int] = []
        self.dirty_directories: list[str] = []
        self.removals: list[str] = []
        # Written when all files that it lists are durable, and before those that it does not list are removed.
        self.manifest: bytes = b""
        # One after the other, so that a crash leaves no gap.
        self.ordered_removals: list[str] = []

    def write(self) -> None:
        filesystem = self.filesystem
        for directory in self.directories:
            filesystem.make_directory(directory)
        for replacement in self.replacements:
            replace_file(filesystem, replacement)
        for write in self.writes:
            pieces = write.pieces
            if write.size < LARGE_PIECE_BYTES * len(pieces):
                pieces = [b"".join(pieces)]
            write.log.append(filesystem, pieces)
            if write.reserve > 0:
                write.log.opened().reserve(int(write.reserve))

    def finish(self) -> None:
        if self.is_synced:
            for log in self.dirty:
                log.opened().sync()
            for directory in self.dirty_directories:
                self.filesystem.sync_directory(directory)
        if self.manifest:
            write_manifest(self.filesystem, self.manifest)
        self._remove()
        self.is_done = True

    def _remove(self) -> None:
        for name in self.ordered_removals:
            self.filesystem.remove(name)
            self.filesystem.sync_directory(name.rpartition("/")[0])
        parents: list[str] = []
        for name in self.removals:
            self.filesystem.remove(name)
            parent = name.rpartition("/")[0]
            # A directory that is removed with its files needs no sync: its parent has one.
            if parent not in parents and parent not in self.removals:
                parents.append(parent)
        for parent in parents:
            self.filesystem.sync_directory(parent)


class CommittingStore(Store):
    """A store as the node drives it. One commit runs at a time.

    After each turn of work: `commit = store.begin_commit()`; if there is one, `commit.execute()` where blocking is
    allowed; then `store.end_commit(commit)`, and the waiters of the commit are called; then again from the beginning.
    """

    @property
    def has_failed(self) -> bool:
        """Whether the store has failed for good."""
        raise NotImplementedError

    @property
    def is_unmarked(self) -> bool:
        """Whether something was committed and is not marked as durable yet. `maintain` does that if nothing follows."""
        raise NotImplementedError

    def save_space(self, *, is_needed: bool) -> None:
        """While the disk is nearly full, write only what must be written, and free reserved space."""
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        """Bytes that no commit has taken yet. Hold publishers back when there are too many."""
        raise NotImplementedError

    @property
    def has_work(self) -> bool:
        """Whether there is something to commit."""
        raise NotImplementedError

    def begin_commit(self) -> Commit | None:
        """Take the current batch. None if there is nothing to do, or a commit is running, or a group is open.

        Raises StoreFailed after a commit that failed. Any exception means that the store has failed.
        """
        raise NotImplementedError

    def end_commit(self, commit: Commit) -> None:
        """Finish a commit; the caller then calls its waiters. Raises StoreFailed if it was not fully executed."""
        raise NotImplementedError

    def maintain(self, now: float) -> bool:
        """Do a small step of compaction. A commit must follow. True if there is more to do soon.

        `now`: seconds. Call it about once a second, and whenever there is time while it returns True.
        """
        raise NotImplementedError

    def remove_unclaimed(self) -> int:
        raise NotImplementedError

    def close(self, *, clean: bool = True, redelivered: dict[int, list[int]] | None = None) -> None:
        """Close the store. No commit may be running.

        `clean`: commit what is pending, and record the clean stop. `redelivered`: by queue, exactly which sequences
        have been delivered before; queues that are not in it have none. Without it, all messages of a queue that has
        made deliveries come back as redelivered.
        """
        raise NotImplementedError
