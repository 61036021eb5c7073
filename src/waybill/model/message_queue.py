"""A classic or quorum queue: ready messages wait in levels by priority until consumers with credit take them.

`publish`, `drain` and `accept` run once per message and are kept fast; everything else may take its time.
"""

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.consumer_line import ConsumerLine
from waybill.model.dead_letter import DELIVERY_LIMIT, EXPIRED, MAX_LENGTH, REJECTED
from waybill.model.deduplication import Deduplication
from waybill.model.delivery_gate import DeliveryGate
from waybill.model.dispatch import serve
from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.message import NO_TTL, Message
from waybill.model.priority_level import PriorityLevel
from waybill.model.queue import REFUSED, Queue, QueueHost
from waybill.model.queue_limits import QueueLimits
from waybill.model.queue_policy import NO_LIMIT, QUORUM, QueuePolicy
from waybill.model.queue_timers import DisuseTimer, ExpiryTimer
from waybill.model.removal import Removal
from waybill.model.runtime import Runtime
from waybill.model.selection import LOWEST_PRIORITY, Selection, serve_selections
from waybill.model.store import StoredMessage

DEFAULT_DELIVERY_LIMIT = 20
"""Of quorum queues, as in RabbitMQ 4: a message that fails every time does not go round for ever."""


class MessageQueue(Queue):
    """A queue whose messages are gone once they are settled."""

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
        self.selections: dict[Consumer, Selection] = {}
        self.ready_bytes: i64 = 0
        self.uses_priorities = False
        self._priorities: dict[int, int] = {}
        self.delivery_gate = DeliveryGate(self)
        self._expiry = ExpiryTimer(self)
        self._disuse = DisuseTimer(self)
        count = max(self.policy.max_priority, 0) + 1
        self.level = PriorityLevel(self, self.runtime)
        # A level is made for the first message of its priority. Until then one that stays empty stands for it.
        unused = PriorityLevel(self, self.runtime) if count > 1 else None
        self._unused_level: PriorityLevel | None = unused
        self.levels: list[PriorityLevel] = [self.level] if unused is None else [self.level] + [unused] * (count - 1)
        self.has_levels = count > 1
        self.deduplication = Deduplication(self.runtime) if self.policy.deduplicates else None
        self._apply_policy()

    def set_policy(self, policy: QueuePolicy) -> None:
        """Put other settings in force. Ready messages keep their time to live, but must fit new limits."""
        self.policy = policy
        self._apply_policy()
        self._drop_overflow()

    def _apply_policy(self) -> None:
        policy = self.policy
        self.ttl_ms: i64 = policy.message_ttl_ms
        self.limits = QueueLimits(policy)
        self.is_limited = self.limits.is_limited
        if self.ready_count == 0:
            # Counting in another way while messages are ready would need a look at each of them.
            self.counts_bodies = policy.max_length_bytes != NO_LIMIT
        self.counts_deliveries = policy.type == QUORUM
        self.delivery_limit: i64 = policy.delivery_limit
        if self.counts_deliveries and policy.delivery_limit == NO_LIMIT:
            self.delivery_limit = DEFAULT_DELIVERY_LIMIT
        self._disuse.restart()

    @property
    def is_gated(self) -> bool:
        return self.is_persistent and self.delivery_gate.is_waiting

    # --- in ---

    def publish(self, message: Message, location: i64) -> i64:
        size = message.size
        if self.counts_bodies:
            size = message.format.body_size(message.content)
        is_limited = self.is_limited
        if is_limited and self.limits.refuses and not self.has_room(1, size):
            if self.limits.dead_letters_refused:
                self.host.dead_letter(self, message, MAX_LENGTH)
            return REFUSED
        sequence = self.next_sequence
        if self.deduplication is not None and not self.deduplication.admit(message, sequence):
            return location
        self.next_sequence = sequence + 1
        entry = Entry(self, message, sequence)
        if message.durable and self.is_persistent:
            if location == NO_LOCATION:
                location = self.messages.put(self.id, sequence, message)
            else:
                self.messages.put_reference(self.id, sequence, location)
            entry.location = location
            entry.is_stored = True
        ttl = message.ttl_ms
        if self.ttl_ms != NO_TTL and (ttl == NO_TTL or self.ttl_ms < ttl):
            ttl = self.ttl_ms
        if ttl != NO_TTL:
            entry.expires_at = message.published_at + float(ttl) / 1000.0
        self.runtime.memory_bytes += message.size
        self.ready_count += 1
        self.ready_bytes += size
        level = self.level
        if self.has_levels:
            level = self._level_of(message)
        level.push(entry)
        if ttl != NO_TTL and level.count == 1:
            self._expiry.arm(entry.expires_at)
        if is_limited and self._overflows() and not self.messages.is_in_atomic_section:
            self._drop_overflow()
        if not self.is_dirty:
            self.is_dirty = True
            self.runtime.dirty.append(self)
        return location

    def recover(self, stored: StoredMessage) -> None:
        message = stored.message
        entry = Entry(self, message, stored.sequence)
        entry.location = stored.location
        entry.is_stored = True
        entry.redelivered = stored.redelivered
        entry.delivery_count = stored.delivery_count
        if stored.changes:
            entry.changes = stored.changes
            entry.message = message = message.amended(stored.changes)
        if self.deduplication is not None:
            self.deduplication.admit(message, stored.sequence)
        if stored.sequence >= self.next_sequence:
            self.next_sequence = stored.sequence + 1
        ttl = message.ttl_ms
        if self.ttl_ms != NO_TTL and (ttl == NO_TTL or self.ttl_ms < ttl):
            ttl = self.ttl_ms
        if ttl != NO_TTL:
            entry.expires_at = message.published_at + float(ttl) / 1000.0
        self.runtime.memory_bytes += message.size
        self.ready_count += 1
        self.ready_bytes += self.counted(message) if self.counts_bodies else message.size
        level = self._level_of(message) if self.has_levels else self.level
        level.recover(entry)
        if ttl != NO_TTL and level.count == 1:
            self._expiry.arm(entry.expires_at)

    def _level_of(self, message: Message) -> PriorityLevel:
        index = message.format.level(message.priority, i64(len(self.levels)))
        level = self.levels[index]
        if level is self._unused_level and self.has_levels:
            level = PriorityLevel(self, self.runtime)
            self.levels[index] = level
        return level

    def counted(self, message: Message) -> i64:
        """What a message adds to `ready_bytes`: with `x-max-length-bytes` its body, else its content."""
        return message.format.body_size(message.content) if self.counts_bodies else message.size

    def has_room(self, count: i64, size: i64) -> bool:
        limits = self.limits
        return not limits.refuses or limits.are_kept(self.ready_count + count, self.ready_bytes + size)

    def _overflows(self) -> bool:
        return self.ready_count > 0 and not self.limits.are_kept(self.ready_count, self.ready_bytes)

    def _drop_overflow(self) -> None:
        """Drop messages beyond the limits, as many as fit in this turn; the rest before the next delivery.

        Callers put it off within an atomic section: where dead letters make another queue overflow, and so on, each
        step is then a section of its own instead of one that holds the whole chain.
        """
        runtime = self.runtime
        while self._overflows():
            if runtime.work_left <= 0:
                runtime.put_off(self)
                return
            runtime.work_left -= 1
            # Low priorities are dropped first (0-9-1, 3.1.10).
            level = next(level for level in self.levels if level.count)
            entry = self._take_from(level)
            if entry is not None:
                self.kill(entry, MAX_LENGTH)
            elif level.is_blocked:
                return

    # --- out ---

    def drain(self) -> None:
        """Deliver to consumers with credit until messages or credit run out, or the turn is over."""
        if self.limits.drops:
            self._drop_overflow()
        if not self.selections or serve_selections(self):
            serve(self, LOWEST_PRIORITY)

    def take(self, no_ack: bool) -> Entry | None:
        while self.ready_count > 0:
            level = self.first_level()
            entry = self._take_from(level)
            if entry is None:
                if level.is_blocked:
                    return None
                continue
            if 0.0 < entry.expires_at <= self.runtime.now:
                self.kill(entry, EXPIRED)
                self.runtime.work_left -= 1
                if self.runtime.work_left <= 0:
                    # Very many have expired: the next call goes on.
                    return None
                continue
            if self.awaits_commit(entry):
                self.delivery_gate.ask(entry.sequence)
            if no_ack:
                self.remove(entry)
            else:
                self.unsettled_count += 1
            return entry
        return None

    def awaits_commit(self, entry: Entry) -> bool:
        return self.is_persistent and entry.sequence > self.delivery_gate.limit

    def load(self, level: PriorityLevel) -> Entry | None:
        """Load entries of a level and take the first; None if none can be read now."""
        lost = level.load()
        self.ready_count -= lost
        if lost:
            self.runtime.operator_log.error(
                "messages are stepped over", f"queue '{self.name}': {lost} cannot be read. They stay on the disk"
            )
            self.ready_bytes = sum(other.size for other in self.levels)
        return level.pop()

    def first_level(self) -> PriorityLevel:
        index: i64 = len(self.levels) - 1
        while self.levels[index].count == 0:
            index -= 1
        return self.levels[index]

    def _take_from(self, level: PriorityLevel) -> Entry | None:
        """The first entry of a level, None if none of it can be read."""
        entry = level.pop() or self.load(level)
        if entry is None:
            return None
        self.ready_count -= 1
        self.ready_bytes -= self.counted(entry.message)
        expires_at = level.first_expiry()
        if expires_at > 0.0:
            self._expiry.arm(expires_at)
        return entry

    def _put_back(self, level: PriorityLevel, entry: Entry) -> None:
        """Make an entry that was taken ready again."""
        level.push_front(entry)
        self.ready_count += 1
        self.ready_bytes += self.counted(entry.message)

    # --- outcomes ---

    def accept(self, entry: Entry) -> None:
        # What `remove` does, without the call: a run of one, or the call, costs acknowledgements 4 % more.
        self.unsettled_count -= 1
        self.runtime.memory_bytes -= entry.message.size
        if entry.is_stored:
            self.messages.settle(self.id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.messages.forget(entry.location)
        if self.deduplication is not None:
            self.deduplication.forget(entry.sequence)

    def accept_all(self, entries: list[Entry]) -> None:
        self.unsettled_count -= len(entries)
        self.remove_all(entries)

    def remove_all(self, entries: list[Entry]) -> None:
        """Remove messages that are out of the queue's levels, for good."""
        size: i64 = 0
        for entry in entries:
            size += entry.message.size
        self.runtime.memory_bytes -= size
        self.messages.settle_all(self.id, entries)
        if self.deduplication is not None:
            for entry in entries:
                self.deduplication.forget(entry.sequence)

    def reject(self, entry: Entry) -> None:
        self.unsettled_count -= 1
        self.kill(entry, REJECTED)

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        # This reason lets a cycle be cut: no client has rejected the message.
        if is_settled:
            self.host.dead_letter(self, entry.message, DELIVERY_LIMIT)
        else:
            self.unsettled_count -= 1
            self.kill(entry, DELIVERY_LIMIT)

    def amend(self, entry: Entry, changes: bytes, *, failed: bool) -> None:
        if changes:
            message = entry.message.amended(changes)
            self.runtime.memory_bytes += message.size - entry.message.size
            entry.message = message
            entry.changes = changes
        if entry.is_stored and not self.is_deleted and (changes or failed):
            count = entry.delivery_count + i64(failed)
            self.messages.requeue(self.id, entry.sequence, entry.location, count, entry.changes)

    def release(self, entry: Entry, *, failed: bool) -> None:
        self.unsettled_count -= 1
        if self.is_deleted:
            self.remove(entry)
            return
        entry.redelivered = True
        if failed:
            entry.delivery_count += 1
            if (
                self.counts_deliveries
                and self.delivery_limit != NO_LIMIT
                and entry.delivery_count > self.delivery_limit
            ):
                self.kill(entry, DELIVERY_LIMIT)
                return
            if self.counts_deliveries and entry.is_stored:
                self.messages.requeue(self.id, entry.sequence, entry.location, entry.delivery_count, entry.changes)
        level = self._level_of(entry.message)
        self._put_back(level, entry)
        for selection in self.selections.values():
            selection.went_back(self.levels.index(level), entry.sequence)
        if self.limits.drops and not self.messages.is_in_atomic_section:
            self._drop_overflow()
        if entry.expires_at > 0.0:
            self._expiry.arm(entry.expires_at)
        self.runtime.mark_dirty(self)

    def extract(self, level: PriorityLevel, entry: Entry) -> None:
        """Take an entry that `level.first_after` found out of the queue, to deliver it."""
        level.extract(entry)
        self.ready_count -= 1
        self.ready_bytes -= self.counted(entry.message)
        if self.is_persistent:
            self.delivery_gate.went_to(entry.sequence)
        self.arm_expiry()

    def claim(self, sequence: i64) -> Entry | None:
        for level in self.levels:
            entry = level.first_after(sequence - 1)
            if entry is not None and entry.sequence == sequence:
                self.extract(level, entry)
                self.unsettled_count += 1
                return entry
        return None

    def remove(self, entry: Entry) -> None:
        """`remove_all` of one, without a list."""
        self.runtime.memory_bytes -= entry.message.size
        if self.deduplication is not None:
            self.deduplication.forget(entry.sequence)
        if entry.is_stored:
            self.messages.settle(self.id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.messages.forget(entry.location)

    def kill(self, entry: Entry, reason: str) -> None:
        """Dead-letter and remove, atomically."""
        if self.policy.dead_letter_exchange is None or self.is_deleted:
            self.remove(entry)
            return
        with self.messages.atomic():
            self.host.dead_letter(self, entry.message, reason)
            self.remove(entry)

    # --- consumers ---

    def consumer_added(self, consumer: Consumer) -> None:
        self._count_priority(int(consumer.priority), 1)
        self._disuse.restart()
        if consumer.selects:
            self.selections[consumer] = Selection(self, consumer)

    def start_selecting(self, consumer: Consumer) -> None:
        consumer.selects = True
        if consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if consumer in self.consumers:
            self.selections[consumer] = Selection(self, consumer)

    def consumer_removed(self, consumer: Consumer) -> None:
        self._count_priority(int(consumer.priority), -1)
        if consumer.selects:
            consumer.is_active = False
            self.selections.pop(consumer, None)
        elif consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if self.policy.single_active_consumer and self.consumers:
            self.activate(next(iter(self.consumers)))
        self._disuse.restart()

    def positions_of(self, consumer: Consumer) -> list[i64]:
        selection = self.selections.get(consumer)
        return [] if selection is None else selection.positions

    def set_positions(self, consumer: Consumer, positions: list[i64]) -> None:
        selection = self.selections.get(consumer)
        if selection is not None and len(positions) == len(selection.positions):
            selection.positions = positions

    def activate(self, consumer: Consumer) -> None:
        if self.policy.single_active_consumer and (not self.consumers or next(iter(self.consumers)) is not consumer):
            return
        if not consumer.is_active:
            consumer.is_active = True
            if not consumer.selects:
                self.line.append(consumer)
        if self.ready_count > 0 and not self.is_dirty:
            self.is_dirty = True
            self.runtime.dirty.append(self)

    def _count_priority(self, priority: int, change: int) -> None:
        count = self._priorities.get(priority, 0) + change
        if count:
            self._priorities[priority] = count
        else:
            del self._priorities[priority]
        self.uses_priorities = len(self._priorities) > 1

    # --- removal ---

    def begin_purge(self) -> Removal:
        return self._remove_all()

    def _remove_all(self) -> Removal:
        count = int(self.ready_count)
        removed = [level.remove_all() for level in self.levels if level.count]
        self.ready_count = 0
        self.ready_bytes = 0
        return Removal(self, self.deduplication, removed, count)

    def discard(self) -> int:
        self.is_deleted = True
        if self.is_persistent:
            self.messages.remove_queue(self.id)
        removal = self._remove_all()
        if removal.count:
            self.runtime.begin(removal)
        self.cancel_consumers()
        self.line.clear()
        self.selections.clear()
        return removal.count

    def entries(self) -> list[Entry]:
        return [entry for level in reversed(self.levels) for entry in level.entries()]

    def redelivered_sequences(self) -> list[int]:
        return [sequence for level in self.levels for sequence in level.redelivered_sequences()]

    # --- time ---

    def touch(self) -> None:
        self._disuse.restart()

    def expire_due(self, now: float) -> None:
        """Dead-letter or drop the expired messages at the head of each level."""
        for level in self.levels:
            while level.count > 0:
                expires_at = level.first_expiry()
                if expires_at == 0.0 or expires_at > now or self.runtime.work_left <= 0:
                    break
                self.runtime.work_left -= 1
                entry = self._take_from(level)
                if entry is None:
                    if level.is_blocked:
                        break
                elif 0.0 < entry.expires_at <= now:
                    self.kill(entry, EXPIRED)
                else:
                    # The one that has expired could not be read: this is the next.
                    self._put_back(level, entry)
        self.arm_expiry()

    def arm_expiry(self) -> None:
        for level in self.levels:
            expires_at = level.first_expiry()
            if expires_at > 0.0 and not level.is_blocked:
                self._expiry.arm(expires_at)

    def read_again(self) -> None:
        if not self.is_deleted:
            if self.is_limited:
                self._drop_overflow()
            self.arm_expiry()
            self.runtime.mark_dirty(self)
