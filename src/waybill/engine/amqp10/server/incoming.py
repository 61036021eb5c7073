"""A link by which the peer sends: credit out, transfers in, each whole delivery published to the link's target.

`take_transfer` runs once a frame and `publish` once a message. The content is kept in one slice, without being decoded;
the route of a fixed address stays as long as no binding changes.
"""

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.amqp10.lifetime import DYNAMIC_PREFIX
from waybill.engine.amqp10.message_format import AMQP10
from waybill.engine.amqp10.server.faults import Fault, fault_of, link_fault
from waybill.engine.amqp10.server.outcomes import REJECTED, RELEASED
from waybill.engine.amqp10.server.properties import PropertyFacts, scan_properties
from waybill.engine.amqp10.server.resume import forget_settling, position_in
from waybill.engine.amqp10.server.shape import TransferShape
from waybill.engine.amqp10.server.strict import NOT_DURABLE, check_annotations, would_lose
from waybill.engine.amqp10.server.target import TargetNode
from waybill.engine.amqp10.server.transaction import LinkTransaction, Posted
from waybill.engine.amqp10.termini import QUEUE_FULL, LinkEnd, Terminus
from waybill.model.binding import QUEUE
from waybill.model.entry import Entry
from waybill.model.errors import ModelError
from waybill.model.footprint import LINK_BYTES
from waybill.model.message import NO_TTL, Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.routing import Route
from waybill.model.timers import Timer
from waybill.model.transaction import publish_units
from waybill.model.watch import Watcher
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.disposition import RELEASED_STATE, decode_state
from waybill.wire.amqp10.error import (
    DETACH_FORCED,
    ILLEGAL_STATE,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    STOLEN,
    TRANSACTION_UNKNOWN_ID,
    TRANSFER_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    Error,
)
from waybill.wire.amqp10.errors import DecodeError
from waybill.wire.amqp10.messaging import DURABLE_UNSETTLED_STATE, Accepted, Rejected, Released, Source
from waybill.wire.amqp10.performatives import (
    DELIVERY_TAG_LIMIT,
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    SENDER_MIXED,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
    Attach,
    Flow,
)
from waybill.wire.amqp10.sections import MessageFacts, scan_message
from waybill.wire.amqp10.transfer import TransferFacts

if TYPE_CHECKING:
    from waybill.engine.amqp10.server.session import Session

CREDIT: Final = 1024
WRAP: Final = 0xFFFFFFFF
NO_DELIVERY: Final = -1
DELIVERY_TAG: Final = "delivery-tag"
NO_ROUTE: Final = "no queue takes the message"
OUTRUN_PAUSE_S: Final = 0.01
OUTRUN: Final = 4096
LOOK_EVERY: Final = 63


