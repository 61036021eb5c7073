"""A session of AMQP 1.0, server side: windows, links by handle, and the deliveries of both directions (1.0, 2.5).

`take_transfer` and `take_disposition` run once a message. Outcomes of what the peer sent are collected while a batch of
input is taken: one disposition then tells of each run of deliveries, after the commit if any of them must be durable.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.attach import attach_link
from waybill.engine.amqp10.server.faults import LINK, Fault, connection_fault, fault_of, session_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.lock import Locks
from waybill.engine.amqp10.server.outcomes import outcome_of
from waybill.engine.amqp10.server.outgoing import OutgoingEnd, OutgoingLink
from waybill.engine.amqp10.server.resume import Resumed
from waybill.engine.amqp10.server.retirement import LeftBehind, retire
from waybill.engine.amqp10.server.shape import AcceptedShape
from waybill.engine.amqp10.server.task import (
    FEW,
    Forgetting,
    LateSettlement,
    SessionEnd,
    Settlement,
    settle_one,
)
from waybill.engine.amqp10.server.transaction import LinkTransaction, Retired
from waybill.engine.amqp10.termini import LINK_DETACHED, Terminus
from waybill.engine.server_connection import Confirming
from waybill.model.entry import Entry, Holder
from waybill.model.errors import ModelError
from waybill.model.footprint import SESSION_BYTES
from waybill.model.store import CommitWaiter
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.disposition import (
    ACCEPTED_STATE,
    DispositionFacts,
    decode_state,
    scan_disposition,
    write_disposition,
)
from waybill.wire.amqp10.error import (
    FRAMING_ERROR,
    HANDLE_IN_USE,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    UNATTACHED_HANDLE,
    WINDOW_VIOLATION,
    Error,
)
from waybill.wire.amqp10.performatives import Attach, Begin, Detach, Flow, Performative
from waybill.wire.amqp10.scan import NO_STATE
from waybill.wire.amqp10.transfer import scan_transfer
from waybill.wire.amqp10.types import Described

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.connection import Connection

INCOMING_WINDOW: Final = 2048
OUTGOING_WINDOW: Final = 0x7FFFFFFF
HANDLE_MAX: Final = 1023
WRAP: Final = 0xFFFFFFFF
UNSETTLED_MAX: Final = 1 << 17
NO_DELIVERY: Final = -1


class Session(Confirming):
    """`next_incoming_id` and `next_outgoing_id` count transfers, modulo 2^32; windows count how many more may come.

    `unsettled`: what the peer was sent and has not settled, by delivery-id. `retired` has what has an outcome that
    waits for its transaction, `acquired` what was delivered in one, `left_behind` what detached links hold.
    """

    def __init__(self, connection: "Connection", channel: i64, begin: Begin) -> None:
        if not connection.held.can_attach(SESSION_BYTES):
            raise connection_fault(RESOURCE_LIMIT_EXCEEDED, connection.held.no_room())
        connection.held.attach(SESSION_BYTES)
        self.connection = connection
        self.channel: i64 = channel
        self.is_open = True
        self.next_incoming_id: i64 = begin.next_outgoing_id
        self.incoming_window: i64 = INCOMING_WINDOW
        self.next_outgoing_id: i64 = 0
        self.peer_window: i64 = begin.incoming_window
        self.peer_handle_max: i64 = begin.handle_max
        self.incoming: dict[i64, IncomingLink] = {}
        self.outgoing: dict[i64, OutgoingLink] = {}
        self.by_name: dict[tuple[str, bool], i64] = {}
        self.detaching: set[i64] = set()
        self.next_delivery_id: i64 = 0
        self.unsettled: dict[i64, Entry] = {}
        self.by_link: dict[Holder | None, list[tuple[i64, Entry]]] = {}
        self.retired: dict[i64, Retired] = {}
        self.acquired: dict[i64, LinkTransaction] = {}
        self.left_behind = LeftBehind()
        self._locks = Locks()
        self.parked: deque[OutgoingLink] = deque()
        self.suspended: list[Terminus] = []
        self._disposition = DispositionFacts()
        self._last_incoming: IncomingLink | None = None
        self._accepted_shape = AcceptedShape()
        self._accepted: list[Entry] = []
        self._runs: list[tuple[i64, i64, bool]] = []
        self._run_first: i64 = NO_DELIVERY
        self._run_last: i64 = NO_DELIVERY
        self._run_settles = True
        self._is_confirming = False
        self._needs_commit = False
        self._waiting: deque[list[tuple[i64, i64, bool]]] = deque()

    # --- windows ---

    def answer_begin(self) -> None:
        self.send(
            Begin(
                remote_channel=int(self.channel),
                next_outgoing_id=int(self.next_outgoing_id),
                incoming_window=int(self.incoming_window),
                outgoing_window=OUTGOING_WINDOW,
                handle_max=HANDLE_MAX,
            )
        )

    def send(self, performative: Performative) -> None:
        if self.connection.is_over:
            return
        self.connection.send_performative(self.channel, performative)

    def send_flow(
        self, handle: i64 = -1, delivery_count: i64 = 0, credit: i64 = 0, available: i64 = -1, *, drain: bool = False
    ) -> None:
        """The state of the session, and with `handle` (ours) of a link."""
        self.incoming_window = INCOMING_WINDOW
        has_link = handle >= 0
        self.send(
            Flow(
                next_incoming_id=int(self.next_incoming_id),
                incoming_window=int(self.incoming_window),
                next_outgoing_id=int(self.next_outgoing_id),
                outgoing_window=OUTGOING_WINDOW,
                handle=int(handle) if has_link else None,
                delivery_count=int(delivery_count) if has_link else None,
                link_credit=int(credit) if has_link else None,
                available=int(available) if available >= 0 else None,
                drain=drain,
            )
        )

    def _take_flow(self, flow: Flow) -> None:
        base: i64 = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        window: i64 = flow.incoming_window
        ahead = (self.next_outgoing_id - base) & WRAP
        if ahead > WRAP >> 1:
            raise session_fault(NOT_ALLOWED, "next-incoming-id is beyond what was sent")
        behind = (self.next_incoming_id - flow.next_outgoing_id) & WRAP
        if 0 < behind <= WRAP >> 1:
            raise session_fault(WINDOW_VIOLATION, f"next-outgoing-id {flow.next_outgoing_id} went back")
        # 2.5.6: "it MUST update the next-incoming-id directly from the next-outgoing-id of the frame".
        self.next_incoming_id = flow.next_outgoing_id
        was_closed = self.peer_window <= 0
        self.peer_window = window - ahead
        if flow.handle is None:
            if flow.echo:
                self.send_flow()
        else:
            handle: i64 = flow.handle
            outgoing = self.outgoing.get(handle)
            incoming = self.incoming.get(handle)
            if outgoing is not None:
                try:
                    outgoing.take_flow(flow)
                except Fault as fault:
                    if fault.scope != LINK:
                        raise
                    self.detach_outgoing(outgoing, fault.error)
            elif incoming is not None:
                incoming.take_flow(flow)
            elif handle not in self.detaching:
                raise session_fault(UNATTACHED_HANDLE, f"no link has the handle {handle}")
        if was_closed and self.peer_window > 0:
            self.window_opened()

    def window_opened(self) -> None:
        """The peer takes transfers again: first the rests of deliveries, then new ones."""
        while self.parked and self.peer_window > 0:
            if self.parked[0].send_rest():
                self.parked.popleft()
        if not self.parked:
            self.wake_links()

    def wake_links(self) -> None:
        for link in self.outgoing.values():
            if not link.is_active:
                link.credit_available()
            if link.drains:
                self.wants_drain()

    def alarm_changed(self) -> None:
        for link in self.incoming.values():
            link.alarm_changed()

    # --- performatives ---

    def take(self, performative: Performative) -> None:
        """Anything but begin, end, transfer and disposition. Raises a fault of the session or the connection."""
        if isinstance(performative, Attach):
            self._attach(performative)
        elif isinstance(performative, Flow):
            self._take_flow(performative)
        elif isinstance(performative, Detach):
            self._take_detach(performative)

    def _attach(self, attach: Attach) -> None:
        handle: i64 = attach.handle
        if handle > HANDLE_MAX:
            raise connection_fault(FRAMING_ERROR, f"handle {handle} is beyond handle-max {HANDLE_MAX}")
        if handle in self.incoming or handle in self.outgoing or handle in self.detaching:
            raise session_fault(HANDLE_IN_USE, f"handle {handle} is in use")
        attach_link(self, attach)
        incoming = self.incoming.get(handle)
        outgoing = self.outgoing.get(handle)
        if incoming is not None:
            self._hold_if_durable(incoming.terminus)
        elif outgoing is not None:
            self._hold_if_durable(outgoing.terminus)

    def free_handle(self, wanted: i64) -> i64:
        """A handle for our end of a link: the peer's own, if it may have that."""
        if wanted <= self.peer_handle_max and not self._is_ours(wanted):
            return wanted
        ours = {int(link.handle) for link in self.incoming.values()}
        ours.update(int(link.handle) for link in self.outgoing.values())
        for handle in range(int(self.peer_handle_max) + 1):
            if handle not in ours:
                return handle
        raise session_fault(NOT_ALLOWED, f"all handles up to handle-max {self.peer_handle_max} are in use")

    def _is_ours(self, handle: i64) -> bool:
        return any(link.handle == handle for link in self.incoming.values()) or any(
            link.handle == handle for link in self.outgoing.values()
        )

    def _take_detach(self, detach: Detach) -> None:
        handle: i64 = detach.handle
        if handle in self.detaching:
            self.detaching.discard(handle)
            return
        incoming = self.incoming.get(handle)
        outgoing = self.outgoing.get(handle)
        if incoming is not None:
            self._hold_if_durable(incoming.terminus)
            del self.incoming[handle]
            self._last_incoming = None
            incoming.detached(LINK_DETACHED, closed=detach.closed)
            self._send_after_outcomes(Detach(handle=int(incoming.handle), closed=detach.closed))
        elif outgoing is not None:
            self._hold_if_durable(outgoing.terminus)
            del self.outgoing[handle]
            outgoing.detached(LINK_DETACHED, closed=detach.closed)
            self.send(Detach(handle=int(outgoing.handle), closed=detach.closed))
        else:
            raise session_fault(UNATTACHED_HANDLE, f"no link has the handle {handle}")

    def _hold_if_durable(self, terminus: Terminus) -> None:
        """What is said of a durable terminus is said when it is true after a crash too."""
        if terminus.durable:
            self.connection.hold()

    def detach_incoming(self, link: IncomingLink, error: Error | None, *, closed: bool = True) -> None:
        """Detach a link from our side; what comes on it until the peer's detach is dropped."""
        if self.incoming.pop(link.peer_handle, None) is None:
            if not self.is_open:
                link.detached(LINK_DETACHED, closed=closed)
            return
        self._last_incoming = None
        self.detaching.add(link.peer_handle)
        link.detached(LINK_DETACHED, closed=closed)
        self._send_after_outcomes(Detach(handle=int(link.handle), closed=closed, error=error))

    def detach_outgoing(self, link: OutgoingLink, error: Error | None, *, closed: bool = True) -> None:
        if self.outgoing.pop(link.peer_handle, None) is None:
            if not self.is_open:
                link.detached(LINK_DETACHED, closed=closed)
            return
        self.detaching.add(link.peer_handle)
        link.detached(LINK_DETACHED, closed=closed)
        self.send(Detach(handle=int(link.handle), closed=closed, error=error))

    # --- transfers in ---

    def take_transfer(self, data: bytes, start: i64, end: i64) -> None:
        """The hot path of publishing. Raises `DecodeError`, or a fault of the session."""
        self.next_incoming_id = (self.next_incoming_id + 1) & WRAP
        self.incoming_window -= 1
        if self.incoming_window < 0:
            raise session_fault(WINDOW_VIOLATION, "more transfers than the incoming-window allows")
        link = self._last_incoming
        try:
            if link is None or not link.take_alike(data, start, end):
                link = self._take_other_transfer(data, start, end)
        except (Fault, ModelError) as error:
            fault = error if isinstance(error, Fault) else None
            if fault is None and isinstance(error, ModelError):
                fault = fault_of(error)
            self._fail_incoming(self._last_incoming, fault)
        if self.incoming_window < INCOMING_WINDOW // 2:
            self.send_flow()

    def _take_other_transfer(self, data: bytes, start: i64, end: i64) -> IncomingLink | None:
        """A transfer that is decoded; the link that took it. Raises what its link does."""
        facts = self.connection.transfer_facts
        scan_transfer(data, start, end, facts)
        link = self.incoming.get(facts.handle)
        if link is None:
            if facts.handle not in self.detaching:
                raise session_fault(UNATTACHED_HANDLE, f"no link to receive by has the handle {facts.handle}")
            return None
        self._last_incoming = link
        is_whole = not link.is_partial and not facts.more
        link.take_transfer(data, facts, end)
        if is_whole:
            link.learn(data, start, facts)
        return link

    def _fail_incoming(self, link: IncomingLink | None, fault: Fault | None) -> None:
        if fault is None:
            return
        if fault.scope != LINK or link is None:
            raise fault
        link.fail_transaction(fault.error)
        self.detach_incoming(link, fault.error)

    # --- outcomes of what came in ---

    def accepted(self, delivery_id: i64, *, settles: bool) -> None:
        """A delivery is accepted, once the commit of this batch is done if `needs_commit` was called for it."""
        if (
            delivery_id == (self._run_last + 1) & WRAP
            and self._run_first != NO_DELIVERY
            and settles == self._run_settles
        ):
            self._run_last = delivery_id
            return
        self._end_run()
        self._run_first = delivery_id
        self._run_last = delivery_id
        self._run_settles = settles
        if not self._is_confirming:
            self._is_confirming = True
            self.connection.confirming(self)

    def needs_commit(self) -> None:
        """What is accepted in this batch of input must be durable before its sender hears of it."""
        self._needs_commit = True

    def _end_run(self) -> None:
        if self._run_first != NO_DELIVERY:
            self._runs.append((self._run_first, self._run_last, self._run_settles))
            self._run_first = NO_DELIVERY
            self._run_last = NO_DELIVERY

    def send_outcome(self, delivery_id: i64, state: bytes, *, settled: bool = True) -> None:
        """Tell of the outcome of one delivery that the peer sent."""
        self._write(delivery_id, delivery_id, state, settled=settled, receiver=True)

    def _write(self, first: i64, last: i64, state: bytes, *, settled: bool, receiver: bool) -> None:
        connection = self.connection
        if connection.is_over:
            return
        write_disposition(
            connection.out, self.channel, receiver=receiver, first=first, last=last, settled=settled, state=state
        )
        if not connection.is_dirty:
            connection.host.mark_dirty(connection)

    def settle_confirms(self) -> None:
        """End of a batch of input: tell what needs no disk, wait for the commit with the rest."""
        self._is_confirming = False
        self._end_run()
        runs = self._runs
        self._runs = []
        if not self.is_open or not runs:
            return
        if self._needs_commit or self._waiting:
            self._needs_commit = False
            self._waiting.append(runs)
            self.connection.host.runtime.store.wait(self, 0)
        else:
            self._tell(runs)

    def committed(self, mark: i64) -> None:
        runs = self._waiting.popleft()
        if self.is_open:
            self._tell(runs)

    def _tell(self, runs: list[tuple[i64, i64, bool]]) -> None:
        for first, last, settles in runs:
            self._write(first, last, ACCEPTED_STATE, settled=settles, receiver=True)

    def _send_after_outcomes(self, performative: Performative) -> None:
        """A sender's link goes: the outcomes of all that it sent go before its detach."""
        self.settle_confirms()
        if self._waiting:
            self.connection.host.runtime.store.wait(_Answer(self, performative), 0)
        else:
            self.send(performative)

    # --- dispositions ---

    def take_disposition(self, data: bytes, start: i64, end: i64) -> None:
        """The hot path of consuming. Raises `DecodeError`, or a fault of the session."""
        number = self._accepted_shape.match(data, start, end)
        if number < 0:
            self._take_other_disposition(data, start, end)
            return
        entry = self.unsettled.get(number)
        if entry is None:
            if self.left_behind.entries:
                self._take_other_disposition(data, start, end)
            return
        link = entry.holder
        if isinstance(link, OutgoingLink) and link.takes_accepted:
            del self.unsettled[number]
            if not self._accepted:
                self.connection.accepting(self)
            self._accepted.append(entry)
            return
        self._take_other_disposition(data, start, end)

    def accept_all(self) -> None:
        """Do what the dispositions that were just taken in a row say."""
        entries = self._accepted
        self._accepted = []
        start = 0
        count = len(entries)
        while start < count:
            queue = entries[start].queue
            end = start + 1
            while end < count and entries[end].queue is queue:
                end += 1
            queue.accept_all(entries if end - start == count else entries[start:end])
            start = end
        for entry in entries:
            link = entry.holder
            if link is not None:
                link.unsettled_count -= 1
                if not link.is_active:
                    link.credit_available()

    def _take_other_disposition(self, data: bytes, start: i64, end: i64) -> None:
        self.connection.accept_all()
        facts = self._disposition
        scan_disposition(data, start, end, facts)
        if not facts.receiver:
            self._take_sender_disposition(facts)
            return
        if facts.state == descriptors.ACCEPTED and facts.settled and facts.first == facts.last:
            self._accepted_shape.learn(data, start, end, facts)
        self._take_outcomes(data, facts)

    def _take_outcomes(self, data: bytes, facts: DispositionFacts) -> None:
        count = ((facts.last - facts.first) & WRAP) + 1
        if count > WRAP >> 1:
            raise session_fault(NOT_ALLOWED, f"a disposition of the deliveries {facts.first} to {facts.last}")
        state: Composite | Described | None = None
        if facts.state != NO_STATE:
            state = decode_state(data, facts.state_start, facts.state_end)
        identifiers = self._unsettled_among(facts.first, count)
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            retire(self, identifiers, state, facts)
            return
        outcome = outcome_of(state)
        if outcome is None and not facts.settled:
            return
        late = self.left_behind.numbers(facts.first, count) if self.left_behind.entries else []
        if len(identifiers) > FEW:
            self.connection.begin(Settlement(self, identifiers, outcome, settled=facts.settled))
        elif identifiers:
            self.connection.host.runtime.work_left -= len(identifiers) >> 4
            for number in identifiers if outcome is None or outcome.keeps_order else reversed(identifiers):
                entry = self.unsettled.get(number)
                if entry is not None:
                    settle_one(self, number, entry, outcome, settled=facts.settled)
        if late:
            if len(late) <= FEW and not (outcome is None or outcome.keeps_order):
                late.reverse()
            self.connection.begin(LateSettlement(self, late, outcome))

    def _unsettled_among(self, first: i64, count: i64) -> list[i64]:
        """Those of `count` deliveries from `first` on that are unsettled now; looks at as few as it can."""
        unsettled = self.unsettled
        if count == 1:
            return [first] if first in unsettled else []
        self.connection.host.runtime.work_left -= 2 + (min(count, len(unsettled)) >> 4)
        if count > len(unsettled):
            return [number for number in unsettled if (number - first) & WRAP < count]
        numbers: list[i64] = []
        for index in range(count):
            number = (first + index) & WRAP
            if number in unsettled:
                numbers.append(number)
        return numbers

    def awaited(self, terminus: Terminus, tag: bytes) -> Resumed | None:
        """A delivery that the present link of a terminus has still to resume; it is taken from that link's list."""
        end = terminus.link
        link = end.link if isinstance(end, OutgoingEnd) else None
        return None if link is None or link.session is not self else link.awaiting.pop(tag, None)

    def link_of(self, entry: Entry) -> OutgoingLink:
        """The link that has a delivery."""
        link = entry.holder
        assert isinstance(link, OutgoingLink)  # noqa: S101 - nothing else fills `unsettled`
        return link

    def _take_sender_disposition(self, facts: DispositionFacts) -> None:
        """The peer settles what it sent (rcv-settle-mode second), or says nothing new."""
        if not facts.settled:
            return
        self.connection.begin(Forgetting(self, facts.first, facts.last))

    def release_late(self, now: float, timeout_s: float) -> None:
        """Take back what the peer keeps for longer than `timeout_s`."""
        self._locks.release(self, now, timeout_s)

    def settled_by_us(self, delivery_id: i64, state: bytes) -> None:
        """Answer an outcome that the peer has not settled: from now on neither side remembers the delivery."""
        self._write(delivery_id, delivery_id, state, settled=True, receiver=False)

    # --- the end ---

    def wants_drain(self) -> None:
        self.connection.draining(self)

    def finish_drains(self) -> None:
        for link in list(self.outgoing.values()):
            if link.drains:
                link.finish_drain()

    def close(self, event: int) -> SessionEnd | None:
        """End, by an event that ends this session at least. Nothing comes of it any more; the rest is a task."""
        if not self.is_open:
            return None
        self.is_open = False
        self.connection.held.detach(SESSION_BYTES)
        self.peer_window = 0
        self.parked.clear()
        outgoing = list(self.outgoing.values())
        incoming = list(self.incoming.values())
        self.outgoing = {}
        self.incoming = {}
        if len(outgoing) > 1:
            # In one pass, and not in one for each link.
            by_link = self.by_link
            for pair in self.unsettled.items():
                link = pair[1].holder
                pairs = by_link.get(link)
                if pairs is None:
                    by_link[link] = [pair]
                else:
                    pairs.append(pair)
            self.connection.host.runtime.work_left -= len(self.unsettled) >> 4
            self.unsettled = {}
        return SessionEnd(self, event, outgoing, incoming)

    def deliveries_of(self, link: OutgoingLink) -> list[tuple[i64, Entry]]:
        """What the peer has not settled of a link that is detached: it is the session's no more."""
        pairs = self.by_link.pop(link, None) or []
        unsettled = self.unsettled
        if link.unsettled_count > len(pairs) and unsettled:
            self.connection.host.runtime.work_left -= len(unsettled) >> 4
            others = [pair for pair in unsettled.items() if pair[1].holder is link]
            if len(others) == len(unsettled):
                self.unsettled = {}
            else:
                for number, _ in others:
                    del unsettled[number]
            pairs = pairs + others
        return pairs


class _Answer(CommitWaiter):
    """Something to send once what waits for the present commit has been sent."""

    def __init__(self, session: Session, performative: Performative) -> None:
        self._session = session
        self._performative = performative

    def committed(self, mark: i64) -> None:
        if self._session.is_open:
            self._session.send(self._performative)
