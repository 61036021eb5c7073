"""The storage that the model needs. `storage.journal` implements it on a disk, `storage.memory` without one.

Everything put, settled or defined goes into the *current batch*. A commit takes the batch, writes it and, if anybody
waits for it, syncs it. Then the node calls the waiters in the order in which they asked. One commit runs at a time;
everything that arrives meanwhile is the next batch (group commit).
"""

from array import array
from collections.abc import Iterable, Iterator
from types import TracebackType

from mypy_extensions import i64, mypyc_attr

from waybill.model.entry import Entry
from waybill.model.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class CommitWaiter:
    """Waits until everything put so far is durable (for a confirm, a settled outcome, a reply)."""

    def committed(self, mark: i64) -> None:
        """Everything put before the call of `wait(self, mark)` is durable."""
        raise NotImplementedError


class AtomicSection:
    """Puts and settles within `with messages.atomic():` are recovered all or none.

    Sections nest: the outermost one counts. An exception also ends the section, since otherwise no commit could begin
    again. Changes made before the exception remain, on disk as in memory: code that propagates one must leave the model
    in the same state as the store.
    """

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError


class StoredMessage:
    """A message that recovery found for a queue."""

    def __init__(
        self,
        sequence: i64,
        location: i64,
        message: Message,
        delivery_count: i64,
        redelivered: bool,
        changes: bytes = b"",
    ) -> None:
        self.sequence: i64 = sequence
        self.location: i64 = location
        self.message = message
        self.delivery_count: i64 = delivery_count
        self.redelivered = redelivered
        self.changes = changes


class StreamRecord:
    """One message of a stream; `timestamp_ms` is Unix time."""

    def __init__(self, offset: i64, timestamp_ms: i64, message: Message) -> None:
        self.offset: i64 = offset
        self.timestamp_ms: i64 = timestamp_ms
        self.message = message


class StoredStream:
    """The append-only log of a stream: messages with consecutive offsets.

    Readers see offsets in `first_offset <= offset < committed_offset`; `next_offset` is what the next append gets.
    """

    first_offset: i64
    next_offset: i64
    committed_offset: i64

    def append(self, message: Message, timestamp_ms: i64) -> i64:
        """Add to the current batch. Returns the message's offset."""
        raise NotImplementedError

    def read(self, offset: i64, max_count: i64, max_bytes: i64) -> list[StreamRecord]:
        """Committed records from `offset` on, at least one if there is any; fewer than asked at a chunk's end.

        Raises ReadPostponed.
        """
        raise NotImplementedError

    def offset_at(self, timestamp_ms: i64) -> i64:
        """The first offset whose timestamp is not before `timestamp_ms`; `next_offset` if all are before.

        Raises ReadPostponed.
        """
        raise NotImplementedError

    def retain(self, max_bytes: i64, max_age_ms: i64, now_ms: i64) -> None:
        """Drop whole old segments beyond the limits (-1: no limit); the last segment is always kept."""
        raise NotImplementedError

    def size(self) -> i64:
        """The size of the stream in bytes."""
        raise NotImplementedError


