"""A random 1.0 client that speaks real frames and tells the ledger all that it does and sees.

It is the engine for one end of the simulated network, with one session and a link to each of its queues. What needs an
answer is a conversation, written as a generator that yields what to wait for; everything else is fired off between the
answers. What it does on its own account is in `amqp10_actions`.
"""

from collections.abc import Callable, Generator
from typing import Any, Final

from tests.simulation.actor import FANOUT, Actor, Choice, Peer
from tests.simulation.amqp10_coordinator import attach_coordinator
from tests.simulation.amqp10_frames import FrameCodec, read_message
from tests.simulation.amqp10_links import (
    RESUMED,
    AnyLink,
    ReceivingLink,
    SendingLink,
    Sent,
    Staged,
    Taken,
    make_receiving_link,
    make_sending_link,
    offset_of,
    with_more,
)
from tests.simulation.evidence import SettleEvidence
from tests.simulation.ledger import Arrival
from tests.simulation.message import ROLLED_BACK, Transaction
from tests.simulation.violation import Violation
from waybill.wire.amqp10.composite import COMPOSITE, Composite
from waybill.wire.amqp10.frames import AMQP_HEADER, SASL_HEADER
from waybill.wire.amqp10.messaging import Accepted, Rejected, Released
from waybill.wire.amqp10.performatives import (
    ROLE_SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Transfer,
)
from waybill.wire.amqp10.security import SaslInit, SaslMechanisms, SaslOutcome
from waybill.wire.amqp10.transactions import TransactionalState

MAX_WINDOW: Final = 0x7FFFFFFF
CONNECTION_FORCED: Final = "amqp:connection:forced"
NOT_FOUND: Final = "amqp:not-found"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
DELETED: Final = "amqp:resource-deleted"
STOLEN: Final = "amqp:link:stolen"
NO_ERROR: Final = "a correct client gets no error"

Awaited = Callable[[object], bool]
Conversation = Generator[Awaited, Any, None]
Action = Callable[["Client"], None]


def a(kind: type) -> Awaited:
    return lambda answer: isinstance(answer, kind)


