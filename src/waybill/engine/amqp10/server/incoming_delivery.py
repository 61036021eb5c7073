"""The delivery that a link receives: checks of its transfers, its pieces, and the outcome for its sender."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from waybill.engine.amqp10.server.faults import link_fault
from waybill.engine.amqp10.server.link_host import LinkHost
from waybill.engine.amqp10.server.transaction import LinkTransaction, Posted
from waybill.engine.amqp10.termini import Terminus
from waybill.wire.amqp10 import descriptors
from waybill.wire.amqp10.composite import Composite
from waybill.wire.amqp10.disposition import decode_state
from waybill.wire.amqp10.error import ILLEGAL_STATE, INVALID_FIELD, NOT_IMPLEMENTED, RESOURCE_LIMIT_EXCEEDED, Error
from waybill.wire.amqp10.messaging import Accepted
from waybill.wire.amqp10.performatives import (
    DELIVERY_TAG_LIMIT,
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    SENDER_MIXED,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
    Attach,
)
from waybill.wire.amqp10.transfer import TransferFacts

NO_DELIVERY: Final = -1


class IncomingDelivery:
    """The current delivery of one link, and its settlement modes.

    `is_settled`: the sender has settled it, so it gets no outcome. `settles_second`: the sender settles it after us, so
    we remember its outcome until then. `pieces`: the received parts of a delivery in several transfers. `resumes_only`:
    the link takes no new deliveries.
    """

    def __init__(self, session: LinkHost, attach: Attach, terminus: Terminus, *, keeps_tag: bool) -> None:
        self.session = session
        self.connection = session.connection
        self.terminus = terminus
        self.number: i64 = NO_DELIVERY
        self.tag = b""
        self.is_settled = False
        self.settles_second = False
        self.transaction: LinkTransaction | None = None
        self.pieces: BytesWriter | None = None
        self.link_settles_second = attach.rcv_settle_mode == RECEIVER_SECOND
        self.resumes_only = False
        self._keeps_tag = keeps_tag
        self._sender_mode: i64 = attach.snd_settle_mode
        self._message_format: i64 = 0
        self._held: i64 = 0

    # --- transfers ---

    def find_transaction(self, data: bytes, facts: TransferFacts) -> None:
        """Call this first: an error of a delivery concerns its transaction too (4.4.4.1)."""
        self.transaction = None
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            state = decode_state(data, facts.state_start, facts.state_end)
            self.transaction = self.connection.transactions.of_state(state)

    def begin(self, data: bytes, facts: TransferFacts) -> None:
        """The first transfer of a delivery. Raises a link fault."""
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
            raise link_fault(NOT_IMPLEMENTED, f"message-format {facts.message_format} is not supported")
        self.number = facts.delivery_id
        self.is_settled = facts.settled == 1
        self.settles_second = self.link_settles_second and facts.rcv_settle_mode != RECEIVER_FIRST
        if facts.more or facts.resume or self.link_settles_second or self._keeps_tag:
            self.tag = data[facts.tag : facts.tag_end]
            self._message_format = facts.message_format

    def go_on(self, data: bytes, facts: TransferFacts) -> None:
        """A later transfer: fields that it repeats must equal those of the first (2.7.5). Raises a link fault."""
        if facts.delivery_id >= 0 and facts.delivery_id != self.number:
            raise link_fault(INVALID_FIELD, "a delivery begins before the one before it is complete")
        if facts.tag >= 0 and data[facts.tag : facts.tag_end] != self.tag:
            raise link_fault(INVALID_FIELD, "the delivery-tag changes within a delivery")
        if facts.message_format >= 0 and facts.message_format != max(self._message_format, 0):
            raise link_fault(INVALID_FIELD, "the message-format changes within a delivery")
        if facts.rcv_settle_mode >= 0:
            self._check_receiver_mode(facts.rcv_settle_mode)
            if (facts.rcv_settle_mode == RECEIVER_SECOND) != self.settles_second:
                raise link_fault(INVALID_FIELD, "the rcv-settle-mode changes within a delivery")
        if self._sender_mode != SENDER_MIXED:
            self._check_sender_mode(facts)
        if facts.state == descriptors.TRANSACTIONAL_STATE:
            # 4.4.1: "all frames MUST be explicitly associated with the same transaction"; the first one rules.
            state = decode_state(data, facts.state_start, facts.state_end)
            if self.connection.transactions.of_state(state) is not self.transaction:
                raise link_fault(INVALID_FIELD, "the transaction changes within a delivery")
        if facts.settled == 1:
            self.is_settled = True

    def _check_receiver_mode(self, mode: i64) -> None:
        """2.7.5: a link of rcv-settle-mode first has no delivery of mode second."""
        if mode > RECEIVER_SECOND:
            raise link_fault(INVALID_FIELD, f"{mode} is not an rcv-settle-mode")
        if mode == RECEIVER_SECOND and not self.link_settles_second:
            raise link_fault(INVALID_FIELD, "a transfer asks for rcv-settle-mode second on a link of mode first")

    def _check_sender_mode(self, facts: TransferFacts) -> None:
        """2.7.5: at least one transfer of each delivery is settled, or none is, as negotiated."""
        if facts.resume or facts.aborted:
            # It ends a delivery that was unsettled, as in the examples of 3.4.6.
            return
        if self._sender_mode == SENDER_UNSETTLED and facts.settled == 1:
            raise link_fault(INVALID_FIELD, "a settled transfer on a link of snd-settle-mode unsettled")
        if (
            self._sender_mode == SENDER_SETTLED
            and facts.settled != 1
            and not (self.is_settled and self.pieces is not None)
            and not facts.more
        ):
            raise link_fault(INVALID_FIELD, "an unsettled delivery on a link of snd-settle-mode settled")

    def begin_pieces(self, pieces: BytesWriter) -> None:
        """The delivery takes several transfers. `pieces`: the existing part of a resumed one."""
        self.pieces = pieces
        if self.transaction is not None:
            self.transaction.partial_count += 1

    def add_piece(self, pieces: BytesWriter, piece: bytes) -> None:
        """Raises a link fault if the node has no memory for it."""
        size = len(piece)
        if not self.connection.held.add(size):
            raise link_fault(RESOURCE_LIMIT_EXCEEDED, self.connection.held.refusal())
        self._held += size
        pieces.write(piece)

    def end_pieces(self) -> None:
        """The delivery is complete, or its rest will not arrive."""
        self.connection.held.give_back(self._held)
        self._held = 0
        if self.pieces is not None and self.transaction is not None:
            self.transaction.partial_count -= 1
        self.pieces = None

    def fail_transaction(self, error: Error) -> None:
        """4.4.4.1: a transaction with a delivery that cannot be processed must not be committed."""
        if self.transaction is not None:
            self.transaction.fail(error)

    # --- outcomes ---

    def accept(self) -> None:
        """Tell the sender that the message is accepted, once it is durable."""
        if self.settles_second:
            self.terminus.settling[self.tag] = self.number
        self.session.accepted_runs.add(self.number, settles=not self.settles_second)

    def tell(self, outcome: bytes) -> None:
        """Send an outcome other than `accepted` to the sender, immediately."""
        if self.settles_second:
            self.terminus.settling[self.tag] = self.number
            self.terminus.outcomes[self.tag] = outcome
        self.session.send_outcome(self.number, outcome, settled=not self.settles_second)

    def tell_provisional(self, transaction: LinkTransaction, outcome: Composite) -> None:
        """Tell the sender of the outcome that a commit will give (4.4.1).

        A sender that settles second hears of it again only if it resumes the link.
        """
        state = transaction.state(outcome)
        if self.settles_second:
            self.terminus.settling[self.tag] = self.number
            self.terminus.outcomes[self.tag] = state
            is_accepted = isinstance(outcome, Accepted)
            transaction.post(Posted(self.terminus, self.tag, b"" if is_accepted else outcome.encode()))
        self.session.send_outcome(self.number, state, settled=not self.settles_second)

    def refuse(self, outcome: Composite) -> None:
        """Tell the sender that no queue gets the message."""
        if self.transaction is None:
            self.tell(outcome.encode())
        else:
            self.tell_provisional(self.transaction, outcome)
