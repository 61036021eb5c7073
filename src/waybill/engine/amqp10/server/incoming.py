"""A link by which the peer sends: takes its transfers, and publishes each whole delivery to the link's target.

`take_transfer` runs once a frame and `publish` once a message. The content stays one slice that is never decoded. The
route of a fixed address is kept until a binding changes.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.amqp10.lifetime import DYNAMIC_PREFIX
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.credit import LinkCredit
from waybill.engine.amqp10.server.faults import Fault, link_fault
from waybill.engine.amqp10.server.incoming_delivery import IncomingDelivery
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.properties import PropertyFacts, scan_properties
from waybill.engine.amqp10.server.refusals import Refusals
from waybill.engine.amqp10.server.shape import TransferShape
from waybill.engine.amqp10.server.strict import check_annotations, would_lose
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.server.transaction import LinkTransaction
from waybill.engine.amqp10.server.unsettled_map import forget_settling, position_in
from waybill.engine.amqp10.termini import LINK_DETACHED, LinkEnd, Terminus
from waybill.model.binding import QUEUE
from waybill.model.entry import Entry
from waybill.model.errors import ModelError
from waybill.model.footprint import LINK_BYTES
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.routing import Route
from waybill.model.runtime import BYTES_PER_UNIT
from waybill.model.transaction import publish_units
from waybill.model.watch import Watcher
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.disposition import decode_state
from waybill.wire.amqp10.error import (
    DETACH_FORCED,
    ILLEGAL_STATE,
    MESSAGE_SIZE_EXCEEDED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    TRANSACTION_UNKNOWN_ID,
    TRANSFER_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    Error,
)
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import DURABLE_UNSETTLED_STATE, Accepted
from waybill.wire.amqp10.performatives import Attach, Detach, Flow
from waybill.wire.amqp10.sections import MessageFacts, scan_message
from waybill.wire.amqp10.transfer import TransferFacts

LOOK_EVERY: Final = 63
"""All unsettled outcomes of the connection are counted once in so many deliveries, less one."""
PARTIAL_LIMIT: Final = 1 << 20
"""Of a larger message nothing is kept while its link is detached: the peer sends it again from its beginning."""


class IncomingLink(LinkEnd):
    """`peer_handle` is the peer's handle of the link, `handle` ours. `is_attached` turns False for good."""

    def __init__(
        self,
        session: LinkHost,
        attach: Attach,
        handle: i64,
        target: TargetNode,
        terminus: Terminus,
        *,
        publishes: bool = True,
    ) -> None:
        connection = session.connection
        limits = connection.host.limits
        self.session: LinkHost = session
        self.connection = connection
        self.name = attach.name
        self.peer_handle: i64 = attach.handle
        self.handle: i64 = handle
        self.target = target
        self.is_attached = True
        self.max_message_size: i64 = limits.message_size_max
        self.terminus = terminus
        self.credit = LinkCredit(session, handle, attach.initial_delivery_count or 0, target, waits=publishes)
        self.delivery = IncomingDelivery(session, attach, terminus, keeps_tag=target.is_anonymous)
        self.refusals = Refusals(self.delivery, attach.source)
        connection.held.attach(LINK_BYTES)
        self._publishes = publishes
        self._properties = PropertyFacts()
        self._shape = TransferShape()
        self._is_strict = limits.is_strict_amqp10
        self._watch = _Deletion(self)
        if target.node_kind == QUEUE and not target.node_name.startswith(DYNAMIC_PREFIX):
            # The deletion of an exchange or a dynamic node shows with the next transfer, as in RabbitMQ 4: its clients
            # delete these while they still send to them.
            connection.virtual_host.watchers.add(QUEUE, target.node_name, self._watch)

    def take_flow(self, flow: Flow) -> None:
        self.credit.take_flow(flow)

    # --- transfers ---

    @property
    def is_partial(self) -> bool:
        """Whether the present delivery is not complete."""
        return self.delivery.pieces is not None

    def take_transfer(self, data: bytes, facts: TransferFacts, end: i64) -> None:
        """Raises a fault, or an error of the model."""
        delivery = self.delivery
        pieces = delivery.pieces
        if pieces is None:
            self._begin_delivery(data, facts)
            if facts.resume:
                if self._is_decided(data, facts):
                    return
                pieces = self._resumed_pieces(data, facts)
            elif not facts.more and not facts.aborted:
                self._complete(data, facts.payload, end)
                return
            else:
                pieces = BytesWriter()
            delivery.begin_pieces(pieces)
        else:
            delivery.go_on(data, facts)
        if facts.aborted:
            delivery.end_pieces()
            self.credit.use()
            return
        if len(pieces) + end - facts.payload > self.max_message_size:
            raise self._too_big()
        delivery.add_piece(pieces, data[facts.payload : end])
        if not facts.more:
            delivery.end_pieces()
            content = pieces.getvalue()
            self.connection.host.runtime.work_left -= len(content) // BYTES_PER_UNIT
            self._complete(content, 0, len(content))

    def take_alike(self, data: bytes, start: i64, end: i64) -> bool:
        """Take a transfer that looks like the last one, with a message that does; False if it is another kind.

        Raises what `take_transfer` does.
        """
        shape = self._shape
        payload = shape.match_transfer(data, start, end)
        credit = self.credit
        delivery = self.delivery
        if payload < 0 or delivery.pieces is not None or credit.left <= 0:
            return False
        content = shape.match_message(data, payload, end)
        if content < 0:
            return False
        route = self.target.route
        if route is None or route.epoch != self.connection.virtual_host.epoch or route.by_headers:
            return False
        if end - payload > self.max_message_size:
            raise self._too_big()
        delivery.number = shape.delivery_id
        delivery.is_settled = shape.is_settled
        delivery.transaction = None
        message = Message(
            AMQP10,
            data[content:end],
            route.address,
            shape.durable,
            shape.priority,
            NO_TTL,
            self.connection.host.runtime.now,
        )
        if route.queues:
            self._give(route.queues, message)
        else:
            self.refusals.not_routed()
        credit.use()
        return True

    def learn(self, data: bytes, start: i64, facts: TransferFacts) -> None:
        """Remember the shape of the transfer that was just taken, and of its message."""
        if self._publishes and not self.delivery.link_settles_second and not self._is_strict:
            self._shape.learn(data, start, facts, self.connection.message_facts)

    def _begin_delivery(self, data: bytes, facts: TransferFacts) -> None:
        delivery = self.delivery
        delivery.find_transaction(data, facts)
        delivery.begin(data, facts)
        if not self.credit.allows_delivery:
            raise link_fault(TRANSFER_LIMIT_EXCEEDED, "more deliveries than the link-credit allows")
        if delivery.settles_second and len(self.terminus.settling) & LOOK_EVERY == LOOK_EVERY:
            limit = self.connection.host.limits.settling_per_connection_max
            if self.connection.settling_count() >= limit:
                raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"{limit} deliveries have their outcome and are not settled")

    def _is_decided(self, data: bytes, facts: TransferFacts) -> bool:
        """Whether a resumed delivery is aborted, or has its outcome (3.4.6): then nothing of it follows."""
        terminus = self.terminus
        delivery = self.delivery
        is_outcome = descriptors.ACCEPTED <= facts.state <= descriptors.MODIFIED
        if not facts.aborted and not is_outcome:
            return False
        if terminus.partial_tag == delivery.tag:
            terminus.keep_partial(b"", b"")
        forget_settling(terminus, delivery.tag)
        if is_outcome and not facts.aborted and not delivery.is_settled:
            # The sender's outcome counts, whatever ours was: repeat it, and settle.
            self.session.send_outcome(delivery.number, data[facts.state_start : facts.state_end])
        self.credit.use()
        return True

    def _resumed_pieces(self, data: bytes, facts: TransferFacts) -> BytesWriter:
        """The part of a resumed delivery that we have, up to the position where the peer continues."""
        terminus = self.terminus
        state = decode_state(data, facts.state_start, facts.state_end) if facts.state else None
        partial = terminus.partial if terminus.partial_tag == self.delivery.tag else b""
        position = position_in(partial, state)
        if position < 0:
            raise link_fault(ILLEGAL_STATE, "a delivery is resumed beyond the part that was received")
        terminus.keep_partial(b"", b"")
        pieces = BytesWriter()
        pieces.write(partial[: int(position)])
        return pieces

    def _too_big(self) -> Fault:
        return link_fault(
            MESSAGE_SIZE_EXCEEDED, f"a message is larger than the max-message-size of {self.max_message_size} octets"
        )

    def _complete(self, data: bytes, start: i64, end: i64) -> None:
        """Take a whole message."""
        if end - start > self.max_message_size:
            raise self._too_big()
        delivery = self.delivery
        if delivery.settles_second and delivery.tag in self.terminus.settling:
            # It has its outcome, and its sender does not know (exactly-once): tell it again.
            outcome = self.terminus.outcomes.get(delivery.tag)
            if outcome is None:
                delivery.accept()
            else:
                delivery.tell(outcome)
        else:
            try:
                self.publish(data, start, end)
            except DecodeError as error:
                raise link_fault(DecodeError.condition, str(error)) from None
        self.credit.use()

    # --- publishing ---

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Publish one message. Raises `DecodeError`, a fault, or an error of the model."""
        connection = self.connection
        facts = connection.message_facts
        content = self._content(data, start, end, facts)
        ttl_ms: i64 = facts.ttl if facts.ttl >= 0 else NO_TTL
        found = self._properties
        if facts.properties >= 0:
            scan_properties(data, facts.properties, facts.properties_end, found)
            if found.is_special:
                ttl_ms = self._use_properties(data, found, ttl_ms)
        else:
            found.clear()
        route = self.target.route
        if route is None or route.epoch != connection.virtual_host.epoch:
            route = self._find_route(data, found)
            if route is None:
                return
        message = Message(
            AMQP10, content, route.address, facts.durable, facts.priority, ttl_ms, connection.host.runtime.now
        )
        queues = route.queues
        if route.by_headers or facts.message_annotations >= 0:
            queues = self.target.match(route, message)
        route.exchange.routed(1, len(queues))
        if not queues:
            connection.host.runtime.counters.unroutable += 1
            self.refusals.not_routed()
        elif self._is_strict and would_lose(queues, message):
            self.refusals.not_durable()
        else:
            self._give(queues, message)

    def _content(self, data: bytes, start: i64, end: i64, facts: MessageFacts) -> bytes:
        """The part of a message that is stored: all but its header and the annotations for this hop."""
        scan_message(data, start, end, facts)
        if facts.delivery_annotations >= 0:
            start = facts.delivery_annotations_end
        elif facts.header >= 0:
            start = facts.header_end
        if facts.body_kind < 0:
            raise DecodeError("a message without a body")
        if self._is_strict:
            check_annotations(data, facts)
        return data[start:end]

    def _use_properties(self, data: bytes, found: PropertyFacts, ttl_ms: i64) -> i64:
        """Check the user-id. Returns the shorter of `ttl_ms` and the time until absolute-expiry-time."""
        if found.user_id >= 0:
            self._check_user_id(data[found.user_id : found.user_id_end])
        if found.expiry_ms >= 0:
            left = max(found.expiry_ms - i64(int(self.connection.host.runtime.now * 1000.0)), 0)
            if ttl_ms == NO_TTL or left < ttl_ms:
                return left
        return ttl_ms

    def _check_user_id(self, claimed: bytes) -> None:
        user = self.connection.user
        if claimed and claimed != user.name.encode() and "impersonator" not in user.tags:
            raise link_fault(
                UNAUTHORIZED_ACCESS,
                f"user_id property set to '{claimed.decode('utf-8', 'replace')}' but authenticated user was "
                f"'{user.name}'",
            )

    def _find_route(self, data: bytes, found: PropertyFacts) -> Route | None:
        """The route of a message that has no known one; None if it was refused."""
        try:
            return self.target.route_of(data, found)
        except ModelError as error:
            if not self.target.is_anonymous:
                raise
            self.refusals.not_addressed(error)
            return None

    def _give(self, queues: list[Queue], message: Message) -> None:
        """Publish to these queues and tell the sender of the outcome."""
        delivery = self.delivery
        if delivery.transaction is not None:
            self._post(delivery.transaction, queues, message)
            return
        if delivery.settles_second and self.terminus.durable == DURABLE_UNSETTLED_STATE:
            # A crash between the two would leave a message without its tag, which the peer then sends again, or a tag
            # that says `accepted` for a lost message. A message that one queue refuses is also in other queues, or
            # among dead letters.
            with self.connection.host.runtime.messages.atomic():
                is_taken = self._publish_to(queues, message)
                if not delivery.is_settled:
                    self.terminus.termini.keep_delivery(self.terminus, delivery.tag, is_accepted=is_taken)
        else:
            is_taken = self._publish_to(queues, message)
        if delivery.is_settled:
            return
        if is_taken:
            delivery.accept()
        else:
            self.refusals.queue_full()

    def _publish_to(self, queues: list[Queue], message: Message) -> bool:
        """False if a full queue refuses the message."""
        is_taken = True
        self.connection.host.runtime.work_left -= len(queues)
        needs_commit = message.durable
        location: i64 = 0
        for queue in queues:
            result = queue.publish(message, location)
            if result == REFUSED:
                is_taken = False
            else:
                location = result
            if not needs_commit and queue.stores_transient:
                needs_commit = True
        if needs_commit and is_taken and not self.delivery.is_settled:
            self.session.accepted_runs.wait_for_commit()
        return is_taken

    def _post(self, transaction: LinkTransaction, queues: list[Queue], message: Message) -> None:
        """Hold a message for its transaction, and tell the outcome of a commit (4.4.1)."""
        limit = self.connection.host.runtime.configured_limit_bytes
        if transaction.size + message.size > limit:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"a transaction holds more than {limit >> 20} MiB of messages")
        if transaction.is_over:
            raise link_fault(TRANSACTION_UNKNOWN_ID, "the transaction was discharged before its delivery was complete")
        if not transaction.add_units(publish_units(queues, message)):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, transaction.too_large().description or "")
        self.connection.host.runtime.work_left -= 1
        if not transaction.hold(message.size):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, self.connection.held.refusal())
        transaction.publish(queues, message)
        if not self.delivery.is_settled:
            self.delivery.tell_provisional(transaction, Accepted())

    # --- the end ---

    def detach(self, error: Error | None, *, closed: bool = True) -> None:
        """Detach from our side. What comes by the link until the peer's detach is dropped."""
        if self.session.remove_incoming(self.peer_handle):
            self.detached(LINK_DETACHED, closed=closed)
            self.session.report_detach(self.name, error)
            self.session.accepted_runs.send_after(Detach(handle=int(self.handle), closed=closed, error=error))
        elif not self.session.is_open:
            self.detached(LINK_DETACHED, closed=closed)

    def detached(self, event: int, *, closed: bool) -> None:
        """The link was detached. The terminus keeps the received part of an incomplete delivery."""
        if not self.is_attached:
            return
        self.is_attached = False
        self.credit.close()
        self.connection.held.detach(LINK_BYTES)
        if self.target.node_kind == QUEUE:
            self.connection.virtual_host.watchers.remove(QUEUE, self.target.node_name, self._watch)
        terminus = self.terminus
        delivery = self.delivery
        pieces = delivery.pieces
        if pieces is not None:
            delivery.fail_transaction(Error(DETACH_FORCED, "a link was detached before its delivery was complete"))
        delivery.end_pieces()
        if pieces is not None and 0 < len(pieces) <= PARTIAL_LIMIT:
            terminus.keep_partial(delivery.tag, pieces.getvalue())
        for tag in terminus.settling:
            terminus.settling[tag] = -1
        if closed:
            terminus.destroy()
        elif not terminus.detached(event):
            self.session.suspended.append(terminus)

    def give_up(self, entries: list[Entry], terminus: Terminus) -> None:
        terminus.let_go()


class _Deletion(Watcher):
    """Notifies the link immediately that its target was deleted."""

    def __init__(self, link: IncomingLink) -> None:
        self._link = link

    def node_gone(self, kind: str, name: str) -> None:
        self._link.detach(Error(RESOURCE_DELETED, f"{kind} '{name}' was deleted"))
