"""The session of a 0-10 client: it outlives connections, and remembers what both ends must agree on afterwards.

    sent      commands of ours that are not completed, in order; after a loss they are sent once more
    next_in   the count of the next command of the broker; what is below `highest_in` comes once more
    taken     deliveries that this client has, and has not settled

Counts never wrap; on the wire they are ids of 32 bits. When the broker has lost the session, what was not completed is
uncertain for ever, and what was taken is taken no more.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.actor import Actor
from tests.simulation.amqp010_frames import MASK, ranges_of, unwrapped
from tests.simulation.branches import Branch
from tests.simulation.evidence import SettleEvidence
from tests.simulation.message import Copy, Message, Transaction
from tests.simulation.subscription import Subscription
from tests.simulation.violation import Violation
from waybill.wire.amqp010.class_session import SessionCompleted
from waybill.wire.amqp010.struct import Command
from waybill.wire.amqp010.types import Ranges

if TYPE_CHECKING:
    from tests.simulation.amqp010_client import Client

UNLIMITED: Final = 0xFFFFFFFF
ENDLESS: Final = 1 << 62
EXECUTED_ONCE: Final = "a session executes a command once, over any number of connections"
REMEMBERED: Final = "both ends of a session agree on what was sent"
CREDIT: Final = "credit holds"

Conversation = Generator[int, Any, None]
"""It yields the count of the command whose completion it waits for, and is given its result."""


@dataclass(eq=False)
class Sent:
    """A command that was sent. `settles`: how many settles were sent by then. `sync`: its completion says durable."""

    count: int
    command: Command
    header: bytes | None
    body: bytes | None
    sync: bool
    sent_at: float
    settles: int
    message: Message | None = None
    is_explicit: bool = False
    is_answered: bool = False


@dataclass(eq=False)
class Taken:
    """A delivery. `is_staged`: its acceptance waits for a commit."""

    copy: Copy
    count: int
    redelivered: bool
    is_staged: bool = False


@dataclass(eq=False)
class Receiving:
    """A subscription, with the credit that the broker may have at most. `in_window`: sizes of what is not completed."""

    subscription: Subscription
    is_window: bool
    no_ack: bool
    messages: int = 0
    octets: int = 0
    in_window: dict[int, int] = field(default_factory=dict)
    is_cancelled: bool = False

    @property
    def counts_octets(self) -> bool:
        return self.octets < ENDLESS

    def grant(self, *, messages: int = 0, octets: int = 0) -> None:
        self.messages = ENDLESS if messages == UNLIMITED else self.messages + messages
        self.octets = ENDLESS if octets == UNLIMITED or not self.counts_octets else self.octets + octets

    def take(self, count: int, size: int) -> None:
        """A message has come."""
        name = self.subscription.name
        self.messages -= 1
        if self.messages < 0:
            raise Violation(CREDIT, f"{name}: {-self.messages} messages more than that")
        if self.counts_octets:
            self.octets -= size
            if self.octets < 0:
                raise Violation(CREDIT, f"{name}: {-self.octets} octets more than that")
        if self.is_window:
            self.in_window[count] = size

    def completed(self, count: int) -> None:
        size = self.in_window.pop(count, None)
        if size is not None:
            self.grant(messages=1, octets=size)

    def stopped(self) -> None:
        """The broker has taken all credit back."""
        self.messages = self.octets = 0
        self.in_window.clear()


class Session:
    """`carrier`: the connection that it is attached to now. `talk` waits for the completion of `awaited`.

    `executed`: commands of the broker that it may not know to be executed. `transaction`: what is open now, of either
    kind. `prepared`: branches that wait for a decision. `seen`: what was only looked at.
    """

    def __init__(self, actor: Actor, number: int) -> None:
        self.actor = actor
        self.ledger = actor.ledger
        self.random = actor.random
        self.number = number
        self.name = f"{actor.name}.s{number}"
        self.wire_name = actor.name.encode()
        self.carrier: Client | None = None
        first = self.random.choice((0, 0, 7, MASK - 20))
        self.next_out = self.first_out = (1 << 32) + first
        self.next_in = self.highest_in = -1
        self.completed_to = self.next_out
        self.sent: dict[int, Sent] = {}
        self.results: dict[int, object] = {}
        self.executed: list[int] = []
        self.told = 0
        self.taken: dict[int, Taken] = {}
        self.seen: dict[int, Copy] = {}
        self.receiving: dict[str, Receiving] = {}
        self.settles = SettleEvidence(self.ledger)
        self.sent_after = self.now
        self.transaction: Transaction | None = None
        self.prepared: list[Branch] = []
        self.talk: Conversation | None = None
        self.awaited = -1
        self.is_open = True
        self.is_begun = self.has_opened = False
        self.may_publish = self.may_settle = False
        self.destinations_made = 0

    @property
    def now(self) -> float:
        return self.actor.clock.now()

    @property
    def branch(self) -> Branch | None:
        return self.transaction if isinstance(self.transaction, Branch) else None

    # --- sending ---

    def send(
        self,
        command: Command,
        header: bytes | None = None,
        body: bytes | None = None,
        *,
        sync: bool = False,
        message: Message | None = None,
    ) -> Sent:
        """Send a command, or keep it until the session is attached again."""
        one = Sent(self.next_out, command, header, body, sync, self.now, self.settles.count, message)
        self.sent[one.count] = one
        self.next_out += 1
        if self.carrier is not None:
            self.carrier.write(one)
        return one

    def ask(self, command: Command) -> int:
        """Send a command whose completion is waited for: with that it is durable."""
        return self.send(command, sync=True).count

    def settled(self, copy: Copy) -> None:
        """The command that is sent next settles this."""
        self.settles.sent(copy)

    def complete(self, *, timely_reply: bool = False) -> None:
        """Tell what was executed; with that credit comes back in window mode."""
        for count in self.executed[self.told :]:
            for receiving in self.receiving.values():
                receiving.completed(count)
        self.told = len(self.executed)
        if self.carrier is not None:
            self.carrier.control(SessionCompleted(ranges_of(self.executed), timely_reply=timely_reply))

    # --- what comes ---

    def counts(self, ranges: Ranges) -> list[tuple[int, int]]:
        """Ids of ours as counts. They must have been sent."""
        found = []
        for low, high in ranges:
            first, last = unwrapped(low, self.next_out), unwrapped(high, self.next_out)
            if not self.first_out <= first <= last < self.next_out:
                raise Violation(REMEMBERED, f"{self.name}: {first} to {last} of {self.first_out} to {self.next_out}")
            found.append((first, last))
        return found

    def take_completed(self, ranges: Ranges) -> list[Sent]:
        """The broker has executed these. Those of which that is new."""
        found: list[Sent] = []
        for first, last in self.counts(ranges):
            found += [one for count, one in self.sent.items() if first <= count <= last]
        for one in found:
            del self.sent[one.count]
            self.completed_to = max(self.completed_to, one.count + 1)
            self.sent_after = max(self.sent_after, one.sent_at)
            self._learn(one)
        return found

    def _learn(self, one: Sent) -> None:
        """What its completion says of all that was sent before."""
        durably = one.sync
        message = one.message
        if message is not None and message.transaction is None and not message.is_refused:
            if one.is_explicit and not one.is_answered:
                raise Violation("a transfer is accepted before it is completed", f"{self.name}: {message.key}")
            self.ledger.confirm(message, self.now)
            durably |= any(copy.is_kept and not copy.may_be_gone for copy in message.copies.values())
        self.settles.are_processed(one.settles, self.now, durably=durably)

    def take_known(self, ranges: Ranges) -> None:
        """The broker knows that these are executed."""
        spans = [(unwrapped(low, self.next_in), unwrapped(high, self.next_in)) for low, high in ranges]
        told = self.executed[: self.told]
        kept = [count for count in told if not any(first <= count <= last for first, last in spans)]
        self.executed = kept + self.executed[self.told :]
        self.told = len(kept)

    def resumed(self, expected: Ranges) -> list[Sent]:
        """The broker still has the session, and says which command it expects: those to be sent again."""
        if not expected:
            if self.completed_to > self.first_out:
                raise Violation(REMEMBERED, f"{self.name}: nothing is known of what was completed")
            return list(self.sent.values())
        first = unwrapped(expected[0][0], self.next_out)
        if not self.completed_to <= first <= self.next_out:
            what = f"{first} is expected, of {self.next_out}; {self.completed_to} was completed"
            raise Violation(REMEMBERED, f"{self.name}: {what}")
        # It has to skip what it has already.
        start = first if self.random.random() < 0.5 else self.completed_to
        return [one for one in self.sent.values() if one.count >= start]

    # --- conversations ---

    def converse(self, talk: Conversation) -> None:
        """Begin a conversation. One runs at a time, and goes on over a loss of the connection."""
        self.talk = talk
        self._go_on(None)

    def answered(self, one: Sent) -> None:
        """A command is completed."""
        result = self.results.pop(one.count, None)
        if self.talk is not None and one.count == self.awaited:
            self._go_on(result)

    def _go_on(self, result: object) -> None:
        if self.talk is not None:
            try:
                self.awaited = self.talk.send(result)
            except StopIteration:
                self.talk = None

    # --- the end ---

    def ended(self) -> None:
        """It is over: subscriptions and deliveries are gone, and what was not completed is uncertain."""
        self.is_open = False
        self.carrier = None
        self.talk = None
        for receiving in self.receiving.values():
            self.ledger.consumers.remove(receiving.subscription)
        self.receiving.clear()
        self.taken.clear()
        self.sent.clear()
        self.may_publish = self.may_settle = False
        self.ledger.departed()
        self.ledger.connections_lost += 1

    @property
    def unconfirmed(self) -> int:
        return sum(one.message is not None for one in self.sent.values())

    @property
    def pending_count(self) -> int:
        """Messages without a confirm, or in what is open."""
        return self.unconfirmed + (len(self.transaction.messages) if self.transaction is not None else 0)
