"""A link by which the peer receives: a consumer of one queue whose credit is the link's, and the session's window.

`deliver` runs once a message, so what is the same for all deliveries of the link is prepared. The content goes out as
it came in, behind a header section that says what has become of the message meanwhile (1.0, 3.2.1).

The delivery-tag is the message's place in the queue, which no other message of the queue ever has: what a peer says of
a tag after its link, or this process, was lost leads to the message again.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from waybill.engine.amqp10.filters import FilterSet
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.origin import Origin, has_annotations
from waybill.engine.amqp10.server.outcomes import ACCEPTED, Outcome, outcome_of
from waybill.engine.amqp10.server.resume import Resumed
from waybill.engine.amqp10.server.source import SourceNode
from waybill.engine.amqp10.server.task import FEW, GivingUp, Resumption
from waybill.engine.amqp10.server.transaction import LinkTransaction
from waybill.engine.amqp10.termini import LINK_DETACHED, LinkEnd, Terminus
from waybill.engine.conversion.convert import (
    amqp10_content,
    amqp10_priority,
    conversion_units,
    report_undeliverable,
)
from waybill.model.consumer import Consumer
from waybill.model.entry import Entry
from waybill.model.footprint import LINK_BYTES
from waybill.model.message import NO_TTL, Address
from waybill.model.queue import Queue
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.model.store import CommitWaiter
from waybill.model.transaction import OTHER_UNITS
from waybill.wire.amqp10.error import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    Error,
)
from waybill.wire.amqp10.message import DEFAULT_PRIORITY
from waybill.wire.amqp10.messaging import Received
from waybill.wire.amqp10.performatives import Attach, Flow
from waybill.wire.amqp10.scan import put_uint
from waybill.wire.amqp10.sections import write_header
from waybill.wire.amqp10.transactions import TXN_ID, TransactionalState
from waybill.wire.amqp10.transfer import TransferFacts, write_transfer

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

WRAP: Final = 0xFFFFFFFF
UNSETTLED_MAX: Final = 1 << 17
TAG_SIZE: Final = 8
MAX_MESSAGE_SIZE: Final = 2**63 - 1
TAG_HEAD: Final = b"\xa0\x08"
MESSAGE_FORMAT_AND_SETTLED: Final = b"\x43\x41"
MESSAGE_FORMAT_AND_UNSETTLED: Final = b"\x43\x42"
DURABLE_FIRST: Final = b"\x00\x53\x70\xc0\x05\x04\x41\x40\x40\x41"
TRANSIENT_FIRST: Final = b"\x00\x53\x70\xc0\x05\x04\x40\x40\x40\x41"
"""Headers of a message with default priority and no ttl that nobody acquired before."""
HEADER_ROOM: Final = 64
FROM_THE_BEGINNING: Final = Received(0, 0).encode()


class OutgoingLink(Consumer):
    """`credit` may be used while the session's window and the connection's output have room.

    `outcomes`: those that were agreed upon. `drains`: the peer wants its credit used up or back. `resumes_only`: the
    peer did not name all deliveries that it has, so it gets none that are new (2.7.3).
    """

    def __init__(
        self,
        session: "Session",
        attach: Attach,
        handle: i64,
        source: SourceNode,
        terminus: Terminus,
        *,
        is_settled: bool,
    ) -> None:
        super().__init__(attach.name, is_settled, source.exclusive, source.priority)
        self.session: Session = session
        self.connection = session.connection
        self.name = attach.name
        self.peer_handle: i64 = attach.handle
        self.handle: i64 = handle
        self.source = source
        self.queue: Queue = source.queue
        self.outcomes = source.outcomes
        self.terminus = terminus
        self.end = OutgoingEnd(self)
        # What else an outcome may mean is looked at outside of the hot path.
        self.takes_accepted = ACCEPTED in self.outcomes and terminus.lifetime is None
        self.copies = source.copies
        self.filters: FilterSet | None = source.filters if source.filters.filters else None
        self._is_stream = self.queue.is_append_only
        self.selects = not self._is_stream and (source.copies or self.filters is not None)
        self.acquiring: LinkTransaction | None = None
        self.resuming: deque[Resumed] = deque()
        self.awaiting: dict[bytes, Resumed] = {}
        self.resumes_only = False
        self.is_resuming = False
        self._shunned: set[i64] = set()
        self.default_outcome: Outcome = source.default_outcome
        self.is_attached = True
        self.credit: i64 = 0
        self.delivery_count: i64 = 0
        self.drains = False
        self.max_message_size: i64 = min(attach.max_message_size or 0, MAX_MESSAGE_SIZE)
        self._rest = b""
        self._rest_offset: i64 = 0
        self._origin: Origin | None = None
        head = BytesWriter()
        head.write(b"\x00\x53\x14\xc0\x00\x05")
        put_uint(head, handle)
        head.append(0x70)
        octets = bytearray(head.getvalue())
        fields_size = len(octets) - 5 + 4 + len(TAG_HEAD) + TAG_SIZE + 2
        octets[4] = fields_size
        self._head = b"\x02\x00" + int(session.channel).to_bytes(2, "big") + bytes(octets)
        self._tail = MESSAGE_FORMAT_AND_SETTLED if is_settled else MESSAGE_FORMAT_AND_UNSETTLED
        self._durable_tail = b""
        self._transient_tail = b""
        self._frame_size: i64 = 4 + len(self._head) + 4 + len(TAG_HEAD) + TAG_SIZE
        self._prefix = b""
        self._prefix_size: i64 = 0
        self._scratch = BytesWriter()

    # --- for the queue ---

    def has_credit(self) -> bool:
        session = self.session
        return (
            self.credit > 0
            and session.peer_window > 0
            and not self.connection.is_stalled
            and not self.connection.held.is_full
            and self.unsettled_count < UNSETTLED_MAX
            and not session.parked
            and not self.resuming
            and not self.resumes_only
        )

    def chooses(self, entry: Entry) -> bool:
        if entry.sequence in self._shunned:
            return False
        filters = self.filters
        if filters is None:
            return True
        message = entry.message
        if message.format is not AMQP10:
            self.connection.host.runtime.work_left -= conversion_units(message)
        try:
            is_chosen = filters.matches(message, amqp10_content(message))
            self.connection.host.runtime.work_left -= filters.last_units()
            return is_chosen
        except ValueError:
            # Nobody can say what is in it; whoever takes what comes gets rid of it.
            return False

    def go_on_copying(self) -> None:
        """A link that copies goes on where it was when it was detached (3.5.2)."""
        if self.copies:
            self.queue.set_positions(self, self.terminus.positions)

    def deliver(self, entry: Entry) -> None:
        session = self.session
        connection = self.connection
        message = entry.message
        if self._is_stream and self._is_done_with(entry):
            return
        content = message.content
        priority = message.priority
        origin = self._origin
        if origin is None or origin.address is not message.address:
            origin = self._turn_to(message.address)
        is_plain = True
        try:
            if message.format is not AMQP10:
                connection.host.runtime.work_left -= conversion_units(message)
                content = amqp10_content(message)
                priority = amqp10_priority(message)
                if priority < 0:
                    priority = DEFAULT_PRIORITY
            if self._is_stream or has_annotations(content):
                is_plain = False
                content = origin.annotate(content, entry.sequence if self._is_stream else -1)
        except ValueError as error:
            self._pass_over(entry, error)
            return
        if (
            is_plain
            and priority == DEFAULT_PRIORITY
            and message.ttl_ms == NO_TTL
            and not entry.redelivered
            and entry.delivery_count == 0
        ):
            tail = self._durable_tail if message.durable else self._transient_tail
        else:
            tail = self._tail + self._header(entry, priority)
            if is_plain:
                tail += origin.section
        number = session.next_delivery_id
        session.next_delivery_id = (number + 1) & WRAP
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & WRAP
        if not self.no_ack:
            entry.holder = self
            session.unsettled[number] = entry
        out = connection.out
        size = self._frame_size + len(tail) + len(content)
        if size > connection.peer_max_frame_size or self.acquiring is not None:
            self._deliver_in_pieces(number, entry, tail[len(self._tail) :] + content)
        else:
            if size != self._prefix_size:
                self._prefix_size = size
                self._prefix = int(size).to_bytes(4, "big") + self._head
            out.write(self._prefix)
            write_i32_be(out, i32((number ^ 0x80000000) - 0x80000000))
            out.write(TAG_HEAD)
            write_i64_be(out, entry.sequence)
            out.write(tail)
            out.write(content)
            session.next_outgoing_id = (session.next_outgoing_id + 1) & WRAP
            session.peer_window -= 1
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(out) > connection.output_high_water:
            connection.is_stalled = True

    def _pass_over(self, entry: Entry, error: ValueError) -> None:
        """A message of another protocol has no form in this one, or is none of this one."""
        report_undeliverable(self.connection.host.runtime.operator_log, self.queue.name, error)
        if not self.no_ack:
            self.unsettled_count -= 1
        if not (self._is_stream and self.no_ack):
            entry.queue.undeliverable(entry, is_settled=self.no_ack)

    def _turn_to(self, address: Address) -> Origin:
        """Prepare what is the same for all messages of an address."""
        origin = Origin(address)
        self._origin = origin
        self._durable_tail = self._tail + DURABLE_FIRST + origin.section
        self._transient_tail = self._tail + TRANSIENT_FIRST + origin.section
        return origin

    def _is_done_with(self, entry: Entry) -> bool:
        """Whether the link passes over a message of a stream, which shows all that it has."""
        is_wanted = self.chooses(entry)
        if self.no_ack or not is_wanted:
            # Streams count every delivery as unsettled.
            entry.queue.accept(entry)
            self.unsettled_count -= 1
        return not is_wanted

    def _header(self, entry: Entry, priority: i64) -> bytes:
        """The header section of a delivery: the ttl is what is left of it (3.2.1)."""
        message = entry.message
        ttl = message.ttl_ms
        if ttl != NO_TTL:
            elapsed_ms = i64(int((self.connection.host.runtime.now - message.published_at) * 1000.0))
            ttl = min(max(ttl - elapsed_ms, 0), WRAP)
        scratch = self._scratch
        scratch.truncate(0)
        write_header(
            scratch,
            durable=message.durable,
            priority=min(priority, 255),
            ttl=ttl,
            first_acquirer=not entry.redelivered,
            delivery_count=entry.delivery_count,
        )
        return scratch.getvalue()

    def _deliver_in_pieces(self, number: i64, entry: Entry, payload: bytes) -> None:
        facts = self._transfer_facts()
        facts.delivery_id = number
        facts.message_format = 0
        facts.settled = 1 if self.no_ack else 0
        state = b""
        if self.acquiring is not None:
            state = self.acquiring.state(None)
            self.acquiring.acquire(self, number, entry)
        self._send_pieces(facts, int(entry.sequence).to_bytes(TAG_SIZE, "big"), state, payload)

    def _send_pieces(self, facts: TransferFacts, tag: bytes, state: bytes, payload: bytes) -> None:
        size = self.connection.peer_max_frame_size - HEADER_ROOM - len(tag) - len(state)
        facts.more = size < len(payload)
        first = payload[: int(size)]
        write_transfer(self.connection.out, self.session.channel, facts, tag, state, len(first))
        self.connection.out.write(first)
        self._count_frame()
        if facts.more:
            self._rest = payload
            self.connection.held.add_anyway(len(payload))
            self._rest_offset = size
            if not self.send_rest():
                self.session.parked.append(self)

    def _transfer_facts(self) -> TransferFacts:
        facts = TransferFacts()
        facts.handle = self.handle
        return facts

    def _count_frame(self) -> None:
        session = self.session
        session.next_outgoing_id = (session.next_outgoing_id + 1) & WRAP
        session.peer_window -= 1

    def send_rest(self) -> bool:
        """Go on with a delivery that did not fit the session's window. True if all of it is written."""
        connection = self.connection
        facts = self._transfer_facts()
        size = connection.peer_max_frame_size - HEADER_ROOM
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        while self._rest:
            if self.session.peer_window <= 0:
                return False
            end = self._rest_offset + size
            piece = self._rest[self._rest_offset : end]
            facts.more = end < len(self._rest)
            write_transfer(connection.out, self.session.channel, facts, None, b"", len(piece))
            connection.out.write(piece)
            self._count_frame()
            self._rest_offset = end
            if not facts.more:
                self._end_rest()
        return True

    def _end_rest(self) -> None:
        """The delivery is written, or given up."""
        held = self.connection.held
        was_full = held.is_full
        held.give_back(len(self._rest))
        self._rest = b""
        if was_full and not held.is_full:
            self.connection.wake_consumers()

    def credit_available(self) -> None:
        if self.is_attached and self.has_credit():
            self.queue.activate(self)

    def cancelled(self) -> None:
        """The queue is gone."""
        if self.is_attached:
            self.session.detach_outgoing(self, Error(RESOURCE_DELETED, f"queue '{self.queue.name}' was deleted"))

    def shun(self, entry: Entry) -> bool:
        """Never deliver this message by this link again (3.4.5). False if no other consumer is there to take it."""
        if self._is_stream or self.copies:
            self._shunned.add(entry.sequence)
            return True
        if self.is_attached and not any(
            other is not self and (not isinstance(other, OutgoingLink) or other.could_take(entry))
            for other in self.queue.consumers
        ):
            return False
        self._shunned.add(entry.sequence)
        if not self.selects:
            self.queue.start_selecting(self)
        return True

    def could_take(self, entry: Entry) -> bool:
        """Whether a message that goes back to the queue might be delivered by this link."""
        return not self.copies and self.chooses(entry)

    # --- for the session ---

    def take_flow(self, flow: Flow) -> None:
        """The receiver's credit (2.6.7): counted from the deliveries that it knows of."""
        if flow.link_credit is not None:
            seen: i64 = 0 if flow.delivery_count is None else flow.delivery_count
            ahead = (self.delivery_count - seen) & WRAP
            credit: i64 = flow.link_credit
            self.credit = max(credit - ahead, 0) if ahead <= WRAP >> 1 else credit
        self._acquire(flow.properties)
        self.drains = flow.drain
        if self.drains:
            self.session.wants_drain()
        if self.resuming:
            self.is_resuming = True
            self.connection.begin(Resumption(self))
        self.credit_available()
        if flow.echo and not flow.drain:
            self.send_flow()

    def _acquire(self, properties: dict[str, object] | None) -> None:
        """Deliveries take part in the transaction that the flow names (4.4.3), until another flow names none."""
        identifier = (properties or {}).get(TXN_ID)
        if identifier is None:
            self.acquiring = None
        elif isinstance(identifier, bytes):
            if self.no_ack or self.copies or self._is_stream:
                raise link_fault(NOT_IMPLEMENTED, "transactional acquisition of what is settled when it is sent")
            transaction = self.connection.transaction(TransactionalState(identifier))
            if not transaction.has_room(OTHER_UNITS * self.credit):
                raise link_fault(RESOURCE_LIMIT_EXCEEDED, transaction.too_large().description or "")
            if transaction is not self.acquiring:
                transaction.begin_acquiring(self)
        else:
            raise link_fault(INVALID_FIELD, f"{TXN_ID} is binary")

    def settled_later(self) -> None:
        """A delivery that a transaction had is settled."""
        self.unsettled_count -= 1
        if self.terminus.lifetime is not None:
            self.terminus.lifetime.check()
        if not self.is_active:
            self.credit_available()

    def send_flow(self) -> None:
        self.session.send_flow(
            self.handle, self.delivery_count, self.credit, self.queue.message_count, drain=self.drains
        )

    def finish_drain(self) -> None:
        """The queue had its turn: what is left of the credit is used up, unless messages are on their way to us."""
        if self.is_resuming:
            return
        if self.credit > 0 and self.queue.ready_count > 0:
            if self.session.peer_window <= 0 or self.connection.is_stalled or self.session.parked:
                return
            if self.is_active and self.queue.is_gated:
                self.queue.store.wait(_DrainWaiter(self), 0)
                return
        self.delivery_count = (self.delivery_count + self.credit) & WRAP
        self.credit = 0
        self.drains = False
        self.session.send_flow(self.handle, self.delivery_count, 0, self.queue.message_count, drain=True)

    # --- resuming ---

    def resume(self) -> bool:
        """Go on with deliveries of the link's former life, as far as credit and window go (3.4.6).

        False if the turn was too short for that.
        """
        session = self.session
        runtime = self.connection.host.runtime
        while self.resuming and self.credit > 0 and session.peer_window > 0 and not session.parked:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 2 + self.resuming[0].entry.message.size // BYTES_PER_UNIT
            delivery = self.resuming.popleft()
            self.awaiting.pop(delivery.tag, None)
            entry = delivery.entry
            if delivery.is_gone:
                continue
            if delivery.is_known:
                self._resume_known(delivery)
            elif 0.0 < entry.expires_at <= self.connection.host.runtime.now:
                # The peer knows nothing of it, and what has expired is not delivered.
                entry.queue.release(entry, failed=False)
            else:
                # The peer may have had it, and forgotten.
                entry.redelivered = True
                self.unsettled_count += 1
                self.deliver(entry)
        self.is_resuming = False
        if self.drains:
            session.wants_drain()
        self.credit_available()
        return True

    def _resume_known(self, delivery: Resumed) -> None:
        session = self.session
        entry = delivery.entry
        number = session.next_delivery_id
        session.next_delivery_id = (number + 1) & WRAP
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & WRAP
        outcome = outcome_of(delivery.state)
        facts = self._transfer_facts()
        facts.delivery_id = number
        facts.resume = True
        if outcome is not None:
            facts.settled = 1
            write_transfer(self.connection.out, session.channel, facts, delivery.tag, outcome.state.encode(), 0)
            self._count_frame()
            self.connection.send(b"")
            outcome.apply(self, entry)
            return
        entry.holder = self
        self.unsettled_count += 1
        session.unsettled[number] = entry
        content = entry.message.content if entry.message.format is AMQP10 else amqp10_content(entry.message)
        state = FROM_THE_BEGINNING if delivery.state is not None else b""
        origin = Origin(entry.message.address)
        content = origin.annotate(content, entry.sequence if self._is_stream else -1)
        payload = self._header(entry, min(entry.message.priority, 255)) + content
        self._send_pieces(facts, delivery.tag, state, payload)
        self.connection.send(b"")

    # --- the end ---

    def detached(self, event: int, *, closed: bool) -> None:
        """The link is gone by an event: what it holds waits for it in its terminus, or gets the default outcome."""
        if not self.is_attached:
            return
        self.is_attached = False
        self.connection.held.detach(LINK_BYTES)
        session = self.session
        if self._rest:
            self._end_rest()
            if session.is_open:
                session.parked.remove(self)
        positions = self.queue.positions_of(self)
        if positions:
            self.terminus.positions = positions
        self.queue.remove_consumer(self)
        held = self.terminus.held
        deliveries = session.deliveries_of(self)
        self.unsettled_count -= len(deliveries)
        is_over = closed or self.queue.is_deleted or self.terminus.goes_with(event)
        for number, entry in deliveries:
            entry.holder = None
            if is_over:
                # Nobody will ask for it by its tag.
                self.terminus.parting.append(entry)
                continue
            held[int(entry.sequence).to_bytes(TAG_SIZE, "big")] = entry
            if event == LINK_DETACHED and not closed:
                session.left_behind.add(self, number, entry)
        for delivery in self.resuming:
            if not delivery.is_gone:
                held[delivery.tag] = delivery.entry
        self.resuming.clear()
        if closed or self.queue.is_deleted:
            self.terminus.destroy()
        elif not self.terminus.detached(event):
            session.suspended.append(self.terminus)


class OutgoingEnd(LinkEnd):
    """The link, as its terminus sees it."""

    def __init__(self, link: OutgoingLink) -> None:
        self.link = link

    def steal(self) -> None:
        link = self.link
        link.session.detach_outgoing(link, Error(STOLEN, "the link was attached elsewhere"), closed=False)

    def take_away(self) -> None:
        link = self.link
        link.session.detach_outgoing(link, Error(RESOURCE_DELETED, "the link was removed by an administrator"))

    def give_up(self, entries: list[Entry], terminus: Terminus) -> None:
        link = self.link
        if len(entries) > FEW:
            link.connection.begin(GivingUp(link, entries, terminus))
            return
        for entry in reversed(entries):
            link.default_outcome.apply(link, entry)
        link.connection.host.runtime.work_left -= len(entries)
        terminus.let_go()


class _DrainWaiter(CommitWaiter):
    """Looks at a drain again once the queue may deliver more."""

    def __init__(self, link: OutgoingLink) -> None:
        self._link = link

    def committed(self, mark: i64) -> None:
        if self._link.is_attached:
            self._link.session.wants_drain()