class IncomingLink(Timer):
    """`peer_handle` is the peer's number for the link, `handle` ours. `delivery_count` is the sender's, modulo 2^32."""

    def __init__(self, session: "Session", attach: Attach, handle: i64, target: TargetNode, terminus: Terminus) -> None:
        self.session: Session = session
        self.connection = session.connection
        self.name = attach.name
        self.peer_handle: i64 = attach.handle
        self.handle: i64 = handle
        self.target = target
        self.settles_second = attach.rcv_settle_mode == RECEIVER_SECOND
        self.is_attached = True
        self.delivery_count: i64 = attach.initial_delivery_count or 0
        self.credit: i64 = 0
        # What the peer may have sent before it learns that its credit was taken back.
        self._taken_back: i64 = 0
        self.max_message_size: i64 = self.connection.host.limits.message_size_max
        self.terminus = terminus
        self.connection.held.attach(LINK_BYTES)
        self.end = _IncomingEnd(self)
        self._pieces: BytesWriter | None = None
        self._held: i64 = 0
        self._delivery_id: i64 = NO_DELIVERY
        self._tag = b""
        self._is_settled = False
        # Whether the present delivery is settled second, which it may decline on a link that does.
        self._waits = False
        self._message_format: i64 = 0
        self.resumes_only = False
        source = attach.source
        outcomes: tuple[str, ...] = ()
        if isinstance(source, COMPOSITE) and isinstance(source, Source):
            outcomes = source.outcomes
        self.lists_rejected = REJECTED in outcomes
        # Of a source that lists nothing all is expected.
        self._may_reject = self.lists_rejected or not outcomes
        self._may_release = RELEASED in outcomes or not outcomes
        self._sender_mode: i64 = attach.snd_settle_mode
        self._transaction: LinkTransaction | None = None
        self._properties = PropertyFacts()
        self._shape = TransferShape()
        self._is_pausing = False
        self._is_strict = self.connection.host.limits.is_strict_amqp10
        self._watch = _Deletion(self)
        if target.node_kind == QUEUE and not target.node_name.startswith(DYNAMIC_PREFIX):
            # Of an exchange or a dynamic node it hears with its next transfer, as in RabbitMQ 4, whose clients delete
            # these under it.
            self.connection.virtual_host.watchers.add(QUEUE, target.node_name, self._watch)

    # --- credit ---

    def grant(self) -> None:
        """Let the peer send, unless publishers must wait (`Host.alarm`) or outrun the consumers."""
        if not self.is_attached:
            return
        host = self.connection.host
        if host.alarm:
            return
        if self.target.is_outrunning(OUTRUN):
            if not self._is_pausing:
                self._is_pausing = True
                host.runtime.timers.schedule(host.runtime.now + OUTRUN_PAUSE_S, self)
            return
        self._restore_credit()
        self.send_flow()

    def _restore_credit(self) -> None:
        self.credit = CREDIT
        self._taken_back = 0

    def fire(self, now: float) -> None:
        self._is_pausing = False
        if self.is_attached and not self.connection.host.alarm:
            # After the pause credit is due whatever the queue looks like: it holds back, it never stops.
            self._restore_credit()
            self.send_flow()

    def send_flow(self) -> None:
        self.session.send_flow(self.handle, self.delivery_count, self.credit)

    def alarm_changed(self) -> None:
        if self.connection.host.alarm:
            self._taken_back += self.credit
            self.credit = 0
            self.send_flow()
        else:
            self.grant()

    def take_flow(self, flow: Flow) -> None:
        """The sender's view. What it skipped of its credit is gone (2.6.7)."""
        if flow.delivery_count is not None:
            count: i64 = flow.delivery_count
            skipped = (count - self.delivery_count) & WRAP
            if 0 < skipped <= self.credit + self._taken_back:
                self.credit = max(self.credit - skipped, 0)
                self.delivery_count = count
                if self.credit < CREDIT // 2:
                    self.grant()
        if flow.echo:
            self.send_flow()

    # --- transfers ---

    @property
    def is_partial(self) -> bool:
        """Whether more transfers of the delivery that has begun are awaited."""
        return self._pieces is not None

    def take_transfer(self, data: bytes, facts: TransferFacts, end: i64) -> None:
        """Raises a fault, or what the model refuses."""
        pieces = self._pieces
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
            self._pieces = pieces
            if self._transaction is not None:
                self._transaction.partial_count += 1
        else:
            self._check_continuation(data, facts)
            if facts.settled == 1:
                self._is_settled = True
        if facts.aborted:
            self._end_pieces()
            self._use_credit()
            return
        if len(pieces) + end - facts.payload > self.max_message_size:
            raise self._too_big()
        size = end - facts.payload
        if not self.connection.held.add(size):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, self.connection.held.refusal())
        self._held += size
        pieces.write(data[facts.payload : end])
        if not facts.more:
            self._end_pieces()
            content = pieces.getvalue()
            self._complete(content, 0, len(content))

    def _end_pieces(self) -> None:
        """Nothing more is awaited of the delivery."""
        self.connection.held.give_back(self._held)
        self._held = 0
        if self._pieces is not None and self._transaction is not None:
            self._transaction.partial_count -= 1
        self._pieces = None

    def fail_transaction(self, error: Error) -> None:
        """4.4.4.1: a delivery that cannot be processed must keep its transaction from being committed."""
        if self._transaction is not None:
            self._transaction.fail(error)

    def take_alike(self, data: bytes, start: i64, end: i64) -> bool:
        """Take a transfer that looks like the last one, with a message that does; False if it is another kind.

        Raises what `take_transfer` does.
        """
        shape = self._shape
        payload = shape.match_transfer(data, start, end)
        if payload < 0 or self._pieces is not None or self.credit <= 0:
            return False
        content = shape.match_message(data, payload, end)
        if content < 0:
            return False
        route = self.target.route
        if route is None or route.epoch != self.connection.virtual_host.epoch or route.by_headers:
            return False
        if end - payload > self.max_message_size:
            raise self._too_big()
        self._delivery_id = shape.delivery_id
        self._is_settled = shape.is_settled
        self._transaction = None
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
            self._not_routed()
        self.delivery_count = (self.delivery_count + 1) & WRAP
        self.credit -= 1
        if self.credit < CREDIT // 2:
            self.grant()
        return True

    def learn(self, data: bytes, start: i64, facts: TransferFacts) -> None:
        """Remember what the transfer just taken looked like, and its message."""
        if not self.settles_second and not self._is_strict:
            self._shape.learn(data, start, facts, self.connection.message_facts)

    def _begin_delivery(self, data: bytes, facts: TransferFacts) -> None:
        self._transaction = None
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            # Before all else: what goes wrong with the delivery is the transaction's affair too (4.4.4.1).
            state = decode_state(data, facts.state_start, facts.state_end)
            self._transaction = self.connection.transaction(state)
        if facts.delivery_id < 0:
            raise link_fault(INVALID_FIELD, "the first transfer of a delivery needs a delivery-id")
        if facts.tag < 0 or facts.tag_end - facts.tag > DELIVERY_TAG_LIMIT:
            raise link_fault(INVALID_FIELD, f"a delivery needs a delivery-tag of {DELIVERY_TAG_LIMIT} octets at most")
        if self.resumes_only and not facts.resume:
            # 2.7.3: it "MUST detach with an error", since the peer was not told of all that is unsettled.
            raise link_fault(ILLEGAL_STATE, "a new delivery on a link whose unsettled map was incomplete")
        if facts.rcv_settle_mode >= 0:
            self._check_receiver_mode(facts.rcv_settle_mode)
        if self._sender_mode != SENDER_MIXED:
            self._check_sender_mode(facts)
        if facts.message_format > 0:
            raise link_fault(NOT_IMPLEMENTED, f"message-format {facts.message_format}")
        if self.credit + self._taken_back <= 0:
            raise link_fault(TRANSFER_LIMIT_EXCEEDED, "more deliveries than the link-credit allows")
        self._delivery_id = facts.delivery_id
        self._is_settled = facts.settled == 1
        self._waits = self.settles_second and facts.rcv_settle_mode != RECEIVER_FIRST
        if self._waits and len(self.terminus.settling) & LOOK_EVERY == LOOK_EVERY:
            self._check_settling()
        if facts.more or facts.resume or self.settles_second or self.target.is_anonymous:
            self._tag = data[facts.tag : facts.tag_end]
            self._message_format = facts.message_format

    def _check_settling(self) -> None:
        """The sender settles what has its outcome, or cannot send for ever."""
        limit = self.connection.host.limits.settling_per_connection_max
        sessions = self.connection.sessions.values()
        if sum(len(link.terminus.settling) for other in sessions for link in other.incoming.values()) >= limit:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"{limit} deliveries have their outcome and are not settled")

    def _check_receiver_mode(self, mode: i64) -> None:
        """Asking for second is illegal on a link of first (2.7.5)."""
        if mode > RECEIVER_SECOND:
            raise link_fault(INVALID_FIELD, f"{mode} is no rcv-settle-mode")
        if mode == RECEIVER_SECOND and not self.settles_second:
            raise link_fault(INVALID_FIELD, "a transfer asks for rcv-settle-mode second on a link of first")

    def _check_sender_mode(self, facts: TransferFacts) -> None:
        """2.7.5: settled on one transfer of each delivery at least, or on none, if that was negotiated."""
        if facts.resume or facts.aborted:
            # The end of a delivery that was unsettled, as in the examples of 3.4.6.
            return
        if self._sender_mode == SENDER_UNSETTLED and facts.settled == 1:
            raise link_fault(INVALID_FIELD, "a settled transfer on a link of snd-settle-mode unsettled")
        if (
            self._sender_mode == SENDER_SETTLED
            and facts.settled != 1
            and not (self._is_settled and self._pieces is not None)
            and not facts.more
        ):
            raise link_fault(INVALID_FIELD, "an unsettled delivery on a link of snd-settle-mode settled")

    def _check_continuation(self, data: bytes, facts: TransferFacts) -> None:
        """2.7.5: what a transfer says again of its delivery must be what the first one said."""
        if facts.delivery_id >= 0 and facts.delivery_id != self._delivery_id:
            raise link_fault(INVALID_FIELD, "a delivery begins before the one before it is complete")
        if facts.tag >= 0 and data[facts.tag : facts.tag_end] != self._tag:
            raise link_fault(INVALID_FIELD, "the delivery-tag changes within a delivery")
        if facts.message_format >= 0 and facts.message_format != max(self._message_format, 0):
            raise link_fault(INVALID_FIELD, "the message-format changes within a delivery")
        if facts.rcv_settle_mode >= 0:
            self._check_receiver_mode(facts.rcv_settle_mode)
            if (facts.rcv_settle_mode == RECEIVER_SECOND) != self._waits:
                raise link_fault(INVALID_FIELD, "the rcv-settle-mode changes within a delivery")
        if self._sender_mode != SENDER_MIXED:
            self._check_sender_mode(facts)
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            # 4.4.1: "all frames MUST be explicitly associated with the same transaction"; the first one rules.
            state = decode_state(data, facts.state_start, facts.state_end)
            if self.connection.transaction(state) is not self._transaction:
                raise link_fault(INVALID_FIELD, "the transaction changes within a delivery")

    def _is_decided(self, data: bytes, facts: TransferFacts) -> bool:
        """Whether a resumed delivery is aborted, or has its outcome already (3.4.6): then nothing of it follows."""
        terminus = self.terminus
        is_outcome = descriptors.ACCEPTED <= facts.state <= descriptors.MODIFIED
        if not facts.aborted and not is_outcome:
            return False
        if terminus.partial_tag == self._tag:
            terminus.keep_partial(b"", b"")
        forget_settling(terminus, self._tag)
        if is_outcome and not facts.aborted and not self._is_settled:
            # The sender's outcome is the one, whatever ours was: say so, and be done with it.
            self.session.send_outcome(self._delivery_id, data[facts.state_start : facts.state_end])
        self._use_credit()
        return True

    def _resumed_pieces(self, data: bytes, facts: TransferFacts) -> BytesWriter:
        """What is there of a resumed delivery, up to where the peer goes on."""
        terminus = self.terminus
        state = decode_state(data, facts.state_start, facts.state_end) if facts.state else None
        partial = terminus.partial if terminus.partial_tag == self._tag else b""
        position = position_in(partial, state)
        if position < 0:
            raise link_fault(ILLEGAL_STATE, "a delivery is resumed beyond what came of it")
        terminus.keep_partial(b"", b"")
        pieces = BytesWriter()
        pieces.write(partial[: int(position)])
        return pieces

    def _use_credit(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & WRAP
        if self.credit > 0:
            self.credit -= 1
        else:
            self._taken_back -= 1
        if self.credit < CREDIT // 2:
            self.grant()

    def _too_big(self) -> Fault:
        return link_fault(
            MESSAGE_SIZE_EXCEEDED, f"a message is larger than the max-message-size of {self.max_message_size} octets"
        )

    def _complete(self, data: bytes, start: i64, end: i64) -> None:
        """A whole message is there."""
        if end - start > self.max_message_size:
            raise self._too_big()
        if self._waits and self._tag in self.terminus.settling:
            # It has its outcome already: its sender just does not know (exactly-once).
            outcome = self.terminus.outcomes.get(self._tag)
            if outcome is None:
                self.terminus.settling[self._tag] = self._delivery_id
                self.session.accepted(self._delivery_id, settles=False)
            else:
                self._tell(outcome)
            self._use_credit()
            return
        try:
            self.publish(data, start, end)
        except DecodeError as error:
            raise link_fault(DecodeError.condition, str(error)) from None
        self._use_credit()

    def publish(self, data: bytes, start: i64, end: i64) -> None:
        """Publish one message. Raises `DecodeError`, a fault, or what the model refuses."""
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
        if not queues:
            self._not_routed()
        elif self._is_strict and would_lose(queues, message):
            self._refuse_durable()
        else:
            self._give(queues, message)

    def _refuse_durable(self) -> None:
        """3.2.1: rejected if the source allows that, and can hear of it; a detach with the same error otherwise."""
        if self._is_settled or not self._may_reject:
            raise link_fault(PRECONDITION_FAILED, NOT_DURABLE.description or "")
        refusal = Rejected(NOT_DURABLE)
        self._refuse(refusal.encode(), refusal)

    def _content(self, data: bytes, start: i64, end: i64, facts: MessageFacts) -> bytes:
        """What is kept of a message: all but its header and the annotations for this hop."""
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
        """Check the user-id; the time to live that absolute-expiry-time leaves."""
        if found.user_id >= 0:
            self._check_user_id(data[found.user_id : found.user_id_end])
        if found.expiry_ms >= 0:
            left = max(found.expiry_ms - i64(int(self.connection.host.runtime.now * 1000.0)), 0)
            if ttl_ms == NO_TTL or left < ttl_ms:
                return left
        return ttl_ms

    def _give(self, queues: list[Queue], message: Message) -> None:
        """Publish to these queues, and have the outcome told."""
        if self._transaction is not None:
            self._post(self._transaction, queues, message)
            return
        if self._waits and self.terminus.durable == DURABLE_UNSETTLED_STATE:
            # A crash between the two would leave a message without its tag, which is then sent again, or a tag that
            # says `accepted` for a message that is lost. A message that one queue refuses is elsewhere too: in other
            # queues, or among dead letters.
            with self.connection.host.runtime.messages.atomic():
                is_taken = self._publish_to(queues, message)
                if not self._is_settled:
                    self.terminus.termini.keep_delivery(self.terminus, self._tag, is_accepted=is_taken)
        else:
            is_taken = self._publish_to(queues, message)
        if self._is_settled:
            return
        session = self.session
        if not is_taken:
            self._tell_full()
            return
        if self._waits:
            self.terminus.settling[self._tag] = self._delivery_id
        session.accepted(self._delivery_id, settles=not self._waits)

    def _tell_full(self) -> None:
        """A queue refuses: by an outcome that the source can give, or else by an error."""
        if self._may_reject:
            self._tell(QUEUE_FULL)
        elif self._may_release:
            self._tell(RELEASED_STATE)
        else:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, "a queue is full")

    def _publish_to(self, queues: list[Queue], message: Message) -> bool:
        """False if a queue is full and refuses."""
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
        if needs_commit and is_taken and not self._is_settled:
            self.session.needs_commit()
        return is_taken

    def _post(self, transaction: LinkTransaction, queues: list[Queue], message: Message) -> None:
        """Keep a message back for its transaction (4.4.1): the outcome told now is that of a commit."""
        limit = self.connection.host.runtime.configured_limit_bytes
        if transaction.size + message.size > limit:
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, f"a transaction holds more than {limit >> 20} MiB of messages")
        if transaction.is_over:
            raise link_fault(TRANSACTION_UNKNOWN_ID, "the transaction of the delivery was discharged before it came")
        if not transaction.add_units(publish_units(len(queues))):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, transaction.too_large().description or "")
        self.connection.host.runtime.work_left -= 1
        if not transaction.hold(message.size):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, self.connection.held.refusal())
        transaction.publish(queues, message)
        if not self._is_settled:
            self._tell_provisional(transaction, Accepted())

    def _tell_provisional(self, transaction: LinkTransaction, outcome: Composite) -> None:
        """The outcome of a commit (4.4.1). Who settles second is told of it again only by a resumed link."""
        state = transaction.state(outcome)
        if self._waits:
            self.terminus.settling[self._tag] = self._delivery_id
            self.terminus.outcomes[self._tag] = state
            is_accepted = isinstance(outcome, Accepted)
            transaction.post(Posted(self.terminus, self._tag, b"" if is_accepted else outcome.encode()))
        self.session.send_outcome(self._delivery_id, state, settled=not self._waits)

    def _find_route(self, data: bytes, found: PropertyFacts) -> Route | None:
        """The route of a message that is not known yet; None if its outcome is that it has none."""
        try:
            return self.target.route_of(data, found)
        except ModelError as error:
            if not self.target.is_anonymous:
                raise
            # The node is this message's affair, not the link's (anonymous terminus, 2.2.2).
            fault = fault_of(error)
            fault.info = {DELIVERY_TAG: self._tag}
            if self._is_settled and self._transaction is not None:
                # Nobody hears of a settled delivery, but the discharge must not succeed.
                self._transaction.fail(fault.error)
                return None
            if self._is_settled or not self.lists_rejected:
                raise fault from None
            refusal = Rejected(fault.error)
            self._refuse(refusal.encode(), refusal)
            return None

    def _not_routed(self) -> None:
        """As RabbitMQ 4: released, so that the sender knows that nobody has it."""
        if self._is_settled:
            return
        if self._may_release:
            self._refuse(RELEASED_STATE, Released())
        elif self.lists_rejected:
            refusal = Rejected(Error(NOT_FOUND, NO_ROUTE))
            self._refuse(refusal.encode(), refusal)
        else:
            raise link_fault(NOT_FOUND, NO_ROUTE)

    def _refuse(self, encoded: bytes, outcome: Composite) -> None:
        """No queue gets the message."""
        if self._transaction is None:
            self._tell(encoded)
        else:
            self._tell_provisional(self._transaction, outcome)

    def _tell(self, outcome: bytes) -> None:
        """Tell of an outcome other than `accepted`. Who settles second remembers it until the sender has settled."""
        if self._waits:
            self.terminus.settling[self._tag] = self._delivery_id
            self.terminus.outcomes[self._tag] = outcome
        self.session.send_outcome(self._delivery_id, outcome, settled=not self._waits)

    def _check_user_id(self, claimed: bytes) -> None:
        user = self.connection.user
        if claimed and claimed != user.name.encode() and "impersonator" not in user.tags:
            raise link_fault(
                UNAUTHORIZED_ACCESS,
                f"user_id property set to '{claimed.decode('utf-8', 'replace')}' but authenticated user was "
                f"'{user.name}'",
            )

    # --- settling ---

    def settling_among(self, first: i64, last: i64) -> list[bytes]:
        """The tags of the deliveries `first` to `last`, as far as they came by this link and are not forgotten."""
        count = (last - first) & WRAP
        settling = self.terminus.settling
        return [tag for tag, number in settling.items() if number >= 0 and (number - first) & WRAP <= count]

    def forget(self, tags: list[bytes]) -> None:
        """The sender settles these."""
        for tag in tags:
            forget_settling(self.terminus, tag)

    def detached(self, event: int, *, closed: bool) -> None:
        """The link is gone by an event. What came of a delivery that is not complete waits in the terminus."""
        if not self.is_attached:
            return
        self.is_attached = False
        self.connection.held.detach(LINK_BYTES)
        if self.target.node_kind == QUEUE:
            self.connection.virtual_host.watchers.remove(QUEUE, self.target.node_name, self._watch)
        terminus = self.terminus
        pieces = self._pieces
        if pieces is not None:
            self.fail_transaction(Error(DETACH_FORCED, "a link was detached before the whole of its delivery came"))
        self._end_pieces()
        if pieces is not None and 0 < len(pieces) <= PARTIAL_LIMIT:
            terminus.keep_partial(self._tag, pieces.getvalue())
        for tag in terminus.settling:
            terminus.settling[tag] = -1
        if closed:
            terminus.destroy()
        elif not terminus.detached(event):
            self.session.suspended.append(terminus)


class _Deletion(Watcher):
    """The link hears at once that its target is gone."""

    def __init__(self, link: IncomingLink) -> None:
        self._link = link

    def node_gone(self, kind: str, name: str) -> None:
        link = self._link
        link.session.detach_incoming(link, Error(RESOURCE_DELETED, f"{kind} '{name}' was deleted"))


class _IncomingEnd(LinkEnd):
    """The link, as its terminus sees it."""

    def __init__(self, link: IncomingLink) -> None:
        self._link = link

    def steal(self) -> None:
        link = self._link
        link.session.detach_incoming(link, Error(STOLEN, "the link was attached elsewhere"), closed=False)

    def take_away(self) -> None:
        link = self._link
        link.session.detach_incoming(link, Error(RESOURCE_DELETED, "the link was removed by an administrator"))

    def give_up(self, entries: list[Entry], terminus: Terminus) -> None:
        terminus.let_go()


PARTIAL_LIMIT: Final = 1 << 20
"""Of a message that is larger nothing is kept while its link is detached: it is sent again from its beginning."""
