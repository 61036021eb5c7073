"""A channel on the server side: what it published, what it holds, what it consumes.

`publish` and `acknowledge` run once a message. The methods that run now and then are in `topology` (exchanges, queues,
bindings) and `basic` (consuming, polling, transactions, confirms).
"""

from typing import Final

from librt.strings import read_i64_be, write_i64_be
from mypy_extensions import i64

from waybill.engine.amqp091.message_format import AMQP091
from waybill.engine.amqp091.server.channel_host import ChannelHost, ConsumerHost
from waybill.engine.amqp091.server.consumer import ChannelConsumer
from waybill.engine.amqp091.server.direct_reply import REPLY_TO, with_real_reply_to
from waybill.engine.amqp091.server.faults import Fault, channel_fault, connection_fault
from waybill.engine.amqp091.server.publish_route import Assembly, PublishRoute
from waybill.engine.amqp091.server.task import Closing, Publishing, Settlement
from waybill.model.entry import NO_LOCATION, Entry, Holder
from waybill.model.fan_out import FAN_OUT_MAX, FanOut
from waybill.model.footprint import CHANNEL_BYTES, consumer_size
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.routing import Route
from waybill.model.transaction import (
    ACCEPT,
    ACCEPT_UNITS,
    HELD_MESSAGE_BYTES,
    OTHER_UNITS,
    RELEASE,
    Transaction,
    publish_units,
    too_large,
)
from waybill.wire.amqp091.content import ContentFacts, properties_of
from waybill.wire.amqp091.frames import FRAME_END, FRAME_METHOD, frame
from waybill.wire.amqp091.methods import BasicCancel, BasicNack, BasicReturn, Method
from waybill.wire.amqp091.properties import FLAG_REPLY_TO, FLAG_USER_ID
from waybill.wire.amqp091.reply_codes import (
    CONTENT_TOO_LARGE,
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
)

ACK_FRAME_SIZE: Final = 21
ACK_SIZE_AND_METHOD: Final = 0x0000000D_003C0050
"""Of a frame with a basic.ack, what stands behind its type and channel."""
ONE_END: Final = bytes([0, FRAME_END])
MULTIPLE_END: Final = bytes([1, FRAME_END])
ACK_RUN_BYTES: Final = 256 * ACK_FRAME_SIZE
BASIC: Final = 60
PUBLISH: Final = 40
ACK: Final = 80
REPLY_TO_OCTETS: Final = REPLY_TO.encode()
MAX_EXPIRATION_DIGITS: Final = 18
MAX_TAG: Final = 2**64 - 1


