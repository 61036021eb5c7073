"""A link by which the peer receives: a consumer of one queue with the credit of the link, and the session's window.

`deliver` runs once a message, so what is the same for all deliveries of the link is prepared (`DeliveryForm`). The
content goes out as it came in, behind a header section with the present state of the message (1.0, 3.2.1).

The delivery-tag is the message's place in the queue, which no other message of the queue ever has. So a tag still leads
to its message after the link, or this process, was lost.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.filters import FilterSet
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.default_outcomes import DefaultOutcomes
from waybill.engine.amqp10.server.delivery_form import DeliveryForm
from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.origin import has_annotations
from waybill.engine.amqp10.server.outcomes import ACCEPTED
from waybill.engine.amqp10.server.partial_delivery import PartialDelivery, count_transfer, send_first_piece
from waybill.engine.amqp10.server.source import SourceNode
from waybill.engine.amqp10.server.task import FEW
from waybill.engine.amqp10.server.transaction import LinkTransaction
from waybill.engine.amqp10.server.unsettled_map import Resumed, tag_of
from waybill.engine.amqp10.termini import LINK_DETACHED, LinkEnd, Terminus
from waybill.engine.conversion.convert import (
    amqp10_content,
    amqp10_priority,
    conversion_units,
    report_undeliverable,
)
from waybill.model.entry import Entry
from waybill.model.footprint import LINK_BYTES
from waybill.model.message import NO_TTL
from waybill.model.queue import Queue
from waybill.model.store import CommitWaiter
from waybill.model.transaction import OTHER_UNITS
from waybill.wire.amqp10.error import (
    INVALID_FIELD,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    Error,
)
from waybill.wire.amqp10.message import DEFAULT_PRIORITY
from waybill.wire.amqp10.performatives import Attach, Detach, Flow
from waybill.wire.amqp10.transactions import TXN_ID
from waybill.wire.amqp10.transfer import TransferFacts

WRAP: Final = 0xFFFFFFFF
UNSETTLED_MAX: Final = 1 << 17
SHUNNED_MAX: Final = 16_384
ASKING_UNITS: Final = 1024


class OutgoingLink(DeliveryHost):
    """`peer_handle` is the peer's handle of the link, `handle` ours. `credit` is the link-credit.

    `drains`: the peer wants its credit used up or returned. `resuming`: the deliveries to resume, in order; `awaiting`
    has them by tag. `resumes_only`: the peer's unsettled map was incomplete, so it gets no new deliveries (2.7.3).
    """

    def __init__(
        self,
        session: LinkHost,
        attach: Attach,
        handle: i64,
        source: SourceNode,
        terminus: Terminus,
        *,
        is_settled: bool,
    ) -> None:
        connection = session.connection
        super().__init__(
            attach.name,
            terminus,
            source.outcomes,
            source.default_outcome,
            source.priority,
            is_settled=is_settled,
            is_exclusive=source.exclusive,
            is_strict=connection.host.limits.is_strict_amqp10,
        )
        self.session: LinkHost = session
        self.connection = connection
        self.name = attach.name
        self.peer_handle: i64 = attach.handle
        self.handle: i64 = handle
        self.source = source
        self.queue: Queue = source.queue
        self.end = OutgoingEnd(self)
        # A dynamic node may be deleted with its last message: that is checked outside of the hot path.
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
        self.credit: i64 = 0
        self.delivery_count: i64 = 0
        self.drains = False
        self._shunned: dict[i64, None] = {}
        self.form = DeliveryForm(session.channel, handle, is_settled=is_settled)
        self._rest: PartialDelivery | None = None

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
            self.connection.host.runtime.work_left -= conversion_units(message, AMQP10)
        try:
            is_chosen = filters.matches(message, amqp10_content(message))
            self.connection.host.runtime.work_left -= filters.last_units()
            return is_chosen
        except ValueError:
            # The message cannot be converted, so no filter matches it. A consumer without filters gets rid of it.
            return False

    def continue_copying(self) -> None:
        """A link that copies continues where it was when it was detached (3.5.2)."""
        if self.copies:
            self.queue.set_positions(self, self.terminus.positions)

    def deliver(self, entry: Entry) -> None:
        message = entry.message
        if self._is_stream and self._skips(entry):
            return
        form = self.form
        origin = form.origin
        if origin is None or origin.address is not message.address:
            origin = form.turn_to(message.address)
        content = message.content
        priority = message.priority
        is_plain = True
        try:
            if message.format is not AMQP10:
                self.connection.host.runtime.work_left -= conversion_units(message, AMQP10)
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
            tail = form.durable_tail if message.durable else form.transient_tail
        else:
            tail = form.tail + form.header(entry, priority, self.connection.host.runtime.now)
            if is_plain:
                tail += origin.section
        self._send(entry, tail, content)

    def allowance(self) -> i64:
        window = min(self.session.peer_window, UNSETTLED_MAX - self.unsettled_count)
        return min(self.credit, window)

    def deliver_all(self, entries: list[Entry]) -> i64:
        session = self.session
        held = self.connection.held
        taken: i64 = 0
        for entry in entries:
            self.deliver(entry)
            taken += 1
            if len(session.parked) > 0 or session.peer_window <= 0 or held.is_full or not self.is_active:
                # It went in several transfers.
                break
            if entry.message.format is not AMQP10 and self.connection.host.runtime.work_left <= 0:
                # The conversions so far have used up the turn.
                break
        return taken

    def _send(self, entry: Entry, tail: bytes, content: bytes) -> None:
        session = self.session
        connection = self.connection
        number = session.next_delivery_id
        session.next_delivery_id = (number + 1) & WRAP
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & WRAP
        if not self.no_ack:
            entry.holder = self
            session.unsettled[number] = entry
        form = self.form
        out = connection.out
        size = form.frame_size + len(tail) + len(content)
        if size > connection.peer_max_frame_size or self.acquiring is not None:
            self._send_in_pieces(number, entry, tail[len(form.tail) :] + content)
        else:
            form.write(out, size, number, entry.sequence, tail, content)
            count_transfer(session)
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)
        if len(out) > connection.output_high_water:
            connection.is_stalled = True

    def _pass_over(self, entry: Entry, error: ValueError) -> None:
        """The message of another protocol has no form in this one, or this one's cannot be read."""
        report_undeliverable(self.connection.host.runtime.operator_log, self.queue.name, error)
        if not self.no_ack:
            self.unsettled_count -= 1
        if not (self._is_stream and self.no_ack):
            entry.queue.undeliverable(entry, is_settled=self.no_ack)

    def _skips(self, entry: Entry) -> bool:
        """Whether the filters of the link exclude a message of a stream, which offers all its messages."""
        is_wanted = self.chooses(entry)
        if self.no_ack or not is_wanted:
            # Streams count every delivery as unsettled.
            entry.queue.accept(entry)
            self.unsettled_count -= 1
        return not is_wanted

    def _send_in_pieces(self, number: i64, entry: Entry, payload: bytes) -> None:
        facts = self.transfer_facts(number)
        facts.message_format = 0
        facts.settled = 1 if self.no_ack else 0
        state = b""
        if self.acquiring is not None:
            state = self.acquiring.state(None)
            self.acquiring.acquire(self, self.session.enlisted, number, entry)
        self.send_pieces(facts, tag_of(entry), state, payload)

    def transfer_facts(self, number: i64) -> TransferFacts:
        facts = TransferFacts()
        facts.handle = self.handle
        facts.delivery_id = number
        return facts

    def send_pieces(self, facts: TransferFacts, tag: bytes, state: bytes, payload: bytes) -> None:
        """Send a delivery in as many transfers as it needs, now as far as the window allows."""
        self._rest = send_first_piece(self.session, facts, tag, state, payload)

    def credit_available(self) -> None:
        if self.is_attached and self.has_credit():
            self.queue.activate(self)

    def cancelled(self) -> None:
        if self.is_attached:
            self.detach(Error(RESOURCE_DELETED, f"queue '{self.queue.name}' was deleted"))

    # --- for deliveries that were sent ---

    def shun(self, entry: Entry) -> bool:
        if self._is_stream or self.copies:
            # It goes on behind this message.
            return True
        if self.is_attached and not self._is_wanted_elsewhere(entry):
            return False
        self._shunned[entry.sequence] = None
        if len(self._shunned) > SHUNNED_MAX:
            del self._shunned[next(iter(self._shunned))]
        if not self.selects:
            self.queue.start_selecting(self)
        return True

    def _is_wanted_elsewhere(self, entry: Entry) -> bool:
        """Whether another consumer could take a message. Assumed if it takes too long to ask them all."""
        runtime = self.connection.host.runtime
        least = runtime.work_left - ASKING_UNITS
        for other in self.queue.consumers:
            if runtime.work_left <= least:
                return True
            runtime.work_left -= 1
            if other is not self and (not isinstance(other, OutgoingLink) or other.could_take(entry)):
                return True
        return False

    def could_take(self, entry: Entry) -> bool:
        """Whether this link may deliver a message that goes back to the queue."""
        return not self.copies and self.chooses(entry)

    def withdraw(self, number: i64, entry: Entry) -> bool:
        unsettled = self.session.unsettled
        if unsettled.get(number) is not entry:
            return False
        del unsettled[number]
        return True

    def restore(self, number: i64, entry: Entry) -> None:
        entry.holder = self
        self.session.unsettled[number] = entry

    def settle(self, number: i64, state: bytes) -> None:
        self.session.settle(number, state)

    def delivery_settled(self) -> None:
        self.unsettled_count -= 1
        if self.terminus.lifetime is not None:
            self.terminus.lifetime.check()
        if not self.is_active:
            self.credit_available()

    def end_acquiring(self) -> None:
        self.acquiring = None

    # --- flow ---

    def take_credit(self, flow: Flow) -> None:
        """The receiver's state (2.6.7). Its credit counts from the deliveries that it knows of.

        Call `use_credit` next, and before that resume what there is to resume.
        """
        if flow.link_credit is not None:
            seen: i64 = 0 if flow.delivery_count is None else flow.delivery_count
            ahead = (self.delivery_count - seen) & WRAP
            credit: i64 = flow.link_credit
            self.credit = max(credit - ahead, 0) if ahead <= WRAP >> 1 else credit
        self._acquire(flow.properties)
        self.drains = flow.drain
        if self.drains:
            self.session.wants_drain()

    def use_credit(self, flow: Flow) -> None:
        self.credit_available()
        if flow.echo and not flow.drain:
            self.send_flow()

    def _acquire(self, properties: dict[str, object] | None) -> None:
        """New deliveries are part of the transaction that a flow names (4.4.3), until a flow names none."""
        identifier = (properties or {}).get(TXN_ID)
        acquiring = self.acquiring
        transaction: LinkTransaction | None = None
        if isinstance(identifier, bytes):
            if self.no_ack or self.copies or self._is_stream:
                raise link_fault(NOT_IMPLEMENTED, "transactional acquisition of what is settled when it is sent")
            transaction = self.connection.transactions.find(identifier)
            if not transaction.has_room(OTHER_UNITS * self.credit):
                raise link_fault(RESOURCE_LIMIT_EXCEEDED, transaction.too_large().description or "")
        elif identifier is not None:
            raise link_fault(INVALID_FIELD, f"{TXN_ID} is binary")
        if transaction is acquiring:
            return
        self.acquiring = transaction
        if acquiring is not None:
            acquiring.stop_acquiring(self)
        if transaction is not None:
            transaction.begin_acquiring(self)

    def send_flow(self) -> None:
        self.session.send_flow(
            self.handle, self.delivery_count, self.credit, self.queue.message_count, drain=self.drains
        )

    def finish_drain(self) -> None:
        """The queue had its turn: drop the credit that is left, unless messages are on their way to the peer."""
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

    # --- the end ---

    def detach(self, error: Error | None, *, closed: bool = True) -> None:
        session = self.session
        if session.remove_outgoing(self.peer_handle):
            self.detached(LINK_DETACHED, closed=closed)
            session.report_detach(self.name, error)
            session.send(Detach(handle=int(self.handle), closed=closed, error=error))
        elif not session.is_open:
            self.detached(LINK_DETACHED, closed=closed)

    def detached(self, event: int, *, closed: bool) -> None:
        """The link was detached. Its unsettled deliveries wait in the terminus, or get the default outcome."""
        if not self.is_attached:
            return
        self.is_attached = False
        self.connection.held.detach(LINK_BYTES)
        session = self.session
        rest = self._rest
        if rest is not None and not rest.is_over:
            rest.end()
            if session.is_open:
                session.parked.remove(rest)
        positions = self.queue.positions_of(self)
        if positions:
            self.terminus.positions = positions
        self.queue.remove_consumer(self)
        self._hold_deliveries(event, closed=closed)
        if closed or self.queue.is_deleted:
            self.terminus.destroy()
        elif not self.terminus.detached(event):
            session.suspended.append(self.terminus)

    def _hold_deliveries(self, event: int, *, closed: bool) -> None:
        """Move the unsettled deliveries to the terminus."""
        terminus = self.terminus
        deliveries = self.session.take_deliveries(self)
        self.unsettled_count -= len(deliveries)
        is_over = closed or self.queue.is_deleted or terminus.goes_with(event)
        for number, entry in deliveries:
            entry.holder = None
            if is_over:
                # The link is never attached again, so the peer cannot ask for it by its tag.
                terminus.parting.append(entry)
                continue
            terminus.held[tag_of(entry)] = entry
            if event == LINK_DETACHED and not closed:
                self.session.leave_behind(self, number, entry)
        for delivery in self.resuming:
            if not delivery.is_gone:
                terminus.held[delivery.tag] = delivery.entry
        self.resuming.clear()


class OutgoingEnd(LinkEnd):
    """The link as its terminus sees it."""

    def __init__(self, link: OutgoingLink) -> None:
        self.link = link

    def detach(self, error: Error | None, *, closed: bool = True) -> None:
        self.link.detach(error, closed=closed)

    def give_up(self, entries: list[Entry], terminus: Terminus) -> None:
        link = self.link
        if len(entries) > FEW:
            link.connection.begin(DefaultOutcomes(link.session, link, entries, terminus))
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
