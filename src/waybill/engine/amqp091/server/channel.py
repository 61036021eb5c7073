"""A channel on the server side: its publishes, its unsettled deliveries and its consumers.

`publish` and `acknowledge` run once per message. Infrequent methods are in `topology` (exchanges, queues, bindings) and
`basic` (consuming, polling, transactions, confirms).
"""

from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp091.server.assembly import Assembly
from waybill.engine.amqp091.server.channel_host import ACK_SIZE_AND_METHOD, ChannelHost, ConsumerHost
from waybill.engine.amqp091.server.confirms import Confirms
from waybill.engine.amqp091.server.consumer import ChannelConsumer, give_room
from waybill.engine.amqp091.server.delivery_ages import DeliveryAges
from waybill.engine.amqp091.server.direct_reply import REPLY_TO, with_real_reply_to
from waybill.engine.amqp091.server.faults import ACK, BASIC, PUBLISH, Fault, channel_fault, connection_fault
from waybill.engine.amqp091.server.publish_route import PublishRoute
from waybill.engine.amqp091.server.publish_rules import (
    check_user_id,
    expiration_ms,
    has_copies,
    resolve,
    route_by_headers,
)
from waybill.engine.amqp091.server.task import Closing, Publishing, Settlement
from waybill.model.entry import NO_LOCATION, Entry, Holder
from waybill.model.fan_out import FAN_OUT_MAX, FanOut
from waybill.model.footprint import CHANNEL_BYTES, consumer_size
from waybill.model.message import HEADER_UNIT_BITS, NO_TTL, SMALL_MESSAGE_BYTES, Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.transaction import (
    ACCEPT,
    HELD_MESSAGE_BYTES,
    RELEASE,
    Transaction,
    publish_units,
    too_large,
)
from waybill.wire.amqp091.content import ContentFacts, scan
from waybill.wire.amqp091.frames import FRAME_END, frame
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import BasicCancel, BasicReturn
from waybill.wire.amqp091.properties import FLAG_REPLY_TO, FLAG_USER_ID
from waybill.wire.amqp091.reply_codes import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    UNEXPECTED_FRAME,
)

ACK_FRAME_SIZE: Final = 21
ACK_RUN_BYTES: Final = 256 * ACK_FRAME_SIZE
REPLY_TO_OCTETS: Final = REPLY_TO.encode()
MAX_TAG: Final = 2**64 - 1


