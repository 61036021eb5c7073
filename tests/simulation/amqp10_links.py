"""The links of a 1.0 client: what it sent and what it holds, and what both ends must say of that when they meet again.

The unsettled deliveries of a link that resumes outlive its connection: they are in its `Sending` or `Holding`, which
the actor keeps by the link's name.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from tests.simulation.message import Copy, Message, Transaction
from tests.simulation.queues import QueueSpec
from tests.simulation.subscription import Subscription
from tests.simulation.violation import Violation
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.messaging import (
    DURABLE_UNSETTLED_STATE,
    EXPIRE_NEVER,
    EXPIRE_ON_SESSION_END,
    Received,
    Source,
    Target,
)
from waybill.wire.amqp10.performatives import (
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    ROLE_RECEIVER,
    ROLE_SENDER,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
    Attach,
    Transfer,
)
from waybill.wire.amqp10.sections import section_starts
from waybill.wire.amqp10.types import Described

if TYPE_CHECKING:
    from tests.simulation.amqp10_client import Client

States = dict[bytes, Composite | Described | None]
EXACTLY_ONCE: Final = "a delivery over a resumed link is stored once"
RESUMED: Final = "what both ends know is resumed, and nothing else"


@dataclass(eq=False)
class Sent:
    """A message that was sent, or a part of it: up to `offset`. `number`: its delivery-id on the present link.

    `settles_before`: how many settles this client had sent before it. `outcome`: what the broker has said, once it has.
    """

    message: Message
    tag: bytes
    payload: bytes
    number: int = -1
    offset: int = 0
    settles_before: int = 0
    outcome: Composite | None = None

    @property
    def is_whole(self) -> bool:
        return self.offset >= len(self.payload)


@dataclass
class Sending:
    """What the peer has not settled, and perhaps not received, in the order of sending."""

    unsettled: dict[bytes, Sent] = field(default_factory=dict)


@dataclass(eq=False)
class Taken:
    """A delivery that this client has. `state`: the outcome that it has sent. `is_staged`: that waits for a commit."""

    copy: Copy
    tag: bytes
    number: int
    state: Composite | None = None
    is_staged: bool = False
    is_acquired: bool = False


@dataclass
class Holding:
    """Deliveries that are not settled, by tag."""

    unsettled: dict[bytes, Taken] = field(default_factory=dict)


class SendingLink:
    """A link to a queue. With `resumes` it is exactly-once: the receiver settles second, both ends remember.

    `partial`: what is being sent, `opening`: its first transfer, unless that went already. `resuming`: what is to be
    gone on with, and how far the broker said that it has come.
    """

    def __init__(self, name: str, handle: int, queue: QueueSpec, sending: Sending, *, resumes: bool) -> None:
        self.name = name
        self.handle = handle
        self.queue = queue
        self.sending = sending
        self.resumes = resumes
        self.credit = 0
        self.delivery_count = 0
        self.partial: Sent | None = None
        self.opening: Transfer | None = None
        self.resuming: list[tuple[Sent, Composite | None]] = []
        self.is_attached = False

    def attach(self) -> Attach:
        states: States = {tag: sent.outcome for tag, sent in self.sending.unsettled.items()}
        return Attach(
            self.name,
            self.handle,
            ROLE_SENDER,
            SENDER_UNSETTLED if self.resumes else 2,
            RECEIVER_SECOND if self.resumes else RECEIVER_FIRST,
            Source(),
            Target(
                f"/queues/{self.queue.name}",
                DURABLE_UNSETTLED_STATE if self.resumes else 0,
                EXPIRE_NEVER if self.resumes else EXPIRE_ON_SESSION_END,
            ),
            states or None,
            initial_delivery_count=self.delivery_count,
        )

    def take_credit(self, delivery_count: int | None, credit: int) -> None:
        self.credit = max(credit - (self.delivery_count - (delivery_count or 0)), 0)

    @property
    def pending(self) -> list[Sent]:
        """What is on its way, or waits for an outcome that counts."""
        return list(self.sending.unsettled.values())


class ReceivingLink:
    """A link from a queue. `server_held`: the tags of which the broker said that it still holds them.

    `shunned`: messages that must not come by this link again. `is_settled`: the broker settles what it sends.
    """

    def __init__(
        self, name: str, handle: int, subscription: Subscription, holding: Holding, *, resumes: bool, is_settled: bool
    ) -> None:
        self.name = name
        self.handle = handle
        self.subscription = subscription
        self.holding = holding
        self.resumes = resumes
        self.is_settled = is_settled
        self.credit = 0
        self.delivery_count = 0
        self.server_held: set[bytes] = set()
        self.shunned: set[Copy] = set()
        self.acquires: bytes | None = None
        self.is_attached = False
        self.first: Transfer | None = None
        self.sent_after = 0.0
        self.transaction: Transaction | None = None
        self.pieces = bytearray()

    @property
    def queue(self) -> QueueSpec:
        return self.subscription.queue

    def attach(self) -> Attach:
        states: States = {tag: taken.state for tag, taken in self.holding.unsettled.items()}
        return Attach(
            self.name,
            self.handle,
            ROLE_RECEIVER,
            SENDER_SETTLED if self.is_settled else SENDER_UNSETTLED,
            RECEIVER_FIRST,
            Source(
                f"/queues/{self.queue.name}",
                DURABLE_UNSETTLED_STATE if self.resumes else 0,
                EXPIRE_NEVER if self.resumes else EXPIRE_ON_SESSION_END,
            ),
            Target(),
            states or None,
        )

    def attached(self, answer: Attach) -> None:
        """Both ends have said what they know: what the broker does not hold is done with."""
        held = set(answer.unsettled or {})
        self.server_held = held
        self.is_attached = True
        for tag in [tag for tag in self.holding.unsettled if tag not in held]:
            del self.holding.unsettled[tag]

    def take(self, transfer: Transfer, payload: bytes, sent_after: float) -> Transfer | None:
        """A transfer. The first one of the delivery, once all of it is here."""
        if self.first is None:
            self.first = transfer
            self.sent_after = sent_after
            self.pieces.clear()
            self.credit -= 1
            self.delivery_count += 1
            if self.credit < 0:
                raise Violation("credit holds", f"{self.name}: {-self.credit} deliveries more than that")
        self.pieces += payload
        if transfer.more:
            return None
        first, self.first = self.first, None
        return first


AnyLink = SendingLink | ReceivingLink


def make_sending_link(client: "Client", name: str) -> SendingLink:
    """A link to a queue, with what the actor still remembers of it."""
    queue = client.ledger.queues[name]
    resumes = client.actor.habits.resumes and queue.is_steady and not queue.is_stream
    key = f"{name}.in"
    kept = client.actor.kept.get(key)
    sending = kept if resumes and isinstance(kept, Sending) else Sending()
    client.actor.kept[key] = sending
    return SendingLink(key, client.new_handle(), queue, sending, resumes=resumes)


def make_receiving_link(client: "Client", name: str) -> ReceivingLink:
    """A link from a queue, with what the actor still remembers of it."""
    habits, queue = client.actor.habits, client.ledger.queues[name]
    resumes = habits.resumes and queue.is_steady
    key = f"{name}.out"
    kept = client.actor.kept.get(key)
    holding = kept if resumes and isinstance(kept, Holding) else Holding()
    if resumes and client.random.random() < 0.1:
        # The machine of this client has lost its memory.
        holding = Holding()
    client.actor.kept[key] = holding
    handle = client.new_handle()
    no_ack = habits.no_ack
    if no_ack:
        client.ledger.lossy.add(name)
    subscription = Subscription(queue, 0, no_ack, f"{client.name}.{key}.{handle}", priority=habits.priority)
    return ReceivingLink(key, handle, subscription, holding, resumes=resumes and not no_ack, is_settled=no_ack)


def with_more(transfer: Transfer) -> Transfer:
    """The same, of which the rest follows."""
    return replace(transfer, more=True)


def offset_of(payload: bytes, state: Composite | Described | None) -> int:
    """Where in a message a state says that the peer's part of it ends."""
    if not (isinstance(state, COMPOSITE) and isinstance(state, Received)):
        return 0
    starts = section_starts(payload, 0, len(payload))
    if state.section_number >= len(starts):
        return len(payload)
    return starts[state.section_number] + state.section_offset


Staged = tuple[ReceivingLink, Taken, Composite, bool]
"""A delivery whose outcome waits for a commit, and whether that settles it for its receiver."""