class Client(Peer):
    """`actions` are those that the habits of its actor weigh, by name; `restless` those that end when calm comes.

    `window`: how many transfers the broker still takes. `sent`: what it sent and has no outcome of, by delivery-id.
    """

    def __init__(self, actor: Actor, name: str, actions: dict[str, Action], restless: frozenset[str]) -> None:
        self.actor = actor
        self.name = name
        self.random = actor.random
        self.ledger = actor.ledger
        self.closed = False
        self.flush: Callable[[], None] = lambda: None
        self.is_running = False
        self.began_in_calm = False
        self._actions = actions
        weights = actor.habits.weights
        self._choice = Choice(weights)
        self._calm_choice = Choice({name: weight for name, weight in weights.items() if name not in restless})
        self._asked_at = self.sent_after = self.now
        self._received_at = self._sent_at = self.now
        self._idle_s = 0.0
        self._is_lost = False
        self._is_closing = False
        self._has_given_up = False
        self._codec = FrameCodec()
        self._talk: Conversation | None = None
        self._awaits: Awaited = a(bytes)
        self.settles = SettleEvidence(self.ledger)
        self._settles_at_question = 0
        self._missing: list[AnyLink] = []
        self._detaching: set[str] = set()
        self.own_requests: set[int] = set()
        # The link of which a flow is awaited: until then its credit stays as it is.
        self.asked: ReceivingLink | None = None
        self.window_size = 0
        self._has_session = False
        self.senders: dict[int, SendingLink] = {}
        self.receivers: dict[int, ReceivingLink] = {}
        self.sent: dict[int, tuple[SendingLink, Sent]] = {}
        self.taken: dict[int, tuple[ReceivingLink, Taken]] = {}
        self.transaction: Transaction | None = None
        self.transaction_id = b""
        self.staged: list[Staged] = []
        self.may_publish = self.may_settle = False
        self._begin_anew()
        self.converse(self._open_connection())

    def _begin_anew(self) -> None:
        """A new session: its numbers begin again."""
        self.window = 0
        self.next_outgoing_id = 0
        self.next_delivery_id = 0
        self._next_incoming_id = 0
        self._incoming_window = 0
        self._newest_delivery = -1
        self._links_made = 0

    @property
    def now(self) -> float:
        return self.actor.clock.now()

    # --- engine ---

    def receive_data(self, data: bytes, now: float) -> None:
        self._received_at = now
        for value, payload in self._codec.decode(data):
            if isinstance(value, COMPOSITE):
                self._take(value, payload)
            if self._awaits(value):
                self._answered(value)

    def data_to_send(self) -> bytes:
        data = self._codec.data_to_send()
        if data:
            self._sent_at = self.now
        return data

    def connection_lost(self, now: float) -> None:
        self._is_lost = True
        self.is_running = False
        self._links_ended()
        self.actor.lost(self, orderly=self.closed and self._is_closing and not self._has_given_up)

    def next_timeout(self) -> float | None:
        heartbeat_s = self.actor.habits.heartbeat_s
        at = self._sent_at + self._idle_s / 2 if self._idle_s else None
        if not heartbeat_s or not self._idle_s:
            return at
        silent_at = self._received_at + heartbeat_s * 2
        return silent_at if at is None else min(at, silent_at)

    def handle_timeout(self, now: float) -> None:
        heartbeat_s = self.actor.habits.heartbeat_s
        if heartbeat_s and now >= self._received_at + heartbeat_s * 2:
            if self.began_in_calm:
                raise Violation("a living peer sends heartbeats", self.name)
            self.closed = self._has_given_up = True
        elif self._idle_s and now >= self._sent_at + self._idle_s / 2:
            self._codec.send_empty()

    def pause_writing(self) -> None: ...
    def resume_writing(self, now: float) -> None: ...

    # --- what comes ---

    def _take(self, value: Composite, payload: bytes) -> None:
        if isinstance(value, Transfer):
            self._take_transfer(value, payload)
        elif isinstance(value, Disposition):
            self._take_disposition(value)
        elif isinstance(value, Flow):
            self._take_flow(value)
        elif isinstance(value, Detach):
            self._take_detach(value)
        elif isinstance(value, Begin):
            self.window = value.incoming_window
        elif isinstance(value, Close):
            if value.error is not None and value.error.condition != CONNECTION_FORCED and not self._seems_dead(value):
                raise Violation(NO_ERROR, f"{self.name}: {value}")
            if not self._is_closing:
                self._codec.send(Close())
            self.closed = True
        elif isinstance(value, End) and value.error is not None:
            raise Violation(NO_ERROR, f"{self.name}: {value}")

    def _seems_dead(self, close: Close) -> bool:
        """Whether the broker has heard nothing for longer than it allows (2.4.5): its network lets nothing through."""
        is_idle = close.error is not None and close.error.condition == RESOURCE_LIMIT_EXCEEDED
        return is_idle and 0 < self._idle_s <= self.stalled_s

    def _take_flow(self, flow: Flow) -> None:
        self.window = (flow.next_incoming_id or 0) + flow.incoming_window - self.next_outgoing_id
        link = self.senders.get(-1 if flow.handle is None else flow.handle)
        if link is not None and flow.link_credit is not None:
            link.take_credit(flow.delivery_count, flow.link_credit)
        for sender in self.senders.values():
            self.push(sender)

    def _take_detach(self, detach: Detach) -> None:
        """Either the answer to ours, or somebody has deleted the queue, or this link was taken over."""
        link = self.senders.get(detach.handle) or self.receivers.get(detach.handle)
        if link is None or detach.error is None:
            return
        is_expected = detach.error.condition in {DELETED, NOT_FOUND} and (link.queue.is_volatile or not detach.closed)
        if not is_expected and not (detach.error.condition in {NOT_FOUND, DELETED} and not link.is_attached):
            raise Violation(NO_ERROR, f"{self.name}: {link.name}: {detach}")
        was_detaching = link.name in self._detaching
        if detach.closed and isinstance(link, SendingLink):
            # With the link, both ends forget what they knew of its deliveries (2.6.6).
            link.resumes = False
        self._link_ended(link)
        if was_detaching:
            # It crossed ours, and is the answer to that: who detaches goes on.
            return
        if self._has_session:
            self.send(Detach(link.handle, closed=detach.closed))
        self._missing.append(link)

    # --- what we sent ---

    def _take_disposition(self, disposition: Disposition) -> None:
        last = disposition.first if disposition.last is None else disposition.last
        if disposition.role == ROLE_SENDER:
            for number in range(disposition.first, last + 1):
                if number in self.taken:
                    link, taken = self.taken.pop(number)
                    link.holding.unsettled.pop(taken.tag, None)
            return
        for number in range(disposition.first, last + 1):
            if number not in self.sent:
                if number in self.own_requests:
                    continue
                raise Violation("one confirm a message", f"{self.name}: {disposition}")
            sender, sent = self.sent[number]
            self._outcome(sender, sent, disposition)

    def _outcome(self, link: SendingLink, sent: Sent, disposition: Disposition) -> None:
        state = disposition.state
        if isinstance(state, TransactionalState):
            self._posted(sent, state)
        elif isinstance(state, (Accepted, Rejected, Released)):
            self._decided(sent, state)
        else:
            raise Violation("every publish is confirmed", f"{self.name}: {disposition}")
        if bool(disposition.settled) == link.resumes:
            raise Violation("a receiver settles first or second, as was agreed", f"{self.name}: {disposition}")
        if disposition.settled:
            del self.sent[sent.number]
            link.sending.unsettled.pop(sent.tag, None)

    def _decided(self, sent: Sent, outcome: Accepted | Rejected | Released) -> None:
        if sent.outcome is not None and sent.outcome != outcome:
            raise Violation(RESUMED, f"{self.name}: {sent.message.key} was {sent.outcome}, and now is {outcome}")
        sent.outcome = outcome
        if isinstance(outcome, Accepted):
            self._accepted(sent)
        elif isinstance(outcome, Rejected):
            self.ledger.refuse(sent.message)
            self.settles.are_processed(sent.settles_before, self.now, durably=False)
        else:
            self.ledger.return_to_publisher(sent.message)

    def _posted(self, sent: Sent, state: TransactionalState) -> None:
        """A message takes part in the transaction, unless no queue took it."""
        message = sent.message
        if isinstance(state.outcome, Released) and message.transaction is not None:
            self.ledger.return_to_publisher(message)
            message.transaction.messages.remove(message)
        elif state.txn_id != self.transaction_id or not isinstance(state.outcome, Accepted):
            raise Violation(NO_ERROR, f"{self.name}: {state} of {message.key}")

    def _accepted(self, sent: Sent) -> None:
        message = sent.message
        if not message.is_confirmed:
            self.ledger.confirm(message, self.now)
        is_durable = any(copy.is_kept and not copy.may_be_gone for copy in message.copies.values())
        self.settles.are_processed(sent.settles_before, self.now, durably=is_durable)

    def push(self, link: SendingLink) -> None:
        """Go on with what was begun, in pieces, as far as window and credit go; sometimes the rest comes later."""
        while self.window > 0 and link.is_attached and self._has_session:
            if link.partial is None:
                if not link.resuming or link.credit <= 0:
                    return
                sent, state = link.resuming.pop(0)
                self._begin_resumed(link, sent, state)
                continue
            sent = link.partial
            rest = len(sent.payload) - sent.offset
            size = self.random.randint(1, rest) if rest > 1 and self.random.random() < 0.2 else rest
            transfer = link.opening or Transfer(link.handle)
            link.opening = None
            sent.offset += size
            more = not sent.is_whole
            payload = sent.payload[sent.offset - size : sent.offset]
            self.send_transfer(with_more(transfer) if more else transfer, payload)
            if not more:
                link.partial = None
            elif self.random.random() < 0.3:
                return

    def send_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._codec.send(transfer, payload)
        self.window -= 1
        self.next_outgoing_id += 1

    def begin_delivery(self, link: SendingLink, sent: Sent, **fields: Any) -> None:
        """The next piece that is sent will be the first one of this message."""
        sent.number = self.next_delivery_id
        sent.settles_before = self.settles.count
        self.next_delivery_id += 1
        link.credit -= 1
        link.delivery_count += 1
        link.opening = Transfer(link.handle, sent.number, sent.tag, 0, **fields)
        link.partial = sent

    def _begin_resumed(self, link: SendingLink, sent: Sent, state: Composite | None) -> None:
        """What both ends said of a delivery decides how it goes on (3.4.6)."""
        if isinstance(state, (Accepted, Rejected, Released)):
            self.begin_delivery(link, sent, resume=True, state=state, settled=True)
            if link.opening is not None:
                self.send_transfer(link.opening, b"")
            link.opening = link.partial = None
            del link.sending.unsettled[sent.tag]
            return
        if state is None:
            # Nothing of it is there: it is published now.
            sent.offset = 0
            sent.message.channel = f"{self.name}.{link.name}.{self._links_made}"
            self.ledger.publish_again(sent.message)
            self.begin_delivery(link, sent)
        else:
            sent.offset = offset_of(sent.payload, state)
            self.begin_delivery(link, sent, resume=True, state=state)
        self.sent[sent.number] = link, sent

    def _resume_sending(self, link: SendingLink, answer: Attach) -> None:
        theirs = answer.unsettled or {}
        unknown = [tag for tag in theirs if tag not in link.sending.unsettled]
        if unknown:
            raise Violation(RESUMED, f"{link.name}: the broker still has {unknown}")
        link.partial = link.opening = None
        for tag, sent in list(link.sending.unsettled.items()):
            state = theirs.get(tag)
            # What was settled before it, was settled on another connection.
            sent.settles_before = 0
            if isinstance(state, (Accepted, Rejected, Released)):
                self._decided(sent, state)
                link.resuming.append((sent, state))
            elif sent.outcome is not None:
                if tag in theirs:
                    raise Violation(RESUMED, f"{link.name}: {sent.message.key} was {sent.outcome}, and now is {state}")
                # Settled on both sides.
                del link.sending.unsettled[tag]
            else:
                link.resuming.append((sent, state if isinstance(state, COMPOSITE) else None))

    # --- what we receive ---

    def _take_transfer(self, transfer: Transfer, payload: bytes) -> None:
        self._next_incoming_id += 1
        self._incoming_window -= 1
        if self._incoming_window < 0:
            raise Violation("windows hold", f"{self.name}: {transfer}")
        link = self.receivers.get(transfer.handle)
        if link is None:
            raise Violation("a delivery names its link", f"{self.name}: {transfer}")
        if link.first is None:
            link.transaction = self._transaction_of(link, transfer)
        first = link.take(transfer, payload, self.sent_after)
        if first is not None:
            self._take_delivery(link, first, bytes(link.pieces))
        if self._has_session and self._incoming_window <= self.window_size // 2:
            self.send_flow()

    def _take_delivery(self, link: ReceivingLink, transfer: Transfer, payload: bytes) -> None:
        number, tag = transfer.delivery_id, transfer.delivery_tag
        if number is None or tag is None or number <= self._newest_delivery:
            raise Violation("delivery-ids count up", f"{self.name}: {transfer} after {self._newest_delivery}")
        self._newest_delivery = number
        known = link.holding.unsettled.get(tag)
        if transfer.resume:
            self._take_resumed(link, transfer, known, payload)
            return
        if known is not None:
            raise Violation(RESUMED, f"{link.name}: {known.copy} came anew")
        message = read_message(payload)
        arrival = Arrival(
            link.queue,
            message.body,
            self.now,
            link.sent_after,
            not message.first_acquirer,
            link.subscription,
            death=message.death,
        )
        if tag in link.server_held:
            # It was this link's all the time, and comes out of its turn.
            arrival.subscription = None
        copy = self.ledger.deliver(arrival)
        copy.free_deliveries += 1
        if message.message_id != copy.message.key:
            raise Violation("properties pass through", f"{copy} came as {payload!r}")
        if copy in link.shunned:
            raise Violation("undeliverable here is not delivered here again", f"{copy} by {link.name}")
        if bool(transfer.settled) != link.is_settled:
            raise Violation("a link settles as was agreed", f"{link.name}: {transfer}")
        if link.is_settled:
            copy.settle_sent = True
            return
        transaction = link.transaction
        if transaction is not None and transaction.state == ROLLED_BACK:
            return  # It was on its way when it went back.
        taken = Taken(copy, tag, number, is_acquired=transaction is not None and transaction is self.transaction)
        link.holding.unsettled[tag] = taken
        self.taken[number] = link, taken

    def _transaction_of(self, link: ReceivingLink, transfer: Transfer) -> Transaction | None:
        """The transaction that a delivery takes part in."""
        state = transfer.state
        if transfer.resume or state is None:
            return None
        if not isinstance(state, TransactionalState) or state.txn_id != self.transaction_id:
            raise Violation("a delivery takes part in an open transaction only", f"{link.name}: {transfer}")
        return self.transaction

    def _take_resumed(self, link: ReceivingLink, transfer: Transfer, known: Taken | None, payload: bytes) -> None:
        if known is None or transfer.delivery_id is None:
            raise Violation(RESUMED, f"{link.name}: {transfer} is not known here")
        if transfer.settled:
            # One that the broker cannot read now is aborted: it waits in its queue.
            is_over = known.state is None if transfer.aborted else transfer.state == known.state is not None
            if not is_over or payload:
                raise Violation(RESUMED, f"{link.name}: {known} is {transfer.state} by the broker")
            del link.holding.unsettled[known.tag]
            return
        if known.state is not None:
            raise Violation(RESUMED, f"{link.name}: {known} has its outcome, and is sent again")
        if read_message(payload).body != known.copy.message.body:
            raise Violation(RESUMED, f"{link.name}: {known} is another message now: {payload!r}")
        self.ledger.resume(known.copy, link.sent_after)
        known.number = transfer.delivery_id
        self.taken[known.number] = link, known

    # --- conversations ---

    @property
    def is_talking(self) -> bool:
        return self._talk is not None

    def converse(self, talk: Conversation) -> None:
        """Begin a conversation. One runs at a time."""
        self._talk = talk
        self._awaits = next(talk)
        self._asked()

    def _answered(self, answer: object) -> None:
        talk = self._talk
        if talk is None:
            return
        self.settles.are_processed(self._settles_at_question, self.now, durably=False)
        # What comes after an answer was sent after the question was.
        self.sent_after = self._asked_at
        for link in self.receivers.values():
            if link.is_attached:
                link.subscription.answered(self._asked_at)
        try:
            self._awaits = talk.send(answer)
            self._asked()
        except StopIteration:
            self._talk = None
            self._awaits = lambda _: False

    def _asked(self) -> None:
        self._settles_at_question = self.settles.count
        self._asked_at = self.now

    def send(self, performative: Composite) -> None:
        self._codec.send(performative)

    def send_flow(self, **fields: Any) -> None:
        self._incoming_window = self.window_size
        self.send(
            Flow(
                next_incoming_id=self._next_incoming_id,
                incoming_window=self.window_size,
                next_outgoing_id=self.next_outgoing_id,
                outgoing_window=MAX_WINDOW,
                **fields,
            )
        )

    def _open_connection(self) -> Conversation:
        random, heartbeat_s = self.random, self.actor.habits.heartbeat_s
        opening = Open(
            self.actor.name,
            # Large enough for all that an attach may have to say: part of it has tests of its own.
            max_frame_size=random.choice((2048, 4096, 1 << 20)),
            idle_time_out=heartbeat_s * 1000 or None,
        )
        self._codec.send_header(SASL_HEADER)
        yield lambda answer: answer == SASL_HEADER
        yield a(SaslMechanisms)
        self._codec.send_sasl(SaslInit("EXTERNAL", b""))
        yield a(SaslOutcome)
        self._codec.send_header(AMQP_HEADER)
        self.send(opening)
        is_pipelined = random.random() < 0.5
        if is_pipelined:
            self._send_begin()
        yield lambda answer: answer == AMQP_HEADER
        answer = yield a(Open)
        self._idle_s = (answer.idle_time_out or 0) / 1000
        yield from self._begin_session(is_begun=is_pipelined)
        if not self.is_running:
            self.is_running = True
            self._schedule()

    def _send_begin(self) -> None:
        self._has_session = True
        self.window_size = self._incoming_window = self.random.choice((3, 20, 2048))
        self.send(
            Begin(next_outgoing_id=self.next_outgoing_id, incoming_window=self.window_size, outgoing_window=MAX_WINDOW)
        )

    def _begin_session(self, *, is_begun: bool = False) -> Conversation:
        if not is_begun:
            self._send_begin()
        yield a(Begin)
        habits = self.actor.habits
        for name in habits.consumes:
            yield from self.attach(make_receiving_link(self, name))
        for name in habits.targets:
            if name != FANOUT:
                yield from self.attach(make_sending_link(self, name))
        if habits.transacts:
            yield from attach_coordinator(self)
        self.may_publish = self.may_settle = True

    def restart_session(self) -> Conversation:
        self.may_publish = self.may_settle = False
        self.send(End())
        self._has_session = False
        yield a(End)
        self._links_ended()
        self._begin_anew()
        yield from self._begin_session()

    # --- links ---

    def new_handle(self) -> int:
        self._links_made += 1
        return self._links_made

    def attach(self, link: AnyLink) -> Conversation:
        """Attach a link; if its queue is not there just now, it is tried again later."""
        if isinstance(link, SendingLink):
            self.senders[link.handle] = link
        else:
            self.receivers[link.handle] = link
        self.send(link.attach())
        answer = yield lambda answer: isinstance(answer, Attach) and answer.name == link.name
        if (answer.target if isinstance(link, SendingLink) else answer.source) is None:
            # Refused: a detach follows, and says why.
            return
        if isinstance(link, ReceivingLink):
            link.attached(answer)
            self.ledger.subscribed(link.subscription, self.now)
        else:
            link.is_attached = True
            self._resume_sending(link, answer)

    def detach(self, link: AnyLink, *, closed: bool) -> Conversation:
        self._detaching.add(link.name)
        link.is_attached = False
        self.send(Detach(link.handle, closed=closed))
        yield lambda answer: isinstance(answer, Detach) and answer.handle == link.handle
        self._detaching.discard(link.name)
        self._link_ended(link)
        if closed and isinstance(link, SendingLink):
            link.sending.unsettled.clear()
        elif closed and isinstance(link, ReceivingLink):
            link.holding.unsettled.clear()

    def reattach(self, link: AnyLink) -> Conversation:
        name = link.queue.name
        make: Callable[[Client, str], AnyLink]
        make = make_sending_link if isinstance(link, SendingLink) else make_receiving_link
        yield from self.attach(make(self, name))

    @property
    def links(self) -> list[AnyLink]:
        return [*self.senders.values(), *self.receivers.values()]

    def _links_ended(self) -> None:
        for link in self.links:
            self._link_ended(link)
        self._missing.clear()
        self._detaching.clear()
        self.sent.clear()
        self.taken.clear()
        self.own_requests.clear()
        self.transaction = None
        self.staged.clear()
        self.may_publish = self.may_settle = False

    def _link_ended(self, link: AnyLink) -> None:
        link.is_attached = False
        self.ledger.departed()
        if isinstance(link, ReceivingLink):
            self.receivers.pop(link.handle, None)
            self.ledger.consumers.remove(link.subscription)
            for number in [number for number, (other, _) in self.taken.items() if other is link]:
                del self.taken[number]
            if not link.resumes:
                link.holding.unsettled.clear()
            # A delivery that came in part is lost unseen.
            self.ledger.connections_lost += link.first is not None
            return
        self.senders.pop(link.handle, None)
        for number in [number for number, (other, _) in self.sent.items() if other is link]:
            del self.sent[number]
        if not link.resumes:
            if link.partial is not None:
                self.ledger.abandon(link.partial.message)
            link.sending.unsettled.clear()

    # --- random life ---

    def _schedule(self) -> None:
        pause = self.actor.habits.pause_s * (0.2 + self.random.random())
        if self.actor.is_at_rest:
            pause += 0.5
        self.actor.clock.call_later(pause, self._act)

    def _act(self) -> None:
        if self._is_lost or not self.is_running:
            return
        if self._missing and not self.is_talking and self.random.random() < 0.3:
            self.converse(self.reattach(self._missing.pop()))
        else:
            choice = self._calm_choice if self.actor.is_calm else self._choice
            if choice and self._has_session:
                self._actions[choice.choose(self.random)](self)
        self.flush()
        self._schedule()

    def begin_close(self) -> None:
        if self._is_lost or self._is_closing:
            return
        if self._talk is not None:
            self.actor.clock.call_later(0.05, self.begin_close)
            return
        self._is_closing = True
        self.is_running = False
        self.converse(self._close())
        self.flush()

    def _close(self) -> Conversation:
        if self.actor.is_stopping:
            # One of those that wait may be ended by the broker meanwhile.
            while self.links:
                yield from self.detach(self.links[0], closed=True)
            self.actor.kept.clear()
        self.send(Close())
        yield a(Close)

    # --- questions of the world ---

    @property
    def unconfirmed_count(self) -> int:
        return sum([len(link.sending.unsettled) for link in self.senders.values()])

    @property
    def pending_count(self) -> int:
        posted = len(self.transaction.messages) if self.transaction is not None else 0
        return self.unconfirmed_count + posted

    @property
    def outstanding_count(self) -> int:
        return sum([len(link.holding.unsettled) for link in self.receivers.values()])

    @property
    def is_at_rest(self) -> bool:
        if not self.is_running or self.is_talking or self._missing:
            return False
        return not (self.outstanding_count or self.pending_count)

    def check_calm(self) -> None: ...
    def ask_counts(self, counts: dict[str, int]) -> None: ...
