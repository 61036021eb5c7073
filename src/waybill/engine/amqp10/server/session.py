"""A session of AMQP 1.0, server side (1.0, 2.5): its windows, and where its frames go.

attach              attach.attach_link
flow                here: the windows; then the link
transfer            IncomingLink; `take_transfer` runs once a message
disposition         Dispositions; once a message too
detach              here
"""

from typing import Final

from mypy_extensions import i64

from waybill.engine.amqp10.server.attach import attach_link
from waybill.engine.amqp10.server.delivery_host import DeliveryHost
from waybill.engine.amqp10.server.detached_deliveries import DetachedDeliveries
from waybill.engine.amqp10.server.dispositions import Dispositions
from waybill.engine.amqp10.server.faults import Fault, connection_fault, link_error, session_fault
from waybill.engine.amqp10.server.incoming import IncomingLink
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.links import HANDLE_MAX, Links
from waybill.engine.amqp10.server.resumption import Resumption
from waybill.engine.amqp10.server.session_end import SessionEnd
from waybill.engine.amqp10.server.session_host import SessionHost
from waybill.engine.amqp10.server.unsettled_timeout import UnsettledTimeout
from waybill.engine.amqp10.termini import LINK_DETACHED, Terminus
from waybill.model.entry import Entry, Holder
from waybill.model.errors import ModelError
from waybill.model.footprint import SESSION_BYTES
from waybill.model.queue import Queue
from waybill.wire.amqp10.error import NOT_ALLOWED, RESOURCE_LIMIT_EXCEEDED, UNATTACHED_HANDLE, WINDOW_VIOLATION
from waybill.wire.amqp10.performatives import Attach, Begin, Detach, Flow, Performative
from waybill.wire.amqp10.transfer import scan_transfer

INCOMING_WINDOW: Final = 2048
OUTGOING_WINDOW: Final = 0x7FFFFFFF
WRAP: Final = 0xFFFFFFFF


