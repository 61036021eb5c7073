"""A classic or quorum queue: ready messages wait in levels by priority until consumers with credit take them.

`publish`, `begin_drain` and `accept` run once per message and must be fast.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.consumer import Consumer
from waybill.model.death_headers import DEATH_UNITS, DELIVERY_LIMIT, EXPIRED, MAX_LENGTH, REJECTED
from waybill.model.deduplication import Deduplication
from waybill.model.entry import NO_LOCATION, Entry, Holder
from waybill.model.errors import DamagedMessage, ReadPostponed
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.message import NO_TTL, Message
from waybill.model.paging import Paging, page_in
from waybill.model.queue import REFUSED, QueueHost
from waybill.model.queue_arguments import NO_LIMIT, QUORUM, QueuePolicy
from waybill.model.queue_limits import QueueLimits
from waybill.model.queue_timers import DisuseTimer
from waybill.model.removal import Removal
from waybill.model.runtime import Runtime
from waybill.model.selection import Selections
from waybill.model.store import StoredMessage

DEFAULT_DELIVERY_LIMIT: Final = 20
"""Of quorum queues, as in RabbitMQ 4: a message that always fails is not redelivered endlessly."""


class MessageQueue(LeveledQueue):
    """A queue that removes messages when they are settled."""

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
        self.selections = Selections(self)
        self._priorities: dict[int, int] = {}
        self._disuse = DisuseTimer(self)
        self._paging: Paging | None = None
        self.deduplication = Deduplication(self.runtime) if self.policy.deduplicates else None
        self.reads_headers = self.policy.deduplicates
        self._apply_policy()

    def set_policy(self, policy: QueuePolicy) -> None:
        """Apply new settings. Ready messages keep their time to live, but must fit new limits."""
        self.policy = policy
        self._apply_policy()
        self._drop_overflow()

    def _apply_policy(self) -> None:
        policy = self.policy
        self.ttl_ms: i64 = policy.message_ttl_ms
        self.limits = QueueLimits(policy)
        self.is_limited = self.limits.is_limited
        self.death_units = 0 if policy.dead_letter_exchange is None else DEATH_UNITS
        if self.ready_count == 0:
            # A change while messages are ready would require counting them again.
            self.counts_bodies = policy.max_length_bytes != NO_LIMIT
        self.counts_deliveries = policy.type == QUORUM
        self.delivery_limit: i64 = policy.delivery_limit
        if self.counts_deliveries and policy.delivery_limit == NO_LIMIT:
            self.delivery_limit = DEFAULT_DELIVERY_LIMIT
        self._disuse.restart()

    # --- publishing ---

    def overflow_units(self) -> i64:
        return self.death_units if self.is_limited else 0

    def publish(self, message: Message, location: i64) -> i64:
        size = message.size
        if self.counts_bodies:
            size = message.format.body_size(message.content)
        is_limited = self.is_limited
        if is_limited and self.limits.refuses and not self.has_room(1, size) and not self.runtime.has_promise:
            if self.limits.dead_letters_refused:
                self.host.dead_letter(self, message, MAX_LENGTH)
            return REFUSED
        sequence = self.next_sequence
        if self.deduplication is not None and not self.deduplication.admit(message, sequence):
            return location
        self.next_sequence = sequence + 1
        entry = Entry(self, message, sequence)
        if self.runtime.publishes_again:
            self._flag(entry)
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
            level = self.level_of(message)
        level.push(entry)
        if ttl != NO_TTL and level.count == 1:
            self.expiry.arm(entry.expires_at)
        if is_limited and self._overflows() and not self.messages.is_in_atomic_section:
            self._drop_overflow()
        if not self.is_dirty:
            self.is_dirty = True
            self.runtime.dirty.append(self)
        return location

    def _flag(self, entry: Entry) -> None:
        """Keep the redelivered flag of an entry from before a restart, for after the next crash."""
        entry.redelivered = True
        self.awaiting_redelivery += 1
        if self.is_persistent:
            self.messages.mark_delivering(self.id, entry.sequence)

    def recover(self, stored: StoredMessage) -> None:
        message = stored.message
        entry = Entry(self, message, stored.sequence)
        entry.location = stored.location
        entry.is_stored = True
        entry.redelivered = stored.redelivered
        if stored.redelivered:
            self.awaiting_redelivery += 1
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
        level = self.level_of(message) if self.has_levels else self.level
        level.recover(entry)
        if ttl != NO_TTL and level.count == 1:
            self.expiry.arm(entry.expires_at)

    def has_room(self, count: i64, size: i64) -> bool:
        limits = self.limits
        return not limits.refuses or limits.are_kept(self.ready_count + count, self.ready_bytes + size)

    def _overflows(self) -> bool:
        """Whether messages have to be dropped. A queue that refuses publishes keeps all accepted messages."""
        limits = self.limits
        return limits.drops and self.ready_count > 0 and not limits.are_kept(self.ready_count, self.ready_bytes)

    def _drop_overflow(self) -> None:
        """Drop messages beyond the limits: as many as this turn allows, the rest before the next delivery.

        Do not call this within an atomic section: if dead letters make other queues overflow in a chain, each step
        must be a section of its own.
        """
        runtime = self.runtime
        while self._overflows():
            if runtime.work_left <= 0:
                runtime.put_off(self)
                return
            runtime.work_left -= 1
            # Low priorities are dropped first (0-9-1, 3.1.10).
            level = next(level for level in self.levels if level.count)
            entry = self.take_from(level)
            if entry is not None:
                self.kill(entry, MAX_LENGTH)
            elif level.is_blocked:
                return

    # --- delivery ---

    def begin_drain(self) -> bool:
        if self.limits.drops:
            self._drop_overflow()
        return True

    def take(self, no_ack: bool) -> Entry | None:
        while self.ready_count > 0:
            level = self.first_level()
            entry = self.take_from(level)
            if entry is None:
                if level.is_blocked:
                    return None
                continue
            if 0.0 < entry.expires_at <= self.runtime.now:
                self.kill(entry, EXPIRED)
                self.runtime.work_left -= 1
                if self.runtime.work_left <= 0:
                    # Very many have expired: the next call continues.
                    return None
                continue
            if self.awaits_commit(entry):
                self.delivery_recorder.ask(entry.sequence)
            if entry.redelivered:
                self.count_redelivered(1)
            if no_ack:
                self.polled_no_ack += 1
                self.remove(entry)
            else:
                self.polled += 1
                self.unsettled_count += 1
            return entry
        return None

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
        size: i64 = 0
        for entry in entries:
            size += entry.message.size
        self.runtime.memory_bytes -= size
        self.messages.settle_all(self.id, entries)
        if self.deduplication is not None:
            for entry in entries:
                self.deduplication.forget(entry.sequence)

    def reject(self, entry: Entry) -> None:
        if entry.is_paged_out and not self._is_back(entry, is_rejected=True, failed=False):
            return
        self.unsettled_count -= 1
        self.rejected += 1
        self.kill(entry, REJECTED)

    def undeliverable(self, entry: Entry, *, is_settled: bool) -> None:
        # With this reason cycles are cut: no client has rejected the message.
        if is_settled:
            self.host.dead_letter(self, entry.message, DELIVERY_LIMIT)
        else:
            self.unsettled_count -= 1
            self.rejected += 1
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
        if (
            entry.is_paged_out
            and self._takes_content(entry, failed)
            and not self._is_back(entry, is_rejected=False, failed=failed)
        ):
            return
        self.unsettled_count -= 1
        self.returned += 1
        if self.is_deleted:
            self.host.send_to_alternate(self, entry.message)
            self.remove(entry)
            return
        entry.redelivered = True
        self.awaiting_redelivery += 1
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
        level = self.level_of(entry.message)
        self.put_back(level, entry)
        if len(self.selections) > 0:
            self.selections.went_back(self.levels.index(level), entry.sequence)
        if self.limits.drops and not self.messages.is_in_atomic_section:
            self._drop_overflow()
        if entry.expires_at > 0.0:
            self.expiry.arm(entry.expires_at)
        self.runtime.mark_dirty(self)

    def page_out(self, entries: list[Entry], holder: Holder) -> None:
        if not self.messages.frees_memory:
            return
        if self._paging is None:
            self._paging = Paging(self.runtime, self)
        self._paging.page_out(entries, holder, self.next_sequence)

    def page_in(self, entry: Entry) -> bool:
        if not entry.is_paged_out:
            return True
        if self.is_deleted:
            return False
        try:
            page_in(self.runtime, entry)
        except (ReadPostponed, DamagedMessage):
            return False
        return True

    def _takes_content(self, entry: Entry, failed: bool) -> bool:
        """Whether releasing an entry requires its content: to count its body, or to dead-letter it."""
        if self.counts_bodies:
            return True
        is_counted = failed and self.counts_deliveries and self.delivery_limit != NO_LIMIT
        return is_counted and entry.delivery_count >= self.delivery_limit

    def _is_back(self, entry: Entry, *, is_rejected: bool, failed: bool) -> bool:
        """Page an entry in. Returns False if this failed: then its outcome is applied later, or never."""
        paging = self._paging
        if paging is None or self.is_deleted:
            # Its copy is gone, and so is everything that would need it.
            return True
        try:
            page_in(self.runtime, entry)
        except ReadPostponed:
            paging.wait(entry, is_rejected=is_rejected, failed=failed)
            return False
        except DamagedMessage:
            self.unsettled_count -= 1
            self.runtime.memory_bytes -= entry.message.size
            self.report_skipped(1)
            return False
        paging.succeeded()
        return True

    def redelivered_sequences(self) -> list[int]:
        sequences = super().redelivered_sequences()
        if self._paging is not None:
            # These were delivered. They could not be read yet, so they are not back in the queue.
            sequences.extend(int(outcome.entry.sequence) for outcome in self._paging.waiting)
        return sequences

    def _settle_waiting(self) -> None:
        """Apply the outcomes of entries that could not be read before."""
        if self._paging is None:
            return
        waiting = self._paging.waiting
        self._paging.waiting = []
        for outcome in waiting:
            if outcome.is_rejected:
                self.reject(outcome.entry)
            else:
                self.release(outcome.entry, failed=outcome.failed)

    def remove(self, entry: Entry) -> None:
        """Like `remove_all`, for one entry, without a list."""
        self.runtime.memory_bytes -= entry.message.size
        if self.deduplication is not None:
            self.deduplication.forget(entry.sequence)
        if entry.is_stored:
            self.messages.settle(self.id, entry.sequence, entry.location)
        elif entry.location != NO_LOCATION:
            self.messages.forget(entry.location)

    def kill(self, entry: Entry, reason: str) -> None:
        policy = self.policy
        goes_to_alternate = reason == REJECTED and policy.alternate_exchange is not None
        if (policy.dead_letter_exchange is None and not goes_to_alternate) or self.is_deleted:
            self.remove(entry)
            return
        with self.messages.atomic():
            if policy.dead_letter_exchange is not None:
                self.host.dead_letter(self, entry.message, reason)
            else:
                self.host.send_to_alternate(self, entry.message)
            self.remove(entry)

    # --- consumers ---

    def consumer_added(self, consumer: Consumer) -> None:
        self._count_priority(int(consumer.priority), 1)
        self._disuse.restart()
        if consumer.selects:
            self.selections.add(consumer)

    def start_selecting(self, consumer: Consumer) -> None:
        consumer.selects = True
        if consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if consumer in self.consumers:
            self.selections.add(consumer)

    def consumer_removed(self, consumer: Consumer) -> None:
        self._count_priority(int(consumer.priority), -1)
        if consumer.selects:
            consumer.is_active = False
            self.selections.remove(consumer)
        elif consumer.is_active:
            consumer.is_active = False
            self.line.left()
        if self.policy.single_active_consumer and self.consumers:
            self.activate(next(iter(self.consumers)))
        self._disuse.restart()

    def positions_of(self, consumer: Consumer) -> list[i64]:
        return self.selections.positions_of(consumer)

    def set_positions(self, consumer: Consumer, positions: list[i64]) -> None:
        self.selections.set_positions(consumer, positions)

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
        self.awaiting_redelivery = 0
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

    # --- time ---

    def touch(self) -> None:
        self._disuse.restart()

    def read_again(self) -> None:
        self._settle_waiting()
        if not self.is_deleted:
            self._drop_overflow()
            self.arm_expiry()
            self.runtime.mark_dirty(self)