class MessageStore:
    """Keeps the messages of all queues. Locations are opaque to the model, ordered by age, and valid until settled.

    `batch` is the number of the batch being filled, `durable_batch` that of the newest one known to be on disk. What
    was put under batch n may be read back only when `durable_batch >= n` or `written_batch >= n`. `frees_memory`:
    a message in the store, and nowhere else, takes no memory.
    """

    frees_memory: bool
    batch: i64
    written_batch: i64
    durable_batch: i64

    def put(self, queue_id: i64, sequence: i64, message: Message) -> i64:
        """Store a durable message of a queue. Returns its location."""
        raise NotImplementedError

    def put_reference(self, queue_id: i64, sequence: i64, location: i64) -> None:
        """Store the message that was just put for one queue also for another one (same batch, same location)."""
        raise NotImplementedError

    def spill(self, message: Message) -> i64:
        """Write out a message that need not survive the process, to free its memory. Returns its location."""
        raise NotImplementedError

    def settle(self, queue_id: i64, sequence: i64, location: i64) -> None:
        """Remove a message that was put: it is never recovered again."""
        raise NotImplementedError

    def settle_all(self, queue_id: i64, entries: list[Entry]) -> None:
        """`settle` each of a queue's entries, or `forget` it if it was only spilled."""
        raise NotImplementedError

    def forget(self, location: i64) -> None:
        """A spilled message is no longer needed, or a put one whose queue is purged or deleted."""
        raise NotImplementedError

    def requeue(self, queue_id: i64, sequence: i64, location: i64, delivery_count: i64, changes: bytes) -> None:
        """Record how many deliveries of a message failed, and what consumers have changed in it."""
        raise NotImplementedError

    def purge(self, queue_id: i64, up_to_sequence: i64, kept: list[int]) -> None:
        """Remove all messages of a queue up to and including a sequence, except those in `kept`.

        The queue also calls `forget` for each of their locations.
        """
        raise NotImplementedError

    def mark_delivering(self, queue_id: i64, up_to_sequence: i64) -> None:
        """Record that a queue's messages up to a sequence may be delivered: after a crash they are redelivered."""
        raise NotImplementedError

    def atomic(self) -> AtomicSection:
        """An atomic section, for a `with` statement."""
        raise NotImplementedError

    @property
    def is_in_atomic_section(self) -> bool:
        """Always False between turns: no commit can begin in a section."""
        raise NotImplementedError

    def read(self, location: i64) -> Message:
        """Read a put or spilled message back.

        Raises DamagedMessage if it cannot be read or its checksum fails, ReadPostponed if it may be read later.
        """
        raise NotImplementedError

    def read_all(self, locations: "array[int]") -> list[Message | None]:
        """`read` each; None in place of one that is damaged. Raises ReadPostponed."""
        raise NotImplementedError

    def remove_queue(self, queue_id: i64) -> None:
        """Remove a queue and everything put for it. The queue also calls `forget` for each location."""
        raise NotImplementedError


class Store:
    """See the module's docstring. `messages`: the part for messages, to be called directly."""

    messages: MessageStore

    def define(self, kind: str, key: str, value: dict[str, object]) -> None:
        """Store a definition (virtual host, exchange, queue, binding, user ...), replacing an older one of that key."""
        raise NotImplementedError

    def undefine(self, kind: str, key: str) -> None:
        raise NotImplementedError

    def definitions(self, kind: str) -> Iterable[tuple[str, dict[str, object]]]:
        """The definitions of a kind with their keys, in the order of their first definition."""
        raise NotImplementedError

    def recovered(self, queue_id: i64) -> Iterator[StoredMessage]:
        """The live messages of a queue that recovery found, by sequence. Call it once per queue."""
        raise NotImplementedError

    def next_sequence(self, queue_id: i64) -> i64:
        """The lowest sequence that a recovered queue may give to a new message.

        A queue's sequences are never reused: records of an old message in the log would apply to the new one.
        """
        raise NotImplementedError

    def remove_unclaimed(self) -> int:
        """Drop recovered messages that no queue has claimed. Returns how many."""
        raise NotImplementedError

    def new_id(self) -> i64:
        """An id for a queue or a stream, unique in a data directory forever."""
        raise NotImplementedError

    def unclaimed(self) -> tuple[dict[int, int], list[int]]:
        """Recovered data without a definition: message counts by queue id, and ids of streams."""
        raise NotImplementedError

    def stream(self, stream_id: i64, segment_bytes: i64) -> StoredStream:
        """The log of a stream, created if it does not exist."""
        raise NotImplementedError

    def remove_stream(self, stream_id: i64) -> None:
        raise NotImplementedError

    def wait(self, waiter: CommitWaiter, mark: i64) -> None:
        """Call `waiter.committed(mark)` once everything put before this call is durable."""
        raise NotImplementedError