class Session(LinkHost):
    """`next_incoming_id` counts the peer's transfers, modulo 2^32; `incoming_window` is how many more it may send."""

    def __init__(self, connection: SessionHost, channel: i64, begin: Begin) -> None:
        if not connection.held.can_attach(SESSION_BYTES):
            raise connection_fault(RESOURCE_LIMIT_EXCEEDED, connection.held.no_room())
        connection.held.attach(SESSION_BYTES)
        super().__init__(connection, channel, begin)
        self.next_incoming_id: i64 = begin.next_outgoing_id
        self.incoming_window: i64 = INCOMING_WINDOW
        self.links = Links(begin.handle_max)
        self.detached = DetachedDeliveries(self)
        self.dispositions = Dispositions(self, self.links, self.detached)
        self._timeout = UnsettledTimeout()
        self._last_incoming: IncomingLink | None = None
        self._by_link: dict[Holder | None, list[tuple[i64, Entry]]] = {}

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

    def send_flow(
        self, handle: i64 = -1, delivery_count: i64 = 0, credit: i64 = 0, available: i64 = -1, *, drain: bool = False
    ) -> None:
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
        if flow.handle is not None:
            self._take_link_flow(flow.handle, flow)
        elif flow.echo:
            self.send_flow()
        if was_closed and self.peer_window > 0:
            self._send_parked()

    def _take_link_flow(self, handle: i64, flow: Flow) -> None:
        outgoing = self.links.outgoing.get(handle)
        incoming = self.links.incoming.get(handle)
        if outgoing is not None:
            try:
                outgoing.take_credit(flow)
                if outgoing.resuming:
                    outgoing.is_resuming = True
                    self.connection.begin(Resumption(outgoing))
                outgoing.use_credit(flow)
            except (Fault, ModelError) as error:
                outgoing.detach(link_error(error))
        elif incoming is not None:
            incoming.take_flow(flow)
        else:
            self.links.check_detaching(handle)

    def _send_parked(self) -> None:
        """The peer takes transfers again: first the rests of deliveries, then new ones."""
        while self.parked and self.peer_window > 0:
            if self.parked[0].send():
                self.parked.popleft()
        if not self.parked:
            self.wake_consumers()

    def wake_consumers(self) -> None:
        """Deliveries may continue."""
        for link in self.links.outgoing.values():
            if not link.is_active:
                link.credit_available()
            if link.drains:
                self.wants_drain()

    def alarm_changed(self) -> None:
        for link in self.links.incoming.values():
            link.credit.alarm_changed()

    # --- links ---

    def take(self, performative: Performative) -> None:
        """Take any performative but begin, end, transfer and disposition. Raises a session or connection fault."""
        if isinstance(performative, Attach):
            self._take_attach(performative)
        elif isinstance(performative, Flow):
            self._take_flow(performative)
        elif isinstance(performative, Detach):
            self._take_detach(performative)

    def _take_attach(self, attach: Attach) -> None:
        self.links.check_free(attach.handle)
        terminus = attach_link(self, self.links, attach)
        if terminus is not None:
            self._hold_if_durable(terminus)

    def _take_detach(self, detach: Detach) -> None:
        handle: i64 = detach.handle
        links = self.links
        incoming = links.incoming.pop(handle, None)
        outgoing = links.outgoing.pop(handle, None)
        if incoming is not None:
            self._hold_if_durable(incoming.terminus)
            self._last_incoming = None
            incoming.detached(LINK_DETACHED, closed=detach.closed)
            self.accepted_runs.send_after(Detach(handle=int(incoming.handle), closed=detach.closed))
        elif outgoing is not None:
            self._hold_if_durable(outgoing.terminus)
            outgoing.detached(LINK_DETACHED, closed=detach.closed)
            self.send(Detach(handle=int(outgoing.handle), closed=detach.closed))
        else:
            links.check_detaching(handle)
            links.detaching.discard(handle)

    def _hold_if_durable(self, terminus: Terminus) -> None:
        """An answer about a durable terminus waits until it is true after a crash too."""
        if terminus.durable:
            self.connection.hold()

    def remove_incoming(self, peer_handle: i64) -> bool:
        if not self.links.remove_incoming(peer_handle):
            return False
        self._last_incoming = None
        return True

    def remove_outgoing(self, peer_handle: i64) -> bool:
        return self.links.remove_outgoing(peer_handle)

    def response_queue(self, name: str) -> Queue | None:
        found: Queue | None = None
        for link in self.links.outgoing.values():
            if link.source.is_management and (found is None or link.name == name):
                found = link.queue
        return found

    # --- transfers ---

    def take_transfer(self, data: bytes, start: i64, end: i64) -> None:
        """The hot path of publishing. Raises `DecodeError`, or a fault of the session."""
        self.next_incoming_id = (self.next_incoming_id + 1) & WRAP
        self.incoming_window -= 1
        if self.incoming_window < 0:
            raise session_fault(WINDOW_VIOLATION, "more transfers than the incoming-window allows")
        link = self._last_incoming
        try:
            if link is None or not link.take_alike(data, start, end):
                self._take_other_transfer(data, start, end)
        except (Fault, ModelError) as error:
            link = self._last_incoming
            if link is None:
                raise
            reason = link_error(error)
            link.delivery.fail_transaction(reason)
            link.detach(reason)
        if self.incoming_window < INCOMING_WINDOW // 2:
            self.send_flow()

    def _take_other_transfer(self, data: bytes, start: i64, end: i64) -> None:
        """Decode a transfer and give it to its link. Raises an error of the link too."""
        self.connection.host.runtime.work_left -= 1
        facts = self.connection.transfer_facts
        scan_transfer(data, start, end, facts)
        link = self.links.incoming.get(facts.handle)
        if link is None:
            if facts.handle not in self.links.detaching:
                raise session_fault(UNATTACHED_HANDLE, f"no link to receive by has the handle {facts.handle}")
            return
        self._last_incoming = link
        is_whole = not link.is_partial and not facts.more
        link.take_transfer(data, facts, end)
        if is_whole:
            link.learn(data, start, facts)

    # --- deliveries to the peer ---

    def take_disposition(self, data: bytes, start: i64, end: i64) -> None:
        """The hot path of consuming. Raises `DecodeError`, or a fault of the session."""
        self.dispositions.take(data, start, end)

    def release_late(self, now: float, timeout_s: float) -> None:
        """Release deliveries that the peer has not settled for `timeout_s`."""
        self._timeout.release(self, now, timeout_s)

    def finish_drains(self) -> None:
        for link in list(self.links.outgoing.values()):
            if link.drains:
                link.finish_drain()

    def leave_behind(self, link: DeliveryHost, number: i64, entry: Entry) -> None:
        self.detached.add(link, number, entry)

    def take_deliveries(self, link: Holder) -> list[tuple[i64, Entry]]:
        pairs = self._by_link.pop(link, None) or []
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

    # --- the end ---

    def close(self, event: int) -> SessionEnd | None:
        """End the session without sending anything more; giving back its deliveries is a task."""
        if not self.is_open:
            return None
        self.is_open = False
        self.accepted_runs.close()
        self.connection.held.detach(SESSION_BYTES)
        self.peer_window = 0
        self.parked.clear()
        outgoing = list(self.links.outgoing.values())
        incoming = list(self.links.incoming.values())
        self.links.outgoing = {}
        self.links.incoming = {}
        if len(outgoing) > 1:
            self._group_unsettled()
        return SessionEnd(self, event, outgoing, incoming)

    def _group_unsettled(self) -> None:
        """Find the deliveries of all links in one pass, rather than in one for each link."""
        by_link = self._by_link
        for pair in self.unsettled.items():
            link = pair[1].holder
            pairs = by_link.get(link)
            if pairs is None:
                by_link[link] = [pair]
            else:
                pairs.append(pair)
        self.connection.host.runtime.work_left -= len(self.unsettled) >> 4
        self.unsettled = {}
