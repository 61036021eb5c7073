"""A session: its publishes, its subscriptions, and how they end when it is detached or ends.

`publish` and `publish_run` run once per message. Infrequent commands are in `topology`, `queries`, `subscribing`,
`settlement`, `transactions` and `distributed`.
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp010.message_format import AMQP010
from waybill.engine.amqp010.server.credited_consumer import CreditedConsumer
from waybill.engine.amqp010.server.distributed import leave
from waybill.engine.amqp010.server.envelope import TransferEnvelope
from waybill.engine.amqp010.server.faults import Fault, session_fault
from waybill.engine.amqp010.server.ids import Spans, unwrapped
from waybill.engine.amqp010.server.session_host import SessionHost
from waybill.engine.amqp010.server.session_view import WINDOW_LEAST, SessionView
from waybill.engine.amqp010.server.settlement import accept_head
from waybill.engine.amqp010.server.subscription import Subscription
from waybill.engine.amqp010.server.tasks import Ending, Publishing
from waybill.engine.amqp010.server.transactions import undo
from waybill.engine.amqp010.sessions import SessionKey
from waybill.engine.amqp091.server.delivery_ages import DeliveryAges
from waybill.engine.held_memory import HeldMemory
from waybill.model.entry import NO_LOCATION
from waybill.model.fan_out import FAN_OUT_MAX, FanOut
from waybill.model.message import Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.runtime import Chore
from waybill.model.store import CommitWaiter
from waybill.model.transaction import HELD_MESSAGE_BYTES, publish_units, too_large
from waybill.wire.amqp010.class_message import MessageReject
from waybill.wire.amqp010.class_session import SessionExpected, SessionFlush, SessionGap
from waybill.wire.amqp010.codec import write_command
from waybill.wire.amqp010.constants import (
    ERROR_PRECONDITION_FAILED,
    ERROR_RESOURCE_LIMIT_EXCEEDED,
    REJECT_IMMEDIATE,
)
from waybill.wire.amqp010.sequence import MASK
from waybill.wire.amqp010.types import Ranges

COPY_BITS: Final = 14
WAKE_UNIT_BITS: Final = 2
TRACKED_BYTES: Final = 160
FLUSHES_MAX: Final = 1024
NOTHING: Final = -1


class Session(SessionView):
    """`subscriptions` by destination."""

    def __init__(self, key: SessionKey, connection: SessionHost) -> None:
        super().__init__(key, connection)
        self.subscriptions: dict[str, Subscription] = {}
        # The memory of a transaction is counted with the connection that carried it last.
        self.held: HeldMemory | None = None
        # The beginning of frames that accept a single delivery of the session.
        self.accept_head = b""
        self._ages = DeliveryAges()
        self._awaits_flush = False
        self._flushes_late = False
        # Commands are sent again from this count on.
        self._resent_to: i64 = NOTHING

    # --- attaching ---

    def attach(self, connection: SessionHost, channel: i64) -> None:
        """A connection carries the session from now on."""
        self.connection = connection
        self.channel = channel
        self.accept_head = accept_head(channel)
        self.user = connection.user
        connection.held.attach(self.attached_memory)
        self._move_held(connection.held)
        if self.wait.is_on:
            self.host.sessions.unkeep(self)
            self.is_synced = False
            # Commands that are sent again may not be durable yet.
            connection.hold()
            self.tell_expected()
            connection.send_control(channel, SessionFlush(expected=True))
        else:
            self.tell_point(self.next_out)

    def _move_held(self, held: HeldMemory) -> None:
        before = self.held
        transaction = self.transaction
        if before is not None and transaction is not None:
            before.give_back(transaction.held)
            held.add_anyway(transaction.held)
            self.held = held

    def detach(self) -> bool:
        """The session was detached, or its connection lost. False if that ends the session."""
        connection = self.connection
        self.connection = None
        self._is_collecting = False
        self._resent_to = NOTHING
        if connection is not None:
            connection.held.detach(self.attached_memory)
        return self.is_open and self.timeout_s > 0 and self.host.sessions.keep(self)

    def take_expected(self, expected: SessionExpected) -> None:
        """The peer has reported what it received in a session that is attached again: send the rest again."""
        connection = self.attached
        if self.is_synced or self._resent_to != NOTHING:
            return
        first = self._expected_first(expected.commands)
        self.replay.confirm_before(first)
        self._begin_again(connection, first)
        self._send_again(waits=True)

    def sync_anyway(self) -> None:
        """Send all that the peer may lack: the session fails before it has reported that, and must learn the reason."""
        if not self.is_synced:
            if self._resent_to == NOTHING:
                self._begin_again(self.attached, 0)
            self._send_again(waits=False)

    def _begin_again(self, connection: SessionHost, first: i64) -> None:
        """Send kept commands again, from `first` if the peer has reported it."""
        kept = self.replay.sent
        start = kept[0].id if kept else self.next_out
        if 0 < first < start:
            # These were sent before the session could outlive its connection, so they were not kept.
            self.tell_point(first)
            connection.send_control(self.channel, SessionGap(((int(first & MASK), int((start - 1) & MASK)),)))
        self.tell_point(start)
        self._resent_to = start

    def _send_again(self, *, waits: bool) -> None:
        """Send kept commands again, as many as the peer reads; the rest when it has read those."""
        connection = self.attached
        for one in self.replay.sent:
            if one.id < self._resent_to:
                continue
            if waits and connection.is_stalled:
                return
            write_command(connection.out, self.channel, one.payload, one.header, one.body, connection.max_frame_size)
            self._resent_to = one.id + 1
            self.runtime.work_left -= 1 + (one.size >> COPY_BITS)
            self.host_has_output(connection)
            if len(connection.out) > connection.output_high_water:
                connection.is_stalled = True
        self._resent_to = NOTHING
        self.is_synced = True
        self.tell_completed()
        self.is_choked = False
        self.wake_consumers()

    def _expected_first(self, ranges: Ranges) -> i64:
        """Return the first command that the peer expects: the first kept one if the peer has lost the session."""
        if not ranges:
            kept = self.replay.sent
            return kept[0].id if kept else self.next_out
        first, _ = self.sent_range(ranges[0][0], ranges[0][0]) if self._was_sent(ranges[0][0]) else (self.next_out, 0)
        return first

    def _was_sent(self, number: i64) -> bool:
        return unwrapped(number, self.next_out) < self.next_out

    # --- publishing ---

    def publish(self, envelope: TransferEnvelope, body: bytes, number: i64, *, is_explicit: bool) -> None:
        """One message. `number`: the count of its transfer, which was received. `is_explicit`: its accept-mode."""
        connection = self.attached
        runtime = self.runtime
        route = envelope.resolve(connection)
        message = envelope.message(route, body, runtime.now)
        queues = envelope.queues_of(connection, route, message)
        runtime.work_left -= 1 + len(queues) + (len(body) >> COPY_BITS)
        if not queues:
            self._unroutable(envelope, number, is_explicit=is_explicit)
            return
        if envelope.immediate and not any(_is_awaited(queue) for queue in queues):
            if is_explicit:
                wire = int(number & MASK)
                self.send_command(MessageReject(((wire, wire),), REJECT_IMMEDIATE, "nobody waits for it"))
            return
        if self.transaction is not None or self.branch is not None:
            self._publish_later(queues, message)
        elif len(queues) > FAN_OUT_MAX:
            connection.begin(Publishing(self, number, FanOut(runtime, queues, message)))
        else:
            self._give(queues, message)
            if envelope.durable or envelope.stores or route.by_headers:
                self.needs_commit()
        if is_explicit:
            self.accepted(number, number)

    def publish_run(
        self, envelope: TransferEnvelope, data: bytes, o: i64, stride: i64, count: i64, start: i64, *, is_explicit: bool
    ) -> None:
        """Messages that differ in their bodies only: `count` of them, `stride` octets each, from `o` on.

        A body begins `start` octets after its message. All go to one queue.
        """
        route = envelope.route
        assert route is not None  # noqa: S101 - the caller has resolved it
        queue = route.queues[0]
        address = route.address
        prefix = envelope.prefix
        durable = envelope.durable
        priority = envelope.priority
        ttl_ms = envelope.ttl_ms
        now = self.runtime.now
        first = self.next_in
        done: i64 = 0
        while done < count:
            after = o + stride
            content = prefix + data[o + start : after]
            o = after
            done += 1
            if (
                queue.publish(Message(AMQP010, content, address, durable, priority, ttl_ms, now), NO_LOCATION)
                == REFUSED
            ):
                self.received_run(done)
                raise _full()
        self.received_run(count)
        if is_explicit:
            self.accepted(first, first + count - 1)
        if durable or envelope.stores:
            self.needs_commit()

    def _give(self, queues: list[Queue], message: Message) -> None:
        location: i64 = NO_LOCATION
        refused = False
        for queue in queues:
            result = queue.publish(message, location)
            if result == REFUSED:
                refused = True
            else:
                location = result
        if refused:
            raise _full()

    def _unroutable(self, envelope: TransferEnvelope, number: i64, *, is_explicit: bool) -> None:
        """Reject a message that no queue takes, not even by the alternate exchange, unless it may be discarded."""
        if is_explicit and not envelope.discards:
            self.rejected(number)

    def _publish_later(self, queues: list[Queue], message: Message) -> None:
        """Keep a message until its transaction is committed."""
        units = publish_units(queues, message)
        branch = self.branch
        if branch is not None:
            if not branch.publish(queues, message, units):
                raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, "the branches of this user hold too much")
            return
        transaction = self.transaction
        if transaction is None:
            return
        if not transaction.add_units(units):
            raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, too_large(self.host.limits.transaction_units_max))
        size = message.size + HELD_MESSAGE_BYTES
        held = self.attached.held
        if not held.add(size):
            raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, held.refusal())
        transaction.held += size
        self.held = held
        transaction.publish(queues, message)

    # --- consuming ---

    def sent_completed(self, ranges: Ranges) -> None:
        windowed = self.windowed
        if windowed.count > 0:
            was_full = windowed.count >= self.unsettled_max or windowed.run_count >= self.window_room
            spans = Spans(ranges, self.next_out, windowed.first, windowed.count)
            self.runtime.work_left -= windowed.complete(spans)
            self.shrink_window()
            if was_full:
                self.wake_consumers()

    def wake_consumers(self) -> None:
        if self.connection is None:
            return
        if self._resent_to != NOTHING:
            self._send_again(waits=True)
            return
        for subscription in self.subscriptions.values():
            if not subscription.is_active:
                subscription.credit_available()
        self.runtime.work_left -= len(self.subscriptions) >> WAKE_UNIT_BITS

    def consumer_cancelled(self, consumer: CreditedConsumer, number: i64) -> None:
        """The queue was deleted ("queue-deletion"): an exception in the spec, and the end of the session.

        In Qpid's broker the subscription only stops receiving, until it is cancelled, and its clients rely on that.
        """

    def overdue(self, now: float) -> Fault | None:
        """Return the error that ends the session if it holds a delivery for too long. Call it periodically."""
        timeout_s = self.host.limits.consumer_timeout_s
        if timeout_s <= 0:
            return None
        oldest: i64 = next(iter(self.unsettled)) if self.unsettled else i64(0)
        if not self._ages.is_overdue(oldest, self.next_out - 1, now, timeout_s):
            return None
        return session_fault(ERROR_PRECONDITION_FAILED, f"a delivery was not accepted within {int(timeout_s)} s")

    # --- flush of a subscription ---

    def begin_flush(self, subscription: Subscription, number: i64) -> None:
        if len(self.flushing) >= FLUSHES_MAX:
            raise session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, f"{FLUSHES_MAX} flushes at once")
        self.begin_pending(number)
        self.flushing.append((subscription, number))
        self.runtime.mark_dirty(subscription.queue)
        self.attached.flushing(self)

    def finish_flushes(self) -> None:
        """After the queues are drained: end the flushes of subscriptions that have received all available messages."""
        flushing = self.flushing
        self.flushing = []
        for index, (consumer, number) in enumerate(flushing):
            if self.runtime.work_left <= 0:
                self.flushing += flushing[index:]
                self._flush_next_turn()
                return
            self.runtime.work_left -= 1
            queue = consumer.queue
            if self.is_open and not queue.is_deleted and consumer.is_active and (queue.is_dirty or queue.is_gated):
                self.flushing.append((consumer, number))
                if not self._awaits_flush:
                    self._awaits_flush = True
                    self.runtime.store.wait(_FlushWait(self), 0)
                continue
            consumer.stop()
            self.end_pending(number)

    def _flush_next_turn(self) -> None:
        if not self._flushes_late:
            self._flushes_late = True
            self.runtime.go_on_with(_FlushTurn(self))

    def flush_late(self) -> None:
        """Continue the flushes that a turn has left."""
        self._flushes_late = False
        self.finish_flushes()

    def flush_again(self) -> None:
        """Complete the flushes that waited until now for durability."""
        self._awaits_flush = False
        connection = self.connection
        if connection is not None and self.flushing:
            connection.flushing(self)

    # --- memory ---

    def grow_window(self) -> bool:
        """Reserve memory to track more deliveries that no queue counts. False if there is none."""
        runtime = self.runtime
        more = min(self.window_room, self.unsettled_max - self.window_room)
        size = more * TRACKED_BYTES
        if more <= 0 or runtime.held_bytes + size > runtime.held_limit_bytes >> 1:
            return False
        self.window_room += more
        runtime.held_bytes += size
        return True

    def shrink_window(self) -> None:
        """Give back unused memory."""
        used: i64 = max(self.windowed.run_count, len(self.browsed))
        room = self.window_room
        while room >> 1 >= WINDOW_LEAST and used < room >> 2:
            room >>= 1
        self.runtime.held_bytes -= (self.window_room - room) * TRACKED_BYTES
        self.window_room = room

    def attach_memory(self, size: i64) -> None:
        self.attached_memory += size
        self.attached.held.attach(size)

    def detach_memory(self, size: i64) -> None:
        self.attached_memory -= size
        connection = self.connection
        if connection is not None:
            connection.held.detach(size)

    def give_back_memory(self, size: i64) -> None:
        held = self.held
        if held is not None:
            held.give_back(size)

    # --- the end ---

    def expire(self) -> None:
        """The session was not attached again in time."""
        if self.wait.is_on:
            self.host.sessions.unkeep(self)
        ending = self.end()
        if ending is not None:
            self.runtime.begin(ending)

    def end(self) -> Ending | None:
        """End the session. Returns the task that requeues its deliveries."""
        if not self.is_open:
            return None
        self.is_open = False
        self.host.sessions.remove(self)
        transaction = self.transaction
        if transaction is not None:
            self.transaction = None
            undo(self, transaction)
        leave(self)
        consumers: list[CreditedConsumer] = []
        for subscription in self.subscriptions.values():
            if not subscription.is_cancelled:
                subscription.is_cancelled = True
                consumers.append(subscription)
        self.subscriptions = {}
        entries = list(self.unsettled.values())
        self.unsettled = {}
        self.browsed = {}
        self.windowed.clear()
        self.shrink_window()
        self.flushing = []
        self.replay.clear()
        return Ending(self, consumers, entries)


class _FlushWait(CommitWaiter):
    """Continues flushes once the messages that their queues wait for are durable."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def committed(self, mark: i64) -> None:
        self._session.flush_again()


class _FlushTurn(Chore):
    """Continues flushes in the next turn."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def work(self) -> bool:
        self._session.flush_late()
        return True


def _is_awaited(queue: Queue) -> bool:
    return queue.ready_count == 0 and any(consumer.is_active for consumer in queue.consumers)


def _full() -> Exception:
    return session_fault(ERROR_RESOURCE_LIMIT_EXCEEDED, "a queue is full, and refuses messages")
