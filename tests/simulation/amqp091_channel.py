"""The channel of a 0-9-1 client: what it published, what it holds, and what it knows of the settles that it sent."""

from dataclasses import dataclass
from typing import Final

from tests.simulation.actor import Habits
from tests.simulation.evidence import SettleEvidence
from tests.simulation.ledger import Ledger
from tests.simulation.message import Copy, Message, Transaction
from tests.simulation.queues import QueueSpec
from tests.simulation.stream_history import StreamReader
from tests.simulation.subscription import Subscription
from tests.simulation.violation import Violation
from waybill.wire.amqp091.methods_basic import BasicAck, BasicNack

ACK: Final = "ack"
REJECT: Final = "reject"
REQUEUE: Final = "requeue"


@dataclass
class Delivered:
    """A delivery that this client has not settled."""

    copy: Copy
    subscription: Subscription | None


class Channel:
    """`staged`: the outcomes that the transaction has collected, by delivery tag. `private`: its own queue, if any.

    `first_blocked_tag`: the first message that was published since the broker said that it takes none, 0 while it does.
    """

    def __init__(self, number: int, name: str, ledger: Ledger, habits: Habits) -> None:
        self.number = number
        self.name = name
        self.ledger = ledger
        self.habits = habits
        self.publish_tag = 0
        self.unconfirmed: dict[int, Message] = {}
        self.outstanding: dict[int, Delivered] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.subscriptions_made = 0
        self.readers: dict[str, StreamReader] = {}
        self.private: QueueSpec | None = None
        self.transaction: Transaction | None = None
        self.staged: dict[int, str] = {}
        self.may_publish = False
        self.may_settle = False
        self.first_blocked_tag = 0
        self.settles_at_question = 0
        self._newest_tag = 0
        self.settles = SettleEvidence(ledger)
        self._settles_at_publish: dict[int, int] = {}

    # --- publishing ---

    def published(self, message: Message, *, awaits_confirm: bool) -> None:
        if self.transaction is not None:
            self.transaction.messages.append(message)
            message.transaction = self.transaction
        elif awaits_confirm:
            self.publish_tag += 1
            self.unconfirmed[self.publish_tag] = message
            self._settles_at_publish[self.publish_tag] = self.settles.count

    @property
    def pending_count(self) -> int:
        """Messages without a confirm, or in a transaction that is open."""
        return len(self.unconfirmed) + (len(self.transaction.messages) if self.transaction is not None else 0)

    def missing_copies(self, now: float) -> list[Copy]:
        """Confirmed messages of its own queue that it has not settled, though nothing can have removed them."""
        if self.private is None:
            return []
        contents = self.ledger.contents[self.private.name]
        unsettled = [copy for copy in contents.copies if copy.message.is_confirmed and not copy.settle_sent]
        return [copy for copy in unsettled if not contents.reasons(copy, now)]

    def confirmed(self, method: BasicAck | BasicNack, now: float) -> None:
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self.unconfirmed if tag <= method.delivery_tag]
        for tag in tags:
            if tag not in self.unconfirmed:
                raise Violation("one confirm a message", f"{self.name}: {method}")
            if 0 < self.first_blocked_tag <= tag:
                raise Violation("nothing is taken from a blocked publisher", f"{self.name}: {method}")
            message = self.unconfirmed.pop(tag)
            settles = self._settles_at_publish.pop(tag)
            if isinstance(method, BasicNack):
                self.ledger.refuse(message)
                self.settles.are_processed(settles, now, durably=False)
                continue
            self.ledger.confirm(message, now)
            is_durable = any(copy.is_kept and not copy.may_be_gone for copy in message.copies.values())
            self.settles.are_processed(settles, now, durably=is_durable)

    # --- deliveries ---

    def took(self, copy: Copy, subscription: Subscription | None, tag: int) -> None:
        if tag != self._newest_tag + 1:
            raise Violation("delivery tags count up", f"{self.name}: {tag} after {self._newest_tag}")
        self._newest_tag = tag
        if subscription is not None and subscription.no_ack:
            copy.settle_sent = True
            return
        self.outstanding[tag] = Delivered(copy, subscription)
        if subscription is None:
            return
        shared = self.habits.shared_prefetch
        if 0 < shared < len(self.outstanding):
            raise Violation("credit holds", f"{self.name} has {len(self.outstanding)} of {shared}")
        held = [delivered for delivered in self.outstanding.values() if delivered.subscription is not None]
        self._check_octets(held, self.habits.shared_octets)
        own = [delivered for delivered in held if delivered.subscription is subscription]
        self._check_octets(own, self.habits.prefetch_octets)

    def _check_octets(self, held: list[Delivered], limit: int) -> None:
        """One message may be of any size."""
        size = sum(len(delivered.copy.message.body) for delivered in held)
        if len(held) > 1 and 0 < limit < size:
            raise Violation("credit holds", f"{self.name} has {size} octets of {limit}")

    def settleable(self, *, once_only: bool) -> list[int]:
        """The tags that may be settled now, oldest first. `once_only`: without those of streams, which stay."""
        if not self.may_settle:
            return []
        return [
            tag
            for tag, delivered in self.outstanding.items()
            if tag not in self.staged and not (once_only and delivered.copy.queue.is_stream)
        ]

    def settle(self, tag: int, outcome: str) -> None:
        """The client has sent an outcome for a delivery."""
        if self.transaction is not None:
            self.staged[tag] = outcome
            return
        copy = self.forget(tag).copy
        if copy.queue.is_stream or outcome == REQUEUE:
            return
        if outcome == REJECT and copy.queue.dead_letter_to is not None:
            copy.reject_sent = True
            return
        self.settles.sent(copy)

    def commit_staged(self) -> None:
        """A commit is being sent: from now on the outcomes may have been carried out."""
        transaction = self.transaction
        if transaction is None:
            return
        for tag, outcome in self.staged.items():
            copy = self.forget(tag).copy
            if copy.queue.is_stream or outcome == REQUEUE:
                continue
            if outcome == REJECT and copy.queue.dead_letter_to is not None:
                copy.reject_sent = True
            else:
                transaction.settled.append(copy)
        self.staged.clear()

    def forget(self, tag: int) -> Delivered:
        delivered = self.outstanding.pop(tag)
        if delivered.subscription is not None:
            delivered.subscription.outstanding -= 1
        return delivered

    # --- the end ---

    def unsubscribed(self, tag: str) -> None:
        self.readers.pop(tag, None)
        subscription = self.subscriptions.pop(tag)
        self.ledger.consumers.remove(subscription)
        if subscription.queue is self.private:
            self.private_ended()

    def private_ended(self) -> None:
        if self.private is not None:
            self.ledger.private_ended(self.private)
            self.private = None

    def ended(self) -> None:
        """The channel is gone, and its consumers with it."""
        for tag in list(self.subscriptions):
            self.unsubscribed(tag)
        self.private_ended()
        self.may_publish = self.may_settle = False