class Channel(ConsumerHost):
    """The whole of a channel."""

    def __init__(self, connection: ChannelHost, number: i64) -> None:
        super().__init__(connection, number)
        if not connection.held.can_attach(CHANNEL_BYTES):
            raise connection_fault(RESOURCE_ERROR, connection.held.no_room(), 20, 10)
        connection.held.attach(CHANNEL_BYTES)
        # The first three octets of its method frames as a number, and the first eleven of its acknowledgements.
        self._type_and_number: i64 = FRAME_METHOD << 16 | number
        self._ack_head = int(self._type_and_number).to_bytes(3, "big") + ACK_SIZE_AND_METHOD.to_bytes(8, "big")
        self.consumers: dict[str, ChannelConsumer] = {}
        self.default_prefetch: i64 = 0
        self._was_full = False
        self.has_streams = False
        self._marks: list[tuple[float, i64]] = []
        self.consumer_timeout_s: float = 0.0
        """How long a delivery may stay unsettled, by its most patient consumer; 0: as the host says."""
        self._turn: i64 = 0
        self.last_queue_name = ""
        self.assembly: Assembly | None = None
        self.transaction: Transaction | None = None
        # Mandatory messages of the transaction: whether a queue takes them shows at its commit.
        self._mandatory: list[tuple[PublishRoute, list[Queue], Message]] = []
        self.confirms = False
        self.publish_count: i64 = 0
        self.accepted_tag: i64 = 0
        self.confirmed_tag: i64 = 0
        self.waiting_count: i64 = 0
        self.is_confirming = False
        self.needs_commit = False

    # --- publishing ---

    def publish(self, published: PublishRoute, data: bytes, start: i64, end: i64, facts: ContentFacts) -> None:
        """One message is complete: `data[start:end]`, of which `facts` tells what matters here."""
        connection = self.connection
        virtual_host = connection.virtual_host
        if published.epoch != virtual_host.epoch:
            self._resolve(published)
        route = published.route
        assert route is not None  # noqa: S101 - _resolve sets it or raises
        content = data[start:end]
        ttl_ms: i64 = NO_TTL
        if facts.expiration_size >= 0:
            ttl_ms = self._expiration(facts.expiration(data))
        if facts.flags & FLAG_USER_ID:
            self._check_user_id(content)
        if facts.flags & FLAG_REPLY_TO and content.find(REPLY_TO_OCTETS) >= 0:
            content = with_real_reply_to(self, content)
        priority = facts.priority
        priority = max(priority, 0)
        durable = facts.delivery_mode == 2
        message = Message(AMQP091, content, route.address, durable, priority, ttl_ms, connection.host.runtime.now)
        queues = route.queues
        if facts.headers_size > 4 and (route.by_headers or self._has_copies(data, facts)):
            queues = self._route_by_headers(route, message)
        elif route.by_headers:
            queues = virtual_host.router.match(route.exchange, [published.routing_key], {})
        if self.transaction is not None:
            self._publish_later(self.transaction, published, queues, message)
            return
        if not queues and published.mandatory:
            self._return(published, content)
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
        if self.confirms:
            self.publish_count += 1
            if refused:
                self.send(BasicNack(delivery_tag=int(self.publish_count), multiple=False, requeue=False))
                return
            self._accepted(self.publish_count, durable or published.is_durable)

    def _has_copies(self, data: bytes, facts: ContentFacts) -> bool:
        """Whether there may be a header CC or BCC, anywhere in the table: names are the octets that they are."""
        return data.find(b"CC", int(facts.headers_offset), int(facts.headers_offset + facts.headers_size)) >= 0

    def publish_run(self, published: PublishRoute, data: bytes, o: i64, end: i64) -> i64:
        """Publish messages that differ in their bodies only, from `o` to `end` (`PublishRoute.run_end`).

        Returns where those end that it took: the first, at least.
        """
        connection = self.connection
        virtual_host = connection.virtual_host
        if published.epoch != virtual_host.epoch:
            self._resolve(published)
        route = published.route
        assert route is not None  # noqa: S101 - _resolve sets it or raises
        facts = published.facts
        stride = published.stride
        start = published.size
        if self.transaction is not None or route.by_headers or len(route.queues) != 1:
            self.publish(published, data, o + start, o + stride, facts)
            return o + stride
        queue = route.queues[0]
        address = route.address
        durable = facts.delivery_mode == 2
        priority = max(facts.priority, 0)
        now = connection.host.runtime.now
        tag = self.publish_count
        accepted: i64 = 0
        connection.host.runtime.work_left -= (end - o) // stride + ((end - o) >> 12)
        while o < end:
            after = o + stride
            message = Message(AMQP091, data[o + start : after], address, durable, priority, NO_TTL, now)
            o = after
            tag += 1
            if queue.publish(message, NO_LOCATION) != REFUSED:
                accepted = tag
            elif self.confirms:
                self.send(BasicNack(delivery_tag=int(tag), multiple=False, requeue=False))
        if self.confirms:
            self.publish_count = tag
            if accepted != 0:
                self._accepted(accepted, durable or published.is_durable)
        return end

    def published(self, *, is_accepted: bool, needs_commit: bool) -> None:
        if self.confirms and self.is_open:
            self.publish_count += 1
            if is_accepted:
                self._accepted(self.publish_count, needs_commit)
            else:
                self.send(BasicNack(delivery_tag=int(self.publish_count), multiple=False, requeue=False))

    def _accepted(self, tag: i64, needs_commit: bool) -> None:  # noqa: FBT001
        self.accepted_tag = tag
        if needs_commit:
            self.needs_commit = True
        if not self.is_confirming:
            self.is_confirming = True
            self.connection.confirming(self)

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
        if not transaction.add_units(publish_units(len(queues))):
            raise channel_fault(
                PRECONDITION_FAILED, too_large(self.connection.host.limits.transaction_units_max), BASIC, PUBLISH
            )
        if not self.connection.held.add(message.size + HELD_MESSAGE_BYTES):
            raise channel_fault(PRECONDITION_FAILED, self.connection.held.refusal(), BASIC, PUBLISH)
        transaction.held += message.size + HELD_MESSAGE_BYTES
        transaction.publish(queues, message)
        if published.mandatory:
            self._mandatory.append((published, queues, message))

    def _resolve(self, published: PublishRoute) -> None:
        connection = self.connection
        connection.check_permission("write", "exchange", published.exchange)
        connection.check_topic("write", published.exchange, published.routing_key)
        virtual_host = connection.virtual_host
        route = virtual_host.resolve(published.exchange, published.routing_key)
        published.route = route
        published.takes_runs = not route.by_headers and len(route.queues) == 1
        published.epoch = virtual_host.epoch
        published.is_durable = any(queue.stores_transient for queue in route.queues)

    def _route_by_headers(self, route: Route, message: Message) -> list[Queue]:
        headers = message.format.headers(message.content)
        routing_keys = [route.address.routing_key]
        for name in ("CC", "BCC"):
            copies = headers.get(name)
            if copies is None:
                continue
            if not isinstance(copies, list) or not all(isinstance(key, str) for key in copies):
                raise channel_fault(PRECONDITION_FAILED, f"the header {name} must be a list of strings", BASIC, PUBLISH)
            routing_keys += copies
        for routing_key in routing_keys[1:]:
            self.connection.check_topic("write", route.exchange.name, routing_key)
        if "BCC" in headers:
            message.content = message.format.with_headers(message.content, {}, ["BCC"], keep_expiration=True)
        return self.connection.virtual_host.router.match(route.exchange, routing_keys, headers)

    def _expiration(self, text: bytes) -> i64:
        if not text.isdigit() or len(text) > MAX_EXPIRATION_DIGITS:
            shown = text.decode("utf-8", "replace")
            raise channel_fault(
                PRECONDITION_FAILED, f"invalid expiration '{shown}': not a number of milliseconds", BASIC, PUBLISH
            )
        return i64(int(text))

    def _check_user_id(self, content: bytes) -> None:
        claimed = properties_of(content).user_id
        name = self.connection.user_name
        if claimed != name and "impersonator" not in self.connection.user.tags:
            raise channel_fault(
                PRECONDITION_FAILED,
                f"user_id property set to '{claimed}' but authenticated user was '{name}'",
                BASIC,
                PUBLISH,
            )

    def _return(self, published: PublishRoute, content: bytes) -> None:
        method = BasicReturn(
            reply_code=NO_ROUTE, reply_text="NO_ROUTE", exchange=published.exchange, routing_key=published.routing_key
        )
        self.connection.send(frame(1, int(self.number), method.encode()) + content)

    def end_assembly(self) -> None:
        """Nothing more is awaited of a message that came in pieces."""
        assembly = self.assembly
        if assembly is not None:
            self.assembly = None
            self.connection.held.give_back(len(assembly.pieces))

    def check_piece(self, missing: i64, size: i64) -> None:
        """Count a piece of a message of which so much is awaited; refuse it if that is too much, by size or in sum."""
        self.check_size(missing)
        if not self.connection.held.add(size):
            raise channel_fault(PRECONDITION_FAILED, self.connection.held.refusal(), BASIC, PUBLISH)

    def check_size(self, size: i64) -> None:
        """Refuse a body by its announced size, before any of it is kept."""
        limit = self.connection.host.limits.message_size_max
        if size > limit:
            raise channel_fault(
                CONTENT_TOO_LARGE if size < 0 else PRECONDITION_FAILED,
                f"message size {size} is larger than the maximum of {limit} bytes",
                BASIC,
                PUBLISH,
            )

    # --- confirms ---

    def settle_confirms(self) -> None:
        """End of a batch of input: confirm what needs no disk, wait for the commit with the rest."""
        self.is_confirming = False
        if not self.is_open:
            return
        if self.needs_commit or self.waiting_count > 0:
            self.needs_commit = False
            self.waiting_count += 1
            self.connection.host.runtime.store.wait(self, self.accepted_tag)
        else:
            self._confirm(self.accepted_tag)

    def committed(self, mark: i64) -> None:
        self.waiting_count -= 1
        if self.is_open:
            self._confirm(mark)

    def _confirm(self, tag: i64) -> None:
        if tag > self.confirmed_tag:
            multiple = tag > self.confirmed_tag + 1
            self.confirmed_tag = tag
            connection = self.connection
            connection.out.write(self._ack_head)
            write_i64_be(connection.out, tag)
            connection.send(MULTIPLE_END if multiple else ONE_END)

    # --- settling ---

    def has_ack(self, data: bytes, o: i64) -> bool:
        """Whether a frame at `o`, of which `ACK_FRAME_SIZE` octets are there, has a basic.ack for this channel."""
        return (
            read_i64_be(data, o + 3) == ACK_SIZE_AND_METHOD
            and read_i64_be(data, o) >> 40 == self._type_and_number
            and data[o + ACK_FRAME_SIZE - 1] == FRAME_END
        )

    def acknowledge_run(self, data: bytes, o: i64, n: i64) -> i64:
        """Take basic.ack frames of one known delivery each from `o` on. Returns where they end."""
        if self.transaction is not None:
            return o
        unsettled = self.unsettled
        entries: list[Entry] = []
        holder: Holder | None = None
        head = self._ack_head
        last = min(n, o + ACK_RUN_BYTES) - ACK_FRAME_SIZE
        while o <= last and data[o : o + 11] == head and data[o + 19] == 0 and data[o + 20] == FRAME_END:
            entry = unsettled.pop(read_i64_be(data, o + 11), None)
            if entry is None:
                break
            o += ACK_FRAME_SIZE
            # A consumer has one queue; what was polled may be of any.
            if entry.holder is not holder or holder is self.polled:
                if entries:
                    self._accept_all(entries)
                entries = []
                holder = entry.holder
            entries.append(entry)
        if entries:
            self._accept_all(entries)
        return o

    def _accept_all(self, entries: list[Entry]) -> None:
        """Accept deliveries of one queue and one holder."""
        was_full = self.unsettled_count >= self.unsettled_max
        self.unsettled_count -= len(entries)
        self.accept_run(entries)
        if self.prefetch != 0 or was_full:
            self._wake_consumers()

    def accept_run(self, entries: list[Entry]) -> None:
        self.connection.host.runtime.work_left -= 1 + (len(entries) >> 1)
        entry = entries[0]
        if len(entries) == 1:
            entry.queue.accept(entry)
        else:
            entry.queue.accept_all(entries)
        holder = entry.holder
        if holder is not None:
            holder.unsettled_count -= len(entries)
            if not holder.is_active and self.prefetch == 0:
                holder.credit_available()

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
        self._accept_all([entry])

    def _acknowledge_up_to(self, tag: i64) -> None:
        if self.transaction is not None or (tag != 0 and tag not in self.unsettled):
            self.settle(tag, ACCEPT, multiple=True, method_id=ACK)
            return
        self._settle_all(self._take_up_to(tag), ACCEPT)

    def settle(self, tag: i64, outcome: str, *, multiple: bool, method_id: int) -> None:
        """Settle the delivery `tag`, or with `multiple` all up to it (0: all). `ACCEPT` within a transaction only."""
        if tag not in self.unsettled and (not multiple or tag != 0):
            raise self.unknown_tag(int(tag), method_id)
        # Before anything is taken: what this channel holds of other queues must go back to them.
        if outcome != ACCEPT and self.has_streams and self._holds_of_stream(tag, multiple=multiple):
            raise connection_fault(
                NOT_IMPLEMENTED, "a stream keeps its messages: they can only be acknowledged", BASIC, method_id
            )
        transaction = self.transaction
        if transaction is not None:
            tags = self._tags_up_to(tag) if multiple else [tag]
            if not transaction.add_units(len(tags) * (ACCEPT_UNITS if outcome == ACCEPT else OTHER_UNITS)):
                raise channel_fault(
                    PRECONDITION_FAILED, too_large(self.connection.host.limits.transaction_units_max), BASIC, method_id
                )
            for number in tags:
                transaction.outcomes.append((self.unsettled.pop(number), outcome, int(number)))
            return
        entries = self._take_up_to(tag) if multiple else [self.unsettled.pop(tag)]
        self._settle_all(entries, outcome)

    def _settle_all(self, entries: list[Entry], outcome: str) -> None:
        """Settle these, which the channel does not hold any more."""
        self._was_full = self.unsettled_count >= self.unsettled_max
        self.unsettled_count -= len(entries)
        self.connection.begin(Settlement(self, entries, outcome))

    def has_settled(self) -> None:
        if self.is_open and (self.prefetch != 0 or self._was_full):
            self._wake_consumers()

    def _holds_of_stream(self, tag: i64, *, multiple: bool) -> bool:
        if not multiple:
            return self.unsettled[tag].queue.is_append_only
        return any(self.unsettled[number].queue.is_append_only for number in self._tags_up_to(tag))

    def _take_up_to(self, tag: i64) -> list[Entry]:
        """Take out all deliveries up to a tag (0: all), oldest first."""
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
            if not holder.is_active and self.prefetch == 0:
                holder.credit_available()

    def _wake_consumers(self) -> None:
        """Wake the consumers that ran out of credit: each time another one first, or one could get all of it."""
        waiting = [consumer for consumer in self.consumers.values() if not consumer.is_active]
        self.connection.host.runtime.work_left -= (len(self.consumers) + len(waiting)) >> 2
        if waiting:
            self._turn += 1
            first = self._turn % len(waiting)
            for consumer in waiting[first:] + waiting[:first]:
                consumer.credit_available()

    def unknown_tag(self, tag: int, method_id: int) -> Exception:
        """What to raise for a tag that is not, or no longer, unsettled. One of 2^63 or more may come as negative."""
        return channel_fault(PRECONDITION_FAILED, f"unknown delivery tag {tag & MAX_TAG}", BASIC, method_id)

    def recover(self, answer: Method | None) -> None:
        """Give everything unsettled back to its queue.

        The answer comes first: if this takes several turns, some of it is delivered again before the last of it is
        back, and a peer takes what comes before the answer for what it has to forget.
        """
        if answer is not None:
            self.send(answer)
        self._settle_all(self._take_up_to(0), RELEASE)

    def begin_transaction(self) -> None:
        self.transaction = Transaction(self.connection.host.limits.transaction_units_max)

    def commit(self) -> bool:
        """Commit the transaction and begin the next. False if a full queue refused one of its messages."""
        transaction = self.transaction
        if transaction is None:
            return True
        self.begin_transaction()
        for published, queues, message in self._mandatory:
            if all(queue.is_deleted for queue in queues):
                self._return(published, message.content)
        self._mandatory = []
        accepted = transaction.commit(self.connection.host.runtime)
        self.connection.held.give_back(transaction.held)
        self.unsettled_count -= len(transaction.outcomes)
        for entry, _, _ in transaction.outcomes:
            self.give_credit(entry)
        if self.prefetch != 0:
            self._wake_consumers()
        return accepted

    def rollback(self) -> None:
        """Forget the transaction and begin the next: what it settled is unsettled again, under the same tags."""
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

    def set_prefetch(self, count: i64) -> None:
        """The limit of the whole channel; 0 for what any channel may hold at most."""
        self.prefetch = count
        self.set_flow(active=self.is_flowing)

    def overdue(self, now: float) -> Fault | None:
        """What closes the channel if it holds a delivery for too long. To be asked now and then."""
        timeout_s = self.consumer_timeout_s or self.connection.host.limits.consumer_timeout_s
        if timeout_s <= 0 or not self.holds_too_long(now, timeout_s):
            return None
        return channel_fault(
            PRECONDITION_FAILED,
            f"delivery acknowledgement on channel {self.number} timed out. Timeout value used: "
            f"{int(timeout_s * 1000)} ms",
        )

    def holds_too_long(self, now: float, timeout_s: float) -> bool:
        """Whether a delivery was unsettled already `timeout_s` ago. To be asked now and then: each call leaves a mark.

        Deliveries do not note their time; the marks tell which tag was the last one at which time.
        """
        if not self.unsettled:
            self._marks = []
            return False
        self.connection.host.runtime.work_left -= 1
        self._marks.append((now, self.delivery_tag))
        oldest = next(iter(self.unsettled))
        while len(self._marks) > 1 and self._marks[1][0] <= now - timeout_s:
            del self._marks[0]
        at, tag = self._marks[0]
        return at <= now - timeout_s and oldest <= tag

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
        """Free everything. What it held goes back to the queues, which is the chore that is returned."""
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
        self.end_assembly()
        self.rollback()
        entries = list(self.unsettled.values())
        self.unsettled = {}
        self.unsettled_count = 0
        return Closing(self, consumers, entries)


def _tag_of(outcome: tuple[Entry, str, int]) -> int:
    return outcome[2]
