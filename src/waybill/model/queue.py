"""A queue: messages wait in lanes by priority and go to consumers with credit, one consumer after the other.

This file holds the hot path of every delivery. `publish`, `drain` and `accept` run once a message; everything else may
take its time.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.binding import Binding
from waybill.model.consumer import Consumer
from waybill.model.consumer_line import ConsumerLine
from waybill.model.deduplication import Deduplication
from waybill.model.delivery_gate import DeliveryGate
from waybill.model.entry import NO_LOCATION, Entry, EntryQueue
from waybill.model.errors import AccessRefused
from waybill.model.lane import Lane
from waybill.model.message import NO_TTL, Message
from waybill.model.queue_end import Farewell, Removal
from waybill.model.queue_policy import NO_LIMIT, QUORUM, QueuePolicy
from waybill.model.queue_timers import DisuseTimer, ExpiryTimer
from waybill.model.runtime import BYTES_PER_UNIT, Runtime
from waybill.model.selection import LOWEST_PRIORITY, Selection, serve_selections
from waybill.model.store import StoredMessage

REFUSED: Final = -1
MAX_SEQUENCE: Final = (1 << 62) - 1

EXPIRED: Final = "expired"
REJECTED: Final = "rejected"
MAX_LENGTH: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"


class QueueHost:
    """What a queue needs of its virtual host."""

    def dead_letter(self, queue: "Queue", message: Message, reason: str) -> None:
        """Publish a dead message where the queue's policy says, if it says so."""
        raise NotImplementedError

    def queue_unused(self, queue: "Queue") -> None:
        """The last consumer of an auto-delete queue is gone, or the queue's own life has expired."""
        raise NotImplementedError


