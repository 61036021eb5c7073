"""Random histories of a store on a simulated disk, with a model of what it has to remember.

The model keeps the state after each batch that may not be durable yet. Whatever a crash leaves behind must be one of
these states, whole: the newest that is durable or a later one, and after the mere death of the process none older than
the last that was written.
"""

from dataclasses import dataclass, field
from random import Random

from tests.storage.support import end_commit
from waybill.model.message import Address, Message, MessageFormat
from waybill.model.store import CommitWaiter, StoredStream
from waybill.storage.commit import Commit
from waybill.storage.filesystem import Filesystem
from waybill.storage.journal import Journal, JournalOptions
from waybill.testing.simulated_disk import Crash, SimulatedDisk

FORMAT = MessageFormat(1, "AMQP 0-9-1")
ADDRESSES = [Address("", "tasks"), Address("amq.topic", "a.b.c")]
QUEUES = [11, 12, 13]
STREAM_ID = 5
MAX_ROUNDS = 4

Key = tuple[int, int]


class Violation(AssertionError):
    """The store has broken a promise."""


@dataclass(frozen=True)
class State:
    """What a store has to remember: messages by queue and sequence, definitions, and entries of a stream."""

    messages: dict[Key, tuple[bytes, int]] = field(default_factory=dict)
    # How far deliveries were allowed, by queue.
    delivering: dict[int, int] = field(default_factory=dict)
    redelivered: frozenset[Key] = frozenset()

    def after_clean_stop(self) -> "State":
        return State(self.messages, {}, self.redelivered)

    def after_crash(self) -> "State":
        redelivered = {
            key for key in self.messages if key in self.redelivered or key[1] <= self.delivering.get(key[0], -1)
        }
        return State(self.messages, {}, frozenset(redelivered))


class Confirmation(CommitWaiter):
    def __init__(self, history: "History") -> None:
        self.history = history

    def committed(self, mark: int) -> None:
        self.history.durable_batch = max(self.history.durable_batch, mark)


