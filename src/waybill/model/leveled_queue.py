"""The ready messages of a queue, in levels by priority. Consumers are served from here (`engine.delivery`)."""

from mypy_extensions import i64

from waybill.model.consumer_line import ConsumerLine
from waybill.model.death_headers import EXPIRED
from waybill.model.delivery_recorder import DeliveryRecorder
from waybill.model.entry import Entry
from waybill.model.message import Message
from waybill.model.priority_level import PriorityLevel
from waybill.model.queue import Queue, QueueHost
from waybill.model.queue_timers import ExpiryTimer
from waybill.model.runtime import Runtime


class LeveledQueue(Queue):
    """A queue with a level of ready messages for each priority. `MessageQueue` adds publishing, outcomes and limits.

    `line`: consumers with credit that do not select. `ready_bytes`: the sum of `counted` over the ready messages.
    `keeps_track`: `handed_out` is called with what is delivered.
    """

    def __init__(  # noqa: PLR0913
        self,
        host: QueueHost,
        runtime: Runtime,
        name: str,
        queue_id: i64,
        *,
        durable: bool,
        auto_delete: bool,
        owner: object | None,
        arguments: dict[str, object],
    ) -> None:
        super().__init__(
            host, runtime, name, queue_id, durable=durable, auto_delete=auto_delete, owner=owner, arguments=arguments
        )
        self.line = ConsumerLine()
        self.uses_priorities = False
        self.keeps_track = False
        self.ready_bytes: i64 = 0
        self.counts_bodies = False
        self.delivery_recorder = DeliveryRecorder(self)
        self.expiry = ExpiryTimer(self)
        count = max(self.policy.max_priority, 0) + 1
        self.level = PriorityLevel(self, self.runtime)
        # A level is made for the first message of its priority. Until then, a shared empty one is used.
        unused = PriorityLevel(self, self.runtime) if count > 1 else None
        self._unused_level: PriorityLevel | None = unused
        self.levels: list[PriorityLevel] = [self.level] if unused is None else [self.level] + [unused] * (count - 1)
        self.has_levels = count > 1

    @property
    def is_gated(self) -> bool:
        return self.is_persistent and self.delivery_recorder.is_waiting

    def kill(self, entry: Entry, reason: str) -> None:
        """Dead-letter and remove an entry that was taken, atomically."""
        raise NotImplementedError

    def remove(self, entry: Entry) -> None:
        """Remove an entry that was taken."""
        raise NotImplementedError

    def remove_all(self, entries: list[Entry]) -> None:
        """`remove` each entry."""
        raise NotImplementedError

    def handed_out(self, entries: list[Entry]) -> None:
        """Note that entries are about to be delivered, unsettled."""

    def handed_back(self, entries: list[Entry]) -> None:
        """Note that entries were not delivered after all."""

    def count_redelivered(self, count: i64) -> None:
        self.redelivered += count
        self.awaiting_redelivery = max(self.awaiting_redelivery - count, 0)

    # --- levels ---

    def priority_levels(self) -> list[PriorityLevel]:
        """The levels that are in use."""
        return [level for level in self.levels if level.count > 0]

    def level_of(self, message: Message) -> PriorityLevel:
        index = message.format.level(message.priority, i64(len(self.levels)))
        level = self.levels[index]
        if level is self._unused_level and self.has_levels:
            level = PriorityLevel(self, self.runtime)
            self.levels[index] = level
        return level

    def counted(self, message: Message) -> i64:
        """What a message adds to `ready_bytes`: with `x-max-length-bytes` its body, else its content."""
        return message.format.body_size(message.content) if self.counts_bodies else message.size

    def load(self, level: PriorityLevel) -> Entry | None:
        """Load entries of a level and take the first. Returns None if none can be read now."""
        lost = level.load()
        self.ready_count -= lost
        self._count_growth(level)
        if lost:
            self.report_skipped(lost)
            self.ready_bytes = sum(other.size for other in self.levels)
        return level.pop()

    def _count_growth(self, level: PriorityLevel) -> None:
        self.ready_bytes += level.growth
        level.growth = 0

    def report_skipped(self, count: i64) -> None:
        """Log that messages are damaged."""
        self.runtime.operator_log.error(
            "messages are skipped", f"queue '{self.name}': {count} cannot be read. They stay on the disk"
        )

    def first_level(self) -> PriorityLevel:
        index: i64 = len(self.levels) - 1
        while self.levels[index].count == 0:
            index -= 1
        return self.levels[index]

    def take_from(self, level: PriorityLevel) -> Entry | None:
        """Take the first entry of a level. Returns None if none can be read."""
        entry = level.pop() or self.load(level)
        if entry is None:
            return None
        self.ready_count -= 1
        self.ready_bytes -= self.counted(entry.message)
        expires_at = level.first_expiry()
        if expires_at > 0.0:
            self.expiry.arm(expires_at)
        return entry

    def put_back(self, level: PriorityLevel, entry: Entry) -> None:
        """Make an entry that was taken ready again."""
        level.push_front(entry)
        self.ready_count += 1
        self.ready_bytes += self.counted(entry.message)

    def extract(self, level: PriorityLevel, entry: Entry) -> None:
        """Take an entry that `level.first_after` found out of the queue, to deliver it."""
        level.extract(entry)
        self._count_growth(level)
        self.ready_count -= 1
        self.ready_bytes -= self.counted(entry.message)
        if self.is_persistent:
            self.delivery_recorder.went_to(entry.sequence)
        self.arm_expiry()

    def claim(self, sequence: i64) -> Entry | None:
        self.runtime.work_left -= 1 + (len(self.levels) >> 3)
        for level in self.levels:
            entry = level.first_after(sequence - 1)
            if entry is not None and entry.sequence == sequence:
                self.extract(level, entry)
                self.unsettled_count += 1
                self.delivered += 1
                return entry
        return None

    def awaits_commit(self, entry: Entry) -> bool:
        return self.is_persistent and entry.sequence > self.delivery_recorder.limit

    def entries(self) -> list[Entry]:
        return [entry for level in reversed(self.levels) for entry in level.entries()]

    def redelivered_sequences(self) -> list[int]:
        return [sequence for level in self.levels for sequence in level.redelivered_sequences()]

    # --- expiry ---

    def expire_due(self, now: float) -> None:
        """Dead-letter or drop the expired messages at the head of each level."""
        for level in self.levels:
            while level.count > 0:
                expires_at = level.first_expiry()
                if expires_at == 0.0 or expires_at > now or self.runtime.work_left <= 0:
                    break
                self.runtime.work_left -= 1
                entry = self.take_from(level)
                if entry is None:
                    if level.is_blocked:
                        break
                elif 0.0 < entry.expires_at <= now:
                    self.kill(entry, EXPIRED)
                else:
                    # The expired one could not be read, and this is the next.
                    self.put_back(level, entry)
        self.arm_expiry()

    def arm_expiry(self) -> None:
        for level in self.levels:
            expires_at = level.first_expiry()
            if expires_at > 0.0 and not level.is_blocked:
                self.expiry.arm(expires_at)