class Queue(EntryQueue):
    """A classic or quorum queue. `owner` is the connection that declared it exclusive, or None."""

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
        super().__init__()
        self.host = host
        self.runtime = runtime
        self.store = runtime.store
        self.name = name
        self.id: i64 = queue_id
        self.durable = durable
        self.is_persistent = durable and owner is None
        self.auto_delete = auto_delete
        self.owner = owner
        self.arguments = arguments
        self.policy = QueuePolicy(arguments)
        self.bindings: dict[str, Binding] = {}
        self.consumers: dict[Consumer, None] = {}
        self.line = ConsumerLine()
        self.selections: dict[Consumer, Selection] = {}
        self.exclusive_consumer: Consumer | None = None
        self.had_consumer = False
        self.is_deleted = False
        self.next_sequence: i64 = 1
        self.ready_count: i64 = 0
        self.ready_bytes: i64 = 0
        self.unsettled_count: i64 = 0
        self.published_total: i64 = 0
        self.delivered_total: i64 = 0
        self.settled_total: i64 = 0
        self.uses_priorities = False
        self._priorities: dict[int, int] = {}
        self._leaving: dict[Consumer, None] = {}
        self.delivery_gate = DeliveryGate(self)
        self._expiry = ExpiryTimer(self)
        self._disuse = DisuseTimer(self)
        levels = max(self.policy.max_priority, 0) + 1
        self.lane = Lane(self, self.runtime)
        # A lane is made for the first message of its priority. Until then one that stays empty stands for it.
        unused = Lane(self, self.runtime) if levels > 1 else None
        self._unused_lane: Lane | None = unused
        self.lanes: list[Lane] = [self.lane] if unused is None else [self.lane] + [unused] * (levels - 1)
        self.has_levels = levels > 1
        self.deduplication = Deduplication() if self.policy.deduplicates else None
        self._apply_policy()

    def set_policy(self, policy: QueuePolicy) -> None:
        """Put other settings in force. What waits already keeps its time to live, but must fit new limits."""
        self.policy = policy
        self._apply_policy()
        self._drop_overflow()

    def _apply_policy(self) -> None:
        policy = self.policy
        self.ttl_ms: i64 = policy.message_ttl_ms
        self.max_length: i64 = policy.max_length
        self.max_length_bytes: i64 = policy.max_length_bytes
        if self.ready_count == 0:
            # Counting in another way while messages wait would need a look at each of them.
            self.counts_bodies = policy.max_length_bytes != NO_LIMIT
        self.is_limited = policy.max_length != NO_LIMIT or policy.max_length_bytes != NO_LIMIT
        self.refuses_overflow = policy.overflow != "drop-head"
        self.counts_deliveries = policy.type == QUORUM
        self.delivery_limit: i64 = policy.delivery_limit
        if self.counts_deliveries and policy.delivery_limit == NO_LIMIT:
            self.delivery_limit = 20  # as RabbitMQ 4: a poison message does not go round for ever
        self._disuse.restart()

    @property
    def is_gated(self) -> bool:
        """Deliveries wait for the store (see `DeliveryGate`)."""
        return self.is_persistent and self.delivery_gate.is_waiting

    @property
    def message_count(self) -> int:
        """Messages that wait."""
        return int(self.ready_count)

    # --- in ---

    def publish(self, message: Message, location: i64) -> i64:
        """Take a message. `location`: where another queue's publish of it just now put it, or `NO_LOCATION`.

        Returns the location to pass on to the next queue, or `REFUSED` if the queue is full and refuses.
        """
        size = message.size
        if self.counts_bodies:
            size = message.format.body_size(message.content)
        if self.is_limited and self.refuses_overflow and self._is_full(size):
            if self.policy.overflow == "reject-publish-dlx":
                self.host.dead_letter(self, message, MAX_LENGTH)
            return REFUSED
        sequence = self.next_sequence
        if self.deduplication is not None and not self.deduplication.admit(message, sequence):
            return location
        self.next_sequence = sequence + 1
        entry = Entry(self, message, sequence)
        if message.durable and self.is_persistent:
            if location == NO_LOCATION:
                location = self.store.put(self.id, sequence, message)
            else:
                self.store.put_reference(self.id, sequence, location)
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
        self.published_total += 1
        lane = self.lane
        if self.has_levels:
            lane = self._lane_of(message)
        lane.push(entry)
        if ttl != NO_TTL and lane.count == 1:
            self._expiry.arm(entry.expires_at)
        if self.is_limited and self._overflows() and not self.store.is_in_atomic_section:
            self._drop_overflow()
        if not self.is_dirty:
            self.is_dirty = True
            self.runtime.dirty.append(self)
        return location

    def recover(self, stored: StoredMessage) -> None:
        """Take back a message that the store kept over a restart; to be called in order of sequences."""
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
        self.ready_bytes += self._counted(message) if self.counts_bodies else message.size
        lane = self._lane_of(message) if self.has_levels else self.lane
        lane.recover(entry)
        if ttl != NO_TTL and lane.count == 1:
            self._expiry.arm(entry.expires_at)

    def _lane_of(self, message: Message) -> Lane:
        level = message.format.lane(message.priority, i64(len(self.lanes)))
        lane = self.lanes[level]
        if lane is self._unused_lane and self.has_levels:
            lane = Lane(self, self.runtime)
            self.lanes[level] = lane
        return lane

    def _counted(self, message: Message) -> i64:
        """What a message adds to `ready_bytes`: its content, but where bodies are limited its body."""
        return message.format.body_size(message.content) if self.counts_bodies else message.size

    def _is_full(self, size: i64) -> bool:
        return (self.max_length != NO_LIMIT and self.ready_count >= self.max_length) or (
            self.max_length_bytes != NO_LIMIT and self.ready_bytes + size > self.max_length_bytes
        )

    def has_room(self, count: i64, size: i64) -> bool:
        """Whether so many messages of so many bytes in all would be taken, or make room for themselves."""
        if not (self.is_limited and self.refuses_overflow):
            return True
        return (self.max_length == NO_LIMIT or self.ready_count + count <= self.max_length) and (
            self.max_length_bytes == NO_LIMIT or self.ready_bytes + size <= self.max_length_bytes
        )

    def _overflows(self) -> bool:
        return self.ready_count > 0 and (
            (self.max_length != NO_LIMIT and self.ready_count > self.max_length)
            or (self.max_length_bytes != NO_LIMIT and self.ready_bytes > self.max_length_bytes)
        )

    def _drop_overflow(self) -> None:
        """Make room. What this turn has no units left for goes in the next one, before anything is delivered.

        So does what overflows within an atomic section: where dead letters make a queue overflow whose dead letters go
        on to full queues, each step is a section of its own, and nothing is as large as the way of all.
        """
        runtime = self.runtime
        while self._overflows():
            if runtime.work_left <= 0:
                runtime.put_off(self)
                return
            runtime.work_left -= 1
            # When something must go, low priorities go first (0-9-1, 3.1.10).
            lane = next(lane for lane in self.lanes if lane.count)
            entry = self._take_from(lane)
            if entry is not None:
                self._kill(entry, MAX_LENGTH)
            elif lane.is_blocked:
                return

    # --- out ---

    def drain(self) -> None:
        """Deliver to consumers with credit until messages or credit run out, or the turn is over."""
        if self.is_limited and not self.refuses_overflow:
            self._drop_overflow()
        if not self.selections or serve_selections(self):
            self.serve(LOWEST_PRIORITY)

    def serve(self, lowest: i64) -> bool:  # noqa: C901, PLR0912, PLR0915 - the hot path of every delivery
        """Deliver to those that take what comes, of at least this priority, in turn, as far as their credit goes.

        False if the next message has to wait for the store (`DeliveryGate`), or for the next turn.
        """
        line = self.line
        if self.ready_count == 0 or not line.front:
            return True
        runtime = self.runtime
        now = runtime.now
        is_persistent = self.is_persistent
        counts_bodies = self.counts_bodies
        lane = self.lane
        gate = self.delivery_gate
        last: i64 = 0
        is_free = True
        while self.ready_count > 0:
            if runtime.work_left <= 0:
                runtime.put_off(self)
                is_free = False
                break
            front = line.front
            if not front or front[0].priority < lowest:
                break
            consumer = front[0]
            if not consumer.is_active or consumer.selects:
                line.drop_first()
                continue
            if not consumer.has_credit():
                runtime.work_left -= 1
                consumer.is_active = False
                line.drop_first()
                continue
            if len(front) == 1 and not self.uses_priorities and self._serve_run(consumer):
                continue
            if self.has_levels:
                lane = self._first_lane()
            entry = lane.pop() or self._load(lane)
            if entry is None:
                if lane.is_blocked:
                    break
                continue
            if is_persistent and entry.sequence > gate.limit:
                lane.push_front(entry)
                gate.ask(entry.sequence)
                is_free = False
                break
            front.rotate(-1)
            last = entry.sequence
            runtime.work_left -= 1 + entry.message.size // BYTES_PER_UNIT
            size = self._counted(entry.message) if counts_bodies else entry.message.size
            self.ready_count -= 1
            self.ready_bytes -= size
            if entry.expires_at > 0.0 and entry.expires_at <= now and not _lives_for_now(entry):
                self._kill(entry, EXPIRED)
                continue
            self.delivered_total += 1
            if consumer.no_ack:
                consumer.deliver(entry)
                self._remove(entry)
            else:
                self.unsettled_count += 1
                consumer.unsettled_count += 1
                consumer.deliver(entry)
        if is_persistent and last != 0:
            gate.went_to(last)
        if self.ready_count > 0:
            self._arm_expiry()
        return is_free

    def _serve_run(self, consumer: Consumer) -> bool:
        """Give the only consumer that has credit all that it may take, while nothing is special about it.

        False if the first message has to go the long way.
        """
        if self.has_levels or self.counts_bodies or consumer.no_ack:
            return False
        allowance = consumer.allowance()
        if allowance < 2:
            return False
        lane = self.lane
        before = lane.head_bytes
        last = self.delivery_gate.limit if self.is_persistent else MAX_SEQUENCE
        run = lane.pop_run(allowance, last, self.runtime.now)
        count: i64 = len(run)
        if count == 0:
            return False
        self.ready_count -= count
        self.ready_bytes -= before - lane.head_bytes
        self.runtime.work_left -= count + (before - lane.head_bytes) // BYTES_PER_UNIT
        self.delivered_total += count
        self.unsettled_count += count
        consumer.unsettled_count += count
        consumer.deliver_all(run)
        if self.is_persistent:
            self.delivery_gate.went_to(run[-1].sequence)
        return True

    def take(self, no_ack: bool) -> Entry | None:
        """One message for a consumer that polls (0-9-1: basic.get), or None."""
        while self.ready_count > 0:
            lane = self._first_lane()
            entry = self._take_from(lane)
            if entry is None:
                if lane.is_blocked:
                    return None
                continue
            if 0.0 < entry.expires_at <= self.runtime.now:
                self._kill(entry, EXPIRED)
                self.runtime.work_left -= 1
                if self.runtime.work_left <= 0:
                    # What lies behind so much that has expired is there for who asks again.
                    return None
                continue
            if self.is_persistent and entry.sequence > self.delivery_gate.limit:
                self.delivery_gate.ask(entry.sequence)
            self.delivered_total += 1
            if no_ack:
                self._remove(entry)
            else:
                self.unsettled_count += 1
            return entry
        return None

    def _load(self, lane: Lane) -> Entry | None:
        """Bring the next entries of a lane to memory and take the first; None if none of it can be read (now)."""
        lost = lane.load()
        self.ready_count -= lost
        if lost:
            self.runtime.operator_log.error(
                "messages are stepped over", f"queue '{self.name}': {lost} cannot be read. They stay on the disk"
            )
            self.ready_bytes = sum(other.size for other in self.lanes)
        return lane.pop()

    def _first_lane(self) -> Lane:
        index: i64 = len(self.lanes) - 1
        while self.lanes[index].count == 0:
            index -= 1
        return self.lanes[index]

    def _take_from(self, lane: Lane) -> Entry | None:
        """The first entry of a lane, None if none of it can be read."""
        entry = lane.pop() or self._load(lane)
        if entry is None:
            return None
        self.ready_count -= 1
        self.ready_bytes -= self._counted(entry.message)
        expires_at = lane.first_expiry()
        if expires_at > 0.0:
            self._expiry.arm(expires_at)
        return entry

    # --- outcomes ---

    def accept(self, entry: Entry) -> None:
        # What `_remove` does, without the call.
        self.unsettled_count -= 1
        self.settled_total += 1
        self.runtime.memory_bytes -= entry.message.size
        if entry.is_stored:
            self.store.settle(self.id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.store.forget(entry.location)
        if self.deduplication is not None:
            self.deduplication.forget(entry.sequence)

    def accept_all(self, entries: list[Entry]) -> None:
        count: i64 = len(entries)
        self.unsettled_count -= count
        self.settled_total += count
        size: i64 = 0
        for entry in entries:
            size += entry.message.size
        self.runtime.memory_bytes -= size
        self.store.settle_all(self.id, entries)
        if self.deduplication is not None:
            for entry in entries:
                self.deduplication.forget(entry.sequence)

    def reject(self, entry: Entry) -> None:
        self.unsettled_count -= 1
        self._kill(entry, REJECTED)

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        # Of the reasons, the one that lets a cycle be cut: nobody but the broker has looked at it.
        if is_settled:
            self.host.dead_letter(self, entry.message, DELIVERY_LIMIT)
        else:
            self.unsettled_count -= 1
            self._kill(entry, DELIVERY_LIMIT)

    def amend(self, entry: Entry, changes: bytes, *, failed: bool) -> None:
        if changes:
            message = entry.message.amended(changes)
            self.runtime.memory_bytes += message.size - entry.message.size
            entry.message = message
            entry.changes = changes
        if entry.is_stored and not self.is_deleted and (changes or failed):
            count = entry.delivery_count + i64(failed)
            self.store.requeue(self.id, entry.sequence, entry.location, count, entry.changes)

    def release(self, entry: Entry, *, failed: bool) -> None:
        self.unsettled_count -= 1
        if self.is_deleted:
            self._remove(entry)
            return
        entry.redelivered = True
        if failed:
            entry.delivery_count += 1
            if (
                self.counts_deliveries
                and self.delivery_limit != NO_LIMIT
                and entry.delivery_count > self.delivery_limit
            ):
                self._kill(entry, DELIVERY_LIMIT)
                return
            if self.counts_deliveries and entry.is_stored:
                self.store.requeue(self.id, entry.sequence, entry.location, entry.delivery_count, entry.changes)
        lane = self._lane_of(entry.message)
        lane.push_front(entry)
        for selection in self.selections.values():
            selection.went_back(self.lanes.index(lane), entry.sequence)
        self.ready_count += 1
        self.ready_bytes += self._counted(entry.message)
        if self.is_limited and not self.refuses_overflow and not self.store.is_in_atomic_section:
            self._drop_overflow()
        if entry.expires_at > 0.0:
            self._expiry.arm(entry.expires_at)
        self.runtime.mark_dirty(self)

    def extract(self, lane: Lane, entry: Entry) -> None:
        """Take an entry that `lane.first_after` found out of the queue, to deliver it."""
        lane.extract(entry)
        self.ready_count -= 1
        self.ready_bytes -= self._counted(entry.message)
        self.delivered_total += 1
        if self.is_persistent:
            self.delivery_gate.went_to(entry.sequence)
        self._arm_expiry()

    def claim(self, sequence: i64) -> Entry | None:
        """Take the message of that sequence for whoever had it before; None if it does not wait (any more)."""
        for lane in self.lanes:
            entry = lane.first_after(sequence - 1)
            if entry is not None and entry.sequence == sequence:
                self.extract(lane, entry)
                self.unsettled_count += 1
                return entry
        return None

    def forget_settled(self, entry: Entry) -> None:
        """A message that was settled when it was delivered is done with."""
        self._remove(entry)

    def _remove(self, entry: Entry) -> None:
        self.settled_total += 1
        self.runtime.memory_bytes -= entry.message.size
        if self.deduplication is not None:
            self.deduplication.forget(entry.sequence)
        if entry.is_stored:
            self.store.settle(self.id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.store.forget(entry.location)

    def _kill(self, entry: Entry, reason: str) -> None:
        """Dead-letter and remove, as one step for a crash."""
        if self.policy.dead_letter_exchange is None or self.is_deleted:
            self._remove(entry)
            return
        with self.store.atomic():
            self.host.dead_letter(self, entry.message, reason)
            self._remove(entry)

    # --- consumers ---

    def add_consumer(self, consumer: Consumer) -> None:
        """Subscribe. Raises `AccessRefused` if the queue is, or cannot become, exclusively consumed."""
        if self.exclusive_consumer is not None:
            raise AccessRefused(f"queue '{self.name}' in exclusive use")
        if consumer.exclusive:
            if self.consumers:
                raise AccessRefused(f"queue '{self.name}' is consumed by others and cannot be consumed exclusively")
            self.exclusive_consumer = consumer
        self.had_consumer = True
        self.consumers[consumer] = None
        self._count_priority(int(consumer.priority), 1)
        self._disuse.restart()
        if consumer.selects:
            self.selections[consumer] = Selection(self, consumer)
        self.activate(consumer)

    def start_selecting(self, consumer: Consumer) -> None:
        """A consumer that took all that came chooses from now on."""
        consumer.selects = True
        if consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if consumer in self.consumers:
            self.selections[consumer] = Selection(self, consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Unsubscribe. What it holds stays unsettled: the engine settles or releases it."""
        if consumer not in self.consumers:
            self._leaving.pop(consumer, None)
            return
        del self.consumers[consumer]
        self._count_priority(int(consumer.priority), -1)
        if consumer.selects:
            consumer.is_active = False
            self.selections.pop(consumer, None)
        elif consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        if self.policy.single_active_consumer and self.consumers:
            self.activate(next(iter(self.consumers)))
        self._disuse.restart()
        if not self.consumers and self.auto_delete:
            self.host.queue_unused(self)

    def activate(self, consumer: Consumer) -> None:
        """The consumer has credit (again)."""
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

    def purge(self) -> int:
        """Remove all messages that wait, in as many turns as that takes. Returns how many."""
        removal = self.begin_purge()
        self.runtime.begin(removal)
        return removal.count

    def begin_purge(self) -> Removal:
        """Remove all messages that wait; those delivered and not settled stay. Returns the chore that does so."""
        count = int(self.ready_count)
        removed = [lane.remove_all() for lane in self.lanes if lane.count]
        self.ready_count = 0
        self.ready_bytes = 0
        return Removal(self, removed, count)

    def discard(self) -> int:
        """The queue is being deleted: forget its messages, tell its consumers. Returns how many messages waited."""
        count = int(self.ready_count)
        self.is_deleted = True
        if self.is_persistent:
            self.store.remove_queue(self.id)
        if count:
            removed = [lane.remove_all() for lane in self.lanes if lane.count]
            self.runtime.begin(Removal(self, removed, count))
        self.ready_count = 0
        self.ready_bytes = 0
        self._leaving = self.consumers
        self.consumers = {}
        self.line.clear()
        self.selections.clear()
        for consumer in self._leaving:
            consumer.is_active = False
        if self._leaving:
            self.runtime.begin(Farewell(self, list(self._leaving)))
        return count

    def tell_gone(self, consumer: Consumer) -> None:
        """Tell a consumer that the queue is gone, unless it has left meanwhile."""
        if consumer in self._leaving:
            del self._leaving[consumer]
            consumer.cancelled()

    def redelivered_sequences(self) -> list[int]:
        """Which of the messages that wait were delivered before."""
        return [sequence for lane in self.lanes for sequence in lane.redelivered_sequences()]

    # --- time ---

    def touch(self) -> None:
        """Somebody used the queue: its life without consumers starts again."""
        self._disuse.restart()

    def expire_due(self, now: float) -> None:
        """Kill what has expired at the head of each lane."""
        for lane in self.lanes:
            while lane.count > 0:
                expires_at = lane.first_expiry()
                if expires_at == 0.0 or expires_at > now or self.runtime.work_left <= 0:
                    break
                self.runtime.work_left -= 1
                entry = self._take_from(lane)
                if entry is not None:
                    self._kill(entry, EXPIRED)
                elif lane.is_blocked:
                    break
        self._arm_expiry()

    def _arm_expiry(self) -> None:
        for lane in self.lanes:
            expires_at = lane.first_expiry()
            if expires_at > 0.0 and not lane.is_blocked:
                self._expiry.arm(expires_at)

    def read_again(self) -> None:
        if not self.is_deleted:
            if self.is_limited:
                self._drop_overflow()
            self._arm_expiry()
            self.runtime.mark_dirty(self)


def _lives_for_now(entry: Entry) -> bool:
    """Whether it has no time to live at all: a consumer that waits already gets it, and nobody later."""
    return entry.expires_at == entry.message.published_at and not entry.redelivered