class Channel(ConsumerHost):
    """A channel of a server connection."""

    def __init__(self, connection: ChannelHost, number: i64) -> None:
        super().__init__(connection, number)
        if not connection.held.can_attach(CHANNEL_BYTES):
            raise connection_fault(RESOURCE_ERROR, connection.held.no_room(), 20, 10)
        connection.held.attach(CHANNEL_BYTES)
        self.consumers: dict[str, ChannelConsumer] = {}
        self.default_prefetch: i64 = 0
        self.default_prefetch_octets: i64 = 0
        self._was_full = False
        self.has_streams = False
        self._ages = DeliveryAges()
        self.consumer_timeout_s: float = 0.0
        """How long a delivery may stay unsettled: the longest timeout of its consumers. 0: the host's default."""
        self._turn: i64 = 0
        self.last_queue_name = ""
        self.assembly: Assembly | None = None
        self.transaction: Transaction | None = None
        # Mandatory messages of the transaction: unroutable ones are returned at its commit.
        self._mandatory: list[tuple[PublishRoute, list[Queue], Message]] = []
        self.confirms: Confirms | None = None

    # --- publishing ---

    def publish(self, published: PublishRoute, data: bytes, start: i64, end: i64, facts: ContentFacts) -> None:
        """Publish one complete message, `data[start:end]`, which `facts` describes."""
        connection = self.connection
        virtual_host = connection.virtual_host
        if published.epoch != virtual_host.epoch:
            resolve(connection, published)
        route = published.route
        assert route is not None  # noqa: S101 - resolve sets it or raises
        content = data[start:end]
        ttl_ms: i64 = NO_TTL if facts.expiration_size < 0 else expiration_ms(facts.expiration(data))
        if facts.flags & FLAG_USER_ID:
            check_user_id(connection, content)
        if facts.flags & FLAG_REPLY_TO and content.find(REPLY_TO_OCTETS) >= 0:
            content = with_real_reply_to(self, content)
        durable = facts.delivery_mode == 2
        now = connection.host.runtime.now
        message = Message(AMQP091, content, route.address, durable, max(facts.priority, 0), ttl_ms, now)
        queues = route.queues
        if facts.headers_size > SMALL_MESSAGE_BYTES:
            connection.host.runtime.work_left -= facts.headers_size >> HEADER_UNIT_BITS  # They were checked.
        if facts.headers_size > 4 and (route.by_headers or has_copies(data, facts)):
            queues = route_by_headers(connection, route, message)
        elif route.by_headers:
            queues = virtual_host.router.match(route.exchange, [published.routing_key], {}, message)
        self.publish_count += 1
        route.exchange.routed(1, len(queues))
        if self.transaction is not None:
            self._publish_later(self.transaction, published, queues, message)
            return
        if not queues:
            self._not_routed(published, content)
        refused = False
        location: i64 = 0
        if len(queues) > FAN_OUT_MAX:
            fan_out = FanOut(connection.host.runtime, queues, message)
            connection.begin(Publishing(self, fan_out, durable or published.is_durable))
            return
        connection.host.runtime.work_left -= 1 + len(queues)
        for queue in queues:
            result = queue.publish(message, location)
            if result == REFUSED:
                refused = True
            else:
                location = result
        confirms = self.confirms
        if confirms is not None:
            confirms.published(is_accepted=not refused, needs_commit=durable or published.is_durable)

    def publish_run(self, published: PublishRoute, data: bytes, o: i64, end: i64) -> i64:
        """Publish messages that differ in their bodies only, from `o` to `end` (`PublishRoute.run_end`).

        Returns the end of the published messages: at least the first is published.
        """
        connection = self.connection
        virtual_host = connection.virtual_host
        if published.epoch != virtual_host.epoch:
            resolve(connection, published)
        route = published.route
        assert route is not None  # noqa: S101 - resolve sets it or raises
        facts = published.facts
        stride = published.stride
        start = published.size
        if self.transaction is not None or route.by_headers or len(route.queues) != 1:
            self.publish(published, data, o + start, o + stride, facts)
            return o + stride
        queue = route.queues[0]
        count = (end - o) // stride
        self.publish_count += count
        route.exchange.routed(count, count)
        address = route.address
        durable = facts.delivery_mode == 2
        priority = max(facts.priority, 0)
        now = connection.host.runtime.now
        confirms = self.confirms
        tag: i64 = 0 if confirms is None else confirms.publish_count
        accepted: i64 = 0
        connection.host.runtime.work_left -= count + ((end - o) >> 12)
        while o < end:
            after = o + stride
            message = Message(AMQP091, data[o + start : after], address, durable, priority, NO_TTL, now)
            o = after
            tag += 1
            if queue.publish(message, NO_LOCATION) != REFUSED:
                accepted = tag
            elif confirms is not None:
                confirms.refuse(tag)
        if confirms is not None:
            confirms.publish_count = tag
            if accepted != 0:
                confirms.accept(accepted, needs_commit=durable or published.is_durable)
        return end

    def published(self, *, is_accepted: bool, needs_commit: bool) -> None:
        confirms = self.confirms
        if confirms is not None and self.is_open:
            confirms.published(is_accepted=is_accepted, needs_commit=needs_commit)

    def _publish_later(
        self, transaction: Transaction, published: PublishRoute, queues: list[Queue], message: Message
    ) -> None:
        runtime = self.connection.host.runtime
        runtime.work_left -= 1
        limit = runtime.configured_limit_bytes
        if transaction.size + message.size > limit:
            raise channel_fault(
                PRECONDITION_FAILED, f"a transaction holds more than {limit >> 20} MiB of messages", BASIC, PUBLISH
            )
        if not transaction.add_units(publish_units(queues, message)):
            raise channel_fault(
                PRECONDITION_FAILED, too_large(self.connection.host.limits.transaction_units_max), BASIC, PUBLISH
            )
        if not self.connection.held.add(message.size + HELD_MESSAGE_BYTES):
            raise channel_fault(PRECONDITION_FAILED, self.connection.held.refusal(), BASIC, PUBLISH)
        transaction.held += message.size + HELD_MESSAGE_BYTES
        transaction.publish(queues, message)
        if published.mandatory:
            self._mandatory.append((published, queues, message))

    def _not_routed(self, published: PublishRoute, content: bytes) -> None:
        counters = self.connection.host.runtime.counters
        if not published.mandatory:
            counters.unroutable += 1
            return
        counters.returned += 1
        method = BasicReturn(
            reply_code=NO_ROUTE, reply_text="NO_ROUTE", exchange=published.exchange, routing_key=published.routing_key
        )
        self.connection.send(frame(1, int(self.number), method.encode()) + content)

    def take_content(self, kind: i64, octets: bytes) -> None:
        """Take a content frame of a message that arrives frame by frame."""
        assembly = self.assembly
        if assembly is None:
            raise connection_fault(UNEXPECTED_FRAME, "expected method frame, got content")
        if assembly.take(kind, octets):
            self._end_assembly()
            content = assembly.content()
            facts = self.connection.facts
            scan(content, 0, facts)
            self.publish(assembly.route, content, 0, len(content), facts)

    def _end_assembly(self) -> None:
        """The message that arrived in frames is complete, or its rest is not awaited."""
        assembly = self.assembly
        if assembly is not None:
            self.assembly = None
            self.connection.held.give_back(len(assembly.pieces))

    # --- settling ---

    def has_ack(self, data: bytes, o: i64) -> bool:
        """Whether a frame at `o`, of which `ACK_FRAME_SIZE` octets are there, has a basic.ack for this channel."""
        return (
            read_i64_be(data, o + 3) == ACK_SIZE_AND_METHOD
            and read_i64_be(data, o) >> 40 == self.method_head
            and data[o + ACK_FRAME_SIZE - 1] == FRAME_END
        )

    def acknowledge_run(self, data: bytes, o: i64, n: i64) -> i64:
        """Take basic.ack frames of one known delivery each from `o` on. Returns where they end."""
        if self.transaction is not None:
            return o
        unsettled = self.unsettled
        entries: list[Entry] = []
        holder: Holder | None = None
        head = self.ack_head
        last = min(n, o + ACK_RUN_BYTES) - ACK_FRAME_SIZE
        while o <= last and data[o : o + 11] == head and data[o + 19] == 0 and data[o + 20] == FRAME_END:
            entry = unsettled.pop(read_i64_be(data, o + 11), None)
            if entry is None:
                break
            o += ACK_FRAME_SIZE
            # A consumer has one queue; polled messages may come from any.
            if entry.holder is not holder or holder is self.polled:
                if entries:
                    self.accept_run(entries, is_counted=True)
                entries = []
                holder = entry.holder
            entries.append(entry)
        if entries:
            self.accept_run(entries, is_counted=True)
        return o

    def accept_run(self, entries: list[Entry], *, is_counted: bool) -> None:
        was_full = False
        if is_counted:
            was_full = self.unsettled_count >= self.unsettled_max
            self.unsettled_count -= len(entries)
        self.acknowledged_count += len(entries)
        self.connection.host.runtime.work_left -= 1 + (len(entries) >> 1)
        entry = entries[0]
        if len(entries) == 1:
            entry.queue.accept(entry)
        else:
            entry.queue.accept_all(entries)
        holder = entry.holder
        if holder is not None:
            holder.unsettled_count -= len(entries)
            if self.counts_octets:
                give_room(self, holder, entries)
            if not holder.is_active and not self.has_limit:
                holder.credit_available()
        if is_counted and (self.has_limit or was_full):
            self._wake_consumers()

    def acknowledge(self, data: bytes, offset: i64) -> None:
        """A basic.ack frame whose arguments start at `offset`."""
        tag = read_i64_be(data, offset)
        if data[offset + 8] & 1:
            self._acknowledge_up_to(tag)
            return
        if self.transaction is not None:
            self.connection.host.runtime.work_left -= 1
            self.settle(tag, ACCEPT, multiple=False, method_id=ACK)
            return
        entry = self.unsettled.pop(tag, None)
        if entry is None:
            raise self.unknown_tag(int(tag), ACK)
        self.accept_run([entry], is_counted=True)

    def _acknowledge_up_to(self, tag: i64) -> None:
        if self.transaction is not None or (tag != 0 and tag not in self.unsettled):
            self.settle(tag, ACCEPT, multiple=True, method_id=ACK)
            return
        self._settle_all(self._take_up_to(tag), ACCEPT)

    def settle(self, tag: i64, outcome: str, *, multiple: bool, method_id: int) -> None:
        """Settle the delivery `tag`, or with `multiple` all up to it (0: all). `ACCEPT` within a transaction only."""
        if tag not in self.unsettled and (not multiple or tag != 0):
            raise self.unknown_tag(int(tag), method_id)
        # Check this before deliveries are removed: those of other queues must be requeued when the channel closes.
        if outcome != ACCEPT and self.has_streams and self._holds_of_stream(tag, multiple=multiple):
            raise connection_fault(
                NOT_IMPLEMENTED, "a stream keeps its messages: they can only be acknowledged", BASIC, method_id
            )
        transaction = self.transaction
        if transaction is not None:
            tags = self._tags_up_to(tag) if multiple else [tag]
            is_accepted = outcome == ACCEPT
            if not transaction.add_outcomes([self.unsettled[n] for n in tags], is_accepted=is_accepted):
                raise channel_fault(
                    PRECONDITION_FAILED, too_large(self.connection.host.limits.transaction_units_max), BASIC, method_id
                )
            for number in tags:
                transaction.outcomes.append((self.unsettled.pop(number), outcome, int(number)))
            return
        entries = self._take_up_to(tag) if multiple else [self.unsettled.pop(tag)]
        self._settle_all(entries, outcome)

    def _settle_all(self, entries: list[Entry], outcome: str) -> None:
        """Settle deliveries that were removed from the channel."""
        self._was_full = self.unsettled_count >= self.unsettled_max
        self.unsettled_count -= len(entries)
        self.connection.begin(Settlement(self, entries, outcome))

    def has_settled(self) -> None:
        if self.is_open and (self.has_limit or self._was_full):
            self._wake_consumers()

    def _holds_of_stream(self, tag: i64, *, multiple: bool) -> bool:
        if not multiple:
            return self.unsettled[tag].queue.is_append_only
        return any(self.unsettled[number].queue.is_append_only for number in self._tags_up_to(tag))

    def _take_up_to(self, tag: i64) -> list[Entry]:
        """Remove and return all deliveries up to a tag (0: all), oldest first."""
        unsettled = self.unsettled
        runtime = self.connection.host.runtime
        if tag == 0 or (unsettled and tag >= next(reversed(unsettled))):
            self.unsettled = {}
            runtime.work_left -= len(unsettled) >> 6
            return list(unsettled.values())
        tags = self._tags_up_to(tag)
        runtime.work_left -= len(tags) >> 4
        return [unsettled.pop(number) for number in tags]

    def _tags_up_to(self, tag: i64) -> list[i64]:
        tags: list[i64] = []
        for other in self.unsettled:
            if tag != 0 and other > tag:
                break
            tags.append(other)
        return tags

    def give_credit(self, entry: Entry) -> None:
        holder = entry.holder
        if holder is not None:
            entry.holder = None
            holder.unsettled_count -= 1
            if self.counts_octets:
                give_room(self, holder, [entry])
            if not holder.is_active and not self.has_limit:
                holder.credit_available()

    def _wake_consumers(self) -> None:
        """Wake consumers that ran out of credit, beginning with another one each time, so that none gets all of it."""
        waiting = [consumer for consumer in self.consumers.values() if not consumer.is_active]
        self.connection.host.runtime.work_left -= (len(self.consumers) + len(waiting)) >> 2
        if waiting:
            self._turn += 1
            first = self._turn % len(waiting)
            for consumer in waiting[first:] + waiting[:first]:
                consumer.credit_available()

    def unknown_tag(self, tag: int, method_id: int) -> Exception:
        """The error for a tag that is not, or no longer, unsettled. A tag of 2^63 or more may be negative here."""
        return channel_fault(PRECONDITION_FAILED, f"unknown delivery tag {tag & MAX_TAG}", BASIC, method_id)

    def recover(self, answer: Method | None) -> None:
        """Return everything unsettled to its queue.

        The answer is sent first: peers forget deliveries before the answer, and a long recovery already redelivers.
        """
        if answer is not None:
            self.send(answer)
        self._settle_all(self._take_up_to(0), RELEASE)

    def begin_transaction(self) -> None:
        self.transaction = Transaction(self.connection.host.limits.transaction_units_max)

    def commit(self) -> bool:
        """Commit the transaction and start the next. Returns False if a full queue refused one of its messages."""
        transaction = self.transaction
        if transaction is None:
            return True
        self.begin_transaction()
        for published, queues, message in self._mandatory:
            if all(queue.is_deleted for queue in queues):
                self._not_routed(published, message.content)
        self._mandatory = []
        accepted = transaction.commit(self.connection.host.runtime)
        self.connection.held.give_back(transaction.held)
        self.unsettled_count -= len(transaction.outcomes)
        for entry, _, _ in transaction.outcomes:
            self.give_credit(entry)
        if self.has_limit:
            self._wake_consumers()
        return accepted

    def rollback(self) -> None:
        """Roll the transaction back and start the next: settled deliveries are unsettled again, with the same tags."""
        transaction = self.transaction
        if transaction is None:
            return
        self.begin_transaction()
        self.connection.held.give_back(transaction.held)
        self._mandatory = []
        if transaction.outcomes:
            taken = {i64(tag): entry for entry, _, tag in sorted(transaction.outcomes, key=_tag_of)}
            unsettled = taken | self.unsettled
            self.connection.host.runtime.work_left -= len(unsettled) >> 5
            if self.unsettled and next(reversed(taken)) > next(iter(self.unsettled)):
                tags = sorted(unsettled)
                unsettled = dict(zip(tags, map(unsettled.__getitem__, tags), strict=True))
            self.unsettled = unsettled

    # --- consumers ---

    def overdue(self, now: float) -> Fault | None:
        """Return the error that closes the channel if it holds a delivery for too long. Call it periodically."""
        timeout_s = self.consumer_timeout_s or self.connection.host.limits.consumer_timeout_s
        if timeout_s <= 0:
            return None
        oldest: i64 = next(iter(self.unsettled)) if self.unsettled else i64(0)
        if oldest != 0:
            self.connection.host.runtime.work_left -= 1
        if not self._ages.is_overdue(oldest, self.delivery_tag, now, timeout_s):
            return None
        return channel_fault(
            PRECONDITION_FAILED,
            f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
            f"{int(timeout_s * 1000)} ms",
        )

    def consumer_cancelled(self, tag: str) -> None:
        if self.consumers.pop(tag, None) is not None:
            self.connection.held.detach(consumer_size(tag))
        if self.connection.knows_consumer_cancel:
            cancel = BasicCancel(consumer_tag=tag, no_wait=True)
            if self.late_cancels is None:
                self.send(cancel)
            else:
                self.late_cancels.append(cancel)

    def set_flow(self, *, active: bool) -> None:
        self.is_flowing = active
        if active:
            self._wake_consumers()

    def close(self) -> Closing | None:
        """Release everything. The returned task requeues its deliveries."""
        if not self.is_open:
            return None
        self.is_open = False
        self.is_flowing = False
        consumers = list(self.consumers.values())
        size = CHANNEL_BYTES
        for consumer in consumers:
            consumer.is_cancelled = True
            size += consumer_size(consumer.tag)
        self.connection.held.detach(size)
        self.consumers = {}
        self._end_assembly()
        self.rollback()
        entries = list(self.unsettled.values())
        self.unsettled = {}
        self.unsettled_count = 0
        return Closing(self, consumers, entries)


def _tag_of(outcome: tuple[Entry, str, int]) -> int:
    return outcome[2]