class History:
    """One run. `filesystem` is what the store works on: the disk, or the disk behind a planted bug."""

    def __init__(
        self,
        seed: int,
        disk: SimulatedDisk,
        filesystem: Filesystem,
        *,
        segment_bytes: int = 3000,
        max_steps: int = 60,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.max_steps = max_steps
        self.random = Random(seed)
        self.disk = disk
        self.filesystem = filesystem
        self.content_number = 0
        self.recoveries = 0
        self.damage: list[object] = []
        # Nothing is durable before the store was opened for the first time.
        self.states: dict[int, State] = {0: State()}
        self.entries: dict[int, list[bytes]] = {0: []}
        self.defined: dict[int, dict[str, object]] = {0: {}}
        self.durable_batch = 0
        self.written_batch = 0
        self.locations: dict[Key, int] = {}

    def run(self) -> None:
        for _ in range(self.random.randint(2, MAX_ROUNDS)):
            self.open()
            if self.random.random() < 0.7:
                self.disk.crash_at = self.disk.operations + self.random.randint(1, 40)
            try:
                self.live()
            except Crash:
                self.crash()
        self.open()

    def crash(self) -> None:
        if self.random.random() < 0.5:
            self.disk.kill()
        else:
            self.disk.lose_power()
            self.written_batch = self.durable_batch

    # --- a process's life ---

    def open(self) -> None:
        while True:
            if self.random.random() < 0.2:
                self.disk.crash_at = self.disk.operations + self.random.randint(1, 8)
            try:
                self.journal = Journal.open(
                    self.filesystem, [FORMAT], JournalOptions(self.segment_bytes, open_logs_max=2)
                )
                break
            except Crash:
                self.crash()
        self.disk.crash_at = None
        self.recoveries += 1
        self.check()

    def check(self) -> None:
        """Compare what was recovered with the states that are allowed, and go on from the one it is."""
        journal = self.journal
        self.damage = list(journal.report.damage)
        messages: dict[Key, tuple[bytes, int]] = {}
        redelivered: set[Key] = set()
        self.locations = {}
        for queue_id in QUEUES:
            last = -1
            for stored in journal.recovered(queue_id):
                key = (queue_id, int(stored.sequence))
                if stored.sequence <= last:
                    raise Violation(f"{key} came back twice or out of order")
                last = int(stored.sequence)
                messages[key] = (stored.message.content, int(stored.delivery_count))
                self.locations[key] = int(stored.location)
                if stored.redelivered:
                    redelivered.add(key)
        if journal.report.damage:
            raise Violation(f"damage is reported where there is none: {journal.report.damage}")
        found = self.matching(messages, redelivered)
        self.check_stream()
        self.check_definitions()
        self.state = found
        batch = int(journal.messages.written_batch)
        self.states = {batch: found}
        self.defined = {batch: dict(self.definitions)}
        self.entries = {batch: list(self.stream_entries)}
        self.durable_batch = batch
        self.written_batch = batch
        for queue_id in QUEUES:
            expected = max((key[1] for key in messages if key[0] == queue_id), default=-1)
            if journal.next_sequence(queue_id) <= expected:
                raise Violation("a sequence would be used twice")
        self.next_sequences = {queue_id: int(journal.next_sequence(queue_id)) for queue_id in QUEUES}

    def matching(self, messages: dict[Key, tuple[bytes, int]], redelivered: set[Key]) -> State:
        floor = max(self.durable_batch, self.written_batch)
        allowed = [state for batch, state in self.states.items() if batch >= floor]
        for state in allowed:
            after = state.after_clean_stop() if self.journal.report.is_clean else state.after_crash()
            if after.messages == messages and after.redelivered == redelivered:
                return after
        differences = []
        for state in allowed:
            after = state.after_clean_stop() if self.journal.report.is_clean else state.after_crash()
            lost = sorted(set(after.messages) - set(messages))
            extra = sorted(set(messages) - set(after.messages))
            flags = sorted(after.redelivered ^ redelivered)
            differences.append(f"{lost} are missing, {extra} are there besides, {flags} are flagged wrongly")
        raise Violation(f"no state since batch {floor} is like this: " + "; or ".join(differences))

    def check_stream(self) -> None:
        self.stream: StoredStream = self.journal.stream(STREAM_ID, self.segment_bytes)
        stream = self.stream
        contents = read_all(stream, int(stream.first_offset))
        if stream.committed_offset != stream.next_offset:
            raise Violation("a recovered stream has entries that are not committed")
        floor = max(self.durable_batch, self.written_batch)
        allowed = [entries for batch, entries in self.entries.items() if batch >= floor]
        whole = [None] * int(stream.first_offset) + contents
        for entries in allowed:
            if len(entries) == len(whole) and all(
                found is None or found == entry for found, entry in zip(whole, entries, strict=True)
            ):
                self.stream_entries = entries
                return
        lengths = [len(entries) for entries in allowed]
        raise Violation(f"the stream has {len(whole)} entries, allowed were {lengths}")

    def check_definitions(self) -> None:
        floor = max(self.durable_batch, self.written_batch)
        found = dict(self.journal.definitions("queue"))
        for batch, defined in self.defined.items():
            if batch >= floor and defined == found:
                self.definitions: dict[str, object] = dict(found)
                return
        raise Violation(f"definitions are {found}")

    def live(self) -> None:
        self.commit_running: Commit | None = None
        weights = {
            self.put: 30,
            self.settle: 22,
            self.requeue: 4,
            self.purge: 2,
            self.atomic: 5,
            self.deliver: 2,
            self.append: 6,
            self.define: 3,
            self.read: 6,
            self.maintain: 10,
            self.wait: 8,
            self.begin: 14,
            self.execute: 14,
            self.end: 14,
        }
        for _ in range(self.random.randint(5, self.max_steps)):
            (action,) = self.random.choices(list(weights), list(weights.values()))
            action()
        if self.random.random() < 0.3:
            self.close()
        raise Crash

    def close(self) -> None:
        self.execute()
        self.end()
        keys = [key for key in self.state.messages if self.random.random() < 0.5]
        by_queue: dict[int, list[int]] = {}
        for queue_id, sequence in keys:
            by_queue.setdefault(queue_id, []).append(sequence)
        self.state = State(self.state.messages, {}, frozenset(keys))
        # The commit is in the journal's own hands: its batch has the next number.
        self.snapshot(int(self.journal.messages.batch))
        self.journal.close(redelivered=by_queue)
        self.durable_batch = self.written_batch = int(self.journal.messages.batch) - 1

    # --- actions ---

    def message(self) -> Message:
        self.content_number += 1
        size = self.random.choice((0, 1, 10, 100, 100, 400))
        content = f"{self.content_number}:".encode() + self.random.randbytes(size)
        return Message(FORMAT, content, self.random.choice(ADDRESSES), True, 0, -1, 1.5)

    def put(self) -> None:
        queues = self.random.sample(QUEUES, self.random.choice((1, 1, 1, 2, 3)))
        message = self.message()
        messages = dict(self.state.messages)
        location = -1
        for queue_id in queues:
            sequence = self.next_sequences[queue_id]
            self.next_sequences[queue_id] = sequence + 1
            if location < 0:
                location = int(self.journal.messages.put(queue_id, sequence, message))
            else:
                self.journal.messages.put_reference(queue_id, sequence, location)
            messages[queue_id, sequence] = (message.content, 0)
            self.locations[queue_id, sequence] = location
        self.state = State(messages, self.state.delivering, self.state.redelivered)

    def settle(self) -> None:
        if not self.state.messages:
            return
        messages = dict(self.state.messages)
        # Mostly from the front, as consumers do.
        keys = sorted(messages, key=lambda key: key[1])
        count = self.random.choice((1, 1, 3, 10))
        for key in keys[:count] if self.random.random() < 0.6 else self.random.sample(keys, min(count, len(keys))):
            self.journal.messages.settle(key[0], key[1], self.locations.pop(key))
            del messages[key]
        self.state = State(messages, self.state.delivering, self.state.redelivered - (set(keys) - set(messages)))

    def requeue(self) -> None:
        if not self.state.messages:
            return
        key = self.random.choice(list(self.state.messages))
        content, count = self.state.messages[key]
        self.journal.messages.requeue(key[0], key[1], self.locations[key], count + 1, b"")
        messages = {**self.state.messages, key: (content, count + 1)}
        self.state = State(messages, self.state.delivering, self.state.redelivered)

    def purge(self) -> None:
        queue_id = self.random.choice(QUEUES)
        up_to = self.next_sequences[queue_id] - 1 - self.random.choice((0, 0, 2))
        candidates = [key for key in self.state.messages if key[0] == queue_id and key[1] <= up_to]
        kept = {key for key in candidates if self.random.random() < 0.2}
        self.journal.messages.purge(queue_id, up_to, sorted(key[1] for key in kept))
        messages = dict(self.state.messages)
        for key in candidates:
            if key not in kept:
                del messages[key]
                self.journal.messages.forget(self.locations.pop(key))
        gone = set(self.state.messages) - set(messages)
        self.state = State(messages, self.state.delivering, self.state.redelivered - gone)

    def atomic(self) -> None:
        with self.journal.messages.atomic():
            for _ in range(self.random.randint(1, 4)):
                self.random.choice((self.put, self.settle))()

    def deliver(self) -> None:
        queue_id = self.random.choice(QUEUES)
        up_to = self.random.randint(0, self.next_sequences[queue_id] + 3)
        self.journal.messages.mark_delivering(queue_id, up_to)
        up_to = max(up_to, self.state.delivering.get(queue_id, -1))
        self.state = State(self.state.messages, self.state.delivering | {queue_id: up_to}, self.state.redelivered)

    def append(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            message = self.message()
            offset = int(self.stream.append(message, 1000 + len(self.stream_entries)))
            if offset != len(self.stream_entries):
                raise Violation(f"offset {offset} was given instead of {len(self.stream_entries)}")
            self.stream_entries = [*self.stream_entries, message.content]
        if self.random.random() < 0.2:
            self.stream.retain(4000, -1, 0)

    def define(self) -> None:
        key = f"queue {self.random.randint(0, 3)}"
        if key in self.definitions and self.random.random() < 0.5:
            self.journal.undefine("queue", key)
            self.definitions = {name: value for name, value in self.definitions.items() if name != key}
        else:
            value: dict[str, object] = {"id": int(self.journal.new_id())}
            self.journal.define("queue", key, value)
            self.definitions = {**self.definitions, key: value}

    def read(self) -> None:
        readable = [key for key in self.states[self.written_batch].messages if key in self.locations]
        if readable:
            key = self.random.choice(readable)
            if self.journal.messages.read(self.locations[key]).content != self.state.messages[key][0]:
                raise Violation(f"{key} is read with another content")
        committed = int(self.stream.committed_offset)
        if committed > self.stream.first_offset:
            contents = read_all(self.stream, int(self.stream.first_offset))
            if contents != self.stream_entries[int(self.stream.first_offset) : committed]:
                raise Violation("the stream is read with other contents")

    def maintain(self) -> None:
        for _ in range(self.random.choice((1, 5))):
            self.journal.maintain(0.0)

    def wait(self) -> None:
        self.journal.wait(Confirmation(self), int(self.journal.messages.batch))

    def snapshot(self, batch: int) -> None:
        self.states[batch] = self.state
        self.entries[batch] = self.stream_entries
        self.defined[batch] = self.definitions

    def begin(self) -> None:
        if self.commit_running is None:
            batch = int(self.journal.messages.batch)
            self.commit_running = self.journal.begin_commit()
            if self.commit_running is not None:
                self.snapshot(batch)

    def execute(self) -> None:
        commit = self.commit_running
        if commit is not None and not commit.is_done:
            commit.execute()
            self.written_batch = int(commit.batch)

    def end(self) -> None:
        commit = self.commit_running
        if commit is not None and commit.is_done:
            self.commit_running = None
            end_commit(self.journal, commit)


def read_all(stream: StoredStream, offset: int) -> list[bytes]:
    contents = []
    while records := stream.read(offset, 3, 2000):
        for record in records:
            if record.offset != offset:
                raise Violation(f"offset {offset} is missing from the stream")
            contents.append(record.message.content)
            offset += 1
    return contents


def run_history(seed: int) -> History:
    disk = SimulatedDisk(Random(seed + 1_000_000))
    history = History(seed, disk, disk)
    history.run()
    return history
