"""A random 0-9-1 client that speaks real frames and tells the ledger all that it does and sees.

It is the engine for one end of the simulated network. What needs an answer is a conversation, written as a generator
that yields the type of the method to wait for; everything else is fired off between the answers. What it does on its
own account is in `amqp091_actions`.
"""

from collections.abc import Callable, Generator
from datetime import UTC, datetime
from typing import Any, Final

from tests.simulation.actor import FANOUT, Actor, Choice, Peer
from tests.simulation.amqp091_channel import Channel
from tests.simulation.amqp091_frames import FRAME_MAX, Content, FrameCodec
from tests.simulation.ledger import Arrival
from tests.simulation.message import NEVER
from tests.simulation.queues import QueueSpec
from tests.simulation.removal import Removal
from tests.simulation.subscription import Subscription
from tests.simulation.violation import Violation
from waybill.wire.amqp091.method import Method
from waybill.wire.amqp091.methods_basic import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGetOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
)
from waybill.wire.amqp091.methods_channel import ChannelClose, ChannelCloseOk, ChannelOpen, ChannelOpenOk
from waybill.wire.amqp091.methods_confirm import ConfirmSelect, ConfirmSelectOk
from waybill.wire.amqp091.methods_connection import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
)
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare, ExchangeDeclareOk
from waybill.wire.amqp091.methods_queue import QueueBind, QueueBindOk, QueueDeclare, QueueDeclareOk
from waybill.wire.amqp091.methods_tx import TxSelect, TxSelectOk

CHANNEL_MAX: Final = 2047
CONNECTION_FORCED: Final = 320
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
LOW_ON_DISK: Final = "the node is low on disk"
STREAM_PREFETCH: Final = 10
# How long after the loss of its connection a purge may still be on the way to the broker.
LINGER_S: Final = 30.0
CAPABILITIES: Final = ("publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked")

Conversation = Generator[type[Method] | tuple[type[Method], ...], Any, None]
Action = Callable[["Client"], None]


class Client(Peer):
    """`actions` are those that the habits of its actor weigh, by name; `restless` those that end when calm comes."""

    def __init__(self, actor: Actor, name: str, actions: dict[str, Action], restless: frozenset[str]) -> None:
        self.actor = actor
        self.name = name
        self.random = actor.random
        self.ledger = actor.ledger
        self.closed = False
        self.flush: Callable[[], None] = lambda: None
        self.is_running = False
        self.began_in_calm = False
        self.removal: Removal | None = None
        self.is_blocked = False
        self._actions = actions
        weights = actor.habits.weights
        self._choice = Choice(weights)
        self._calm_choice = Choice({name: weight for name, weight in weights.items() if name not in restless})
        self._asked_at = self.sent_after = self.now
        self._received_at = self._sent_at = self.now
        self._heartbeat_s = 0
        self._is_lost = False
        self._is_closing = False
        self._has_given_up = False
        self._codec = FrameCodec()
        # Queues that were deleted under this consumer.
        self._missing: list[str] = []
        self._channels_opened = 0
        self._sends = 0
        self._waiting_for: type[Method] | tuple[type[Method], ...] = ()
        self._talk: Conversation | None = None
        self.channel = self._new_channel()
        self.converse(self._open_connection())

    @property
    def now(self) -> float:
        return self.actor.clock.now()

    # --- engine ---

    def receive_data(self, data: bytes, now: float) -> None:
        self._received_at = now
        for arrived in self._codec.decode(data):
            if isinstance(arrived, Content):
                self._on_content(arrived)
            else:
                self._on_method(arrived)

    def data_to_send(self) -> bytes:
        data = self._codec.data_to_send()
        if data:
            self._sent_at = self.now
        return data

    def connection_lost(self, now: float) -> None:
        self._is_lost = True
        self.is_running = False
        self.channel.ended()
        if self.removal is not None:
            self.ledger.removals.end(self.removal, now + LINGER_S)
        self.actor.lost(self, orderly=self.closed and self._is_closing and not self._has_given_up)

    def next_timeout(self) -> float | None:
        if not self._heartbeat_s:
            return None
        return min(self._sent_at + self._heartbeat_s / 2, self._received_at + self._heartbeat_s * 2)

    def handle_timeout(self, now: float) -> None:
        if now >= self._received_at + self._heartbeat_s * 2:
            if self.began_in_calm:
                raise Violation("a living peer sends heartbeats", self.name)
            self.closed = self._has_given_up = True
        elif now >= self._sent_at + self._heartbeat_s / 2:
            self._codec.send_heartbeat()

    def pause_writing(self) -> None: ...

    def resume_writing(self, now: float) -> None: ...

    # --- what comes ---

    def _on_method(self, method: Method) -> None:
        if isinstance(method, (BasicAck, BasicNack)):
            self.channel.confirmed(method, self.now)
        elif isinstance(method, self._waiting_for):
            self._answered(method)
        elif isinstance(method, ConnectionBlocked):
            self.is_blocked = True
            self._expect_no_confirms()
        elif isinstance(method, ConnectionUnblocked):
            self.is_blocked = False
            self.channel.first_blocked_tag = 0
        elif isinstance(method, BasicCancel):
            if self.channel.subscriptions[method.consumer_tag].queue.is_steady:
                raise Violation("a consumer stays as long as its queue", f"{self.name}: {method}")
            self._missing.append(self.channel.subscriptions[method.consumer_tag].queue.name)
            self.channel.unsubscribed(method.consumer_tag)
        elif isinstance(method, ConnectionClose):
            self._codec.send(0, ConnectionCloseOk())
            self.closed = True
            if method.reply_code != CONNECTION_FORCED:
                raise Violation("a correct client gets no error", f"{self.name}: {method}")
        elif isinstance(method, ChannelClose):
            self._on_channel_close(method)
        else:
            raise Violation("a correct client gets no error", f"{self.name}: unexpected {method}")

    def _expect_no_confirms(self) -> None:
        """The broker takes nothing from now on, unless this client has messages that it may still want to settle."""
        if not self.actor.takes_messages:
            self.channel.first_blocked_tag = self.channel.publish_tag + 1

    def _on_channel_close(self, method: ChannelClose) -> None:
        """What may hit a correct client: somebody has deleted the queue that it turns to, or the disk is full soon."""
        if method.reply_code == PRECONDITION_FAILED and LOW_ON_DISK in method.reply_text and self.ledger.is_disk_scarce:
            self.closed = self._is_closing = True
            return
        volatile = [queue.name for queue in self.ledger.queues.values() if queue.is_volatile]
        if method.reply_code != NOT_FOUND or not any(name in method.reply_text for name in volatile):
            raise Violation("a correct client gets no error", f"{self.name}: {method}")
        self.send(ChannelCloseOk())
        self.ledger.connections_lost += 1
        self.ledger.departed()
        self.channel.ended()
        if self._is_closing:
            return
        number = self.channel.number
        self.channel = self._new_channel()
        self.channel.number = number
        if self.removal is not None:
            self.ledger.removals.end(self.removal, self.now + LINGER_S)
        self.converse(self._begin())

    def _on_content(self, content: Content) -> None:
        method, properties = content.method, content.properties
        if isinstance(method, BasicDeliver):
            subscription = self.channel.subscriptions.get(method.consumer_tag)
            if subscription is None:
                raise Violation("a delivery names its consumer", f"{self.name}: {method}")
            self.took(content, subscription.queue, subscription, method.delivery_tag, redelivered=method.redelivered)
        elif isinstance(method, BasicGetOk):
            self._answered(content)
        else:
            raise Violation("a routable message is not returned", f"{self.name}: {method} {properties.message_id}")

    def took(
        self, content: Content, queue: QueueSpec, subscription: Subscription | None, tag: int, *, redelivered: bool
    ) -> None:
        """A delivery, or what was polled."""
        headers = content.properties.headers or {}
        reader = self.channel.readers.get(subscription.name) if subscription is not None else None
        offset = headers.get("x-stream-offset", -1)
        arrival = Arrival(
            queue,
            bytes(content.body),
            self.now,
            self.sent_after,
            redelivered,
            subscription,
            reader,
            offset if isinstance(offset, int) else -1,
            headers.get("x-first-death-reason"),
        )
        copy = self.ledger.deliver(arrival)
        if content.properties.message_id != copy.message.key:
            raise Violation("properties pass through", f"{copy} came as {content.properties}")
        if reader is not None:
            self.actor.stream_offsets[queue.name] = reader.next_offset
            self.actor.stream_firsts.setdefault(queue.name, arrival.offset)
        self.channel.took(copy, subscription, tag)

    # --- conversations ---

    @property
    def is_talking(self) -> bool:
        return self._talk is not None

    def converse(self, talk: Conversation) -> None:
        """Begin a conversation. One runs at a time."""
        self._talk = talk
        self._waiting_for = next(talk)
        self._asked()

    def _answered(self, answer: object) -> None:
        talk = self._talk
        if talk is None:
            raise Violation("a correct client gets no error", f"{self.name}: unexpected {answer}")
        self.channel.settles.are_processed(self.channel.settles_at_question, self.now, durably=False)
        # What comes after an answer was sent after the question was.
        self.sent_after = self._asked_at
        for subscription in self.channel.subscriptions.values():
            if subscription.since < NEVER:
                subscription.answered(self._asked_at)
        sends = self._sends
        try:
            self._waiting_for = talk.send(answer)
            if self._sends != sends:
                # Otherwise the answer that is awaited now belongs to a question that went with the one before.
                self._asked()
        except StopIteration:
            self._talk = None
            self._waiting_for = ()

    def _asked(self) -> None:
        self.channel.settles_at_question = self.channel.settles.count
        self._asked_at = self.now

    def send(self, method: Method) -> None:
        self._sends += 1
        self._codec.send(self.channel.number, method)

    def ask(self, method: Method, answer: type[Method]) -> type[Method]:
        self.send(method)
        return answer

    def send_content(self, method: Method, content: Content) -> None:
        self._codec.send_content(self.channel.number, method, content.properties, bytes(content.body))

    def _open_connection(self) -> Conversation:
        yield ConnectionStart
        properties: dict[str, object] = {"capabilities": dict.fromkeys(CAPABILITIES, True)}
        self._codec.send(0, ConnectionStartOk(properties, "EXTERNAL", b"", "en_US"))
        yield ConnectionTune
        heartbeat_s = self.actor.habits.heartbeat_s
        self._codec.send(0, ConnectionTuneOk(CHANNEL_MAX, FRAME_MAX, heartbeat_s))
        self._heartbeat_s = heartbeat_s
        self._codec.send(0, ConnectionOpen("/"))
        yield ConnectionOpenOk
        yield from self._begin()

    def _begin(self) -> Conversation:
        yield from self._open_channel()
        if not self.is_running:
            self.is_running = True
            self._schedule()

    # --- channels ---

    def _new_channel(self) -> Channel:
        self._channels_opened += 1
        return Channel(
            self.random.randint(1, 5),
            f"{self.name}.{self._channels_opened}",
            self.ledger,
            self.actor.habits,
        )

    def _open_channel(self) -> Conversation:
        yield self.ask(ChannelOpen(), ChannelOpenOk)
        yield from self.declare(self.ledger.public_queues())
        habits = self.actor.habits
        if habits.transacts:
            yield self.ask(TxSelect(), TxSelectOk)
            self.channel.transaction = self.ledger.begin()
        elif habits.confirms:
            yield self.ask(ConfirmSelect(), ConfirmSelectOk)
        yield from self.subscribe(habits.consumes)
        self.channel.may_publish = self.channel.may_settle = True
        if self.is_blocked:
            self._expect_no_confirms()

    def declare(self, queues: list[QueueSpec]) -> Conversation:
        """Declare and bind queues, without waiting for the answers in between."""
        answers: list[type[Method]] = [ExchangeDeclareOk]
        self.send(ExchangeDeclare(FANOUT, "fanout", durable=True))
        for queue in queues:
            self.send(QueueDeclare(queue.name, durable=queue.durable, arguments=dict(queue.arguments)))
            answers.append(QueueDeclareOk)
            if not (queue.is_dead_end or queue.is_roaming):
                self.send(QueueBind(queue.name, FANOUT))
                answers.append(QueueBindOk)
        for answer in answers:  # noqa: UP028 - a list takes no answers
            yield answer

    def subscribe(self, names: tuple[str, ...]) -> Conversation:
        habits = self.actor.habits
        queues = [self.ledger.queues[name] for name in names]
        if habits.shared_prefetch:
            yield self.ask(BasicQos(habits.shared_octets, habits.shared_prefetch, global_=True), BasicQosOk)
        if habits.private and self.channel.private is None:
            queues.append((yield from self._make_private_queue()))
        if habits.no_ack:
            self.ledger.lossy.update(names)
        for queue in queues:
            prefetch = habits.prefetch or (STREAM_PREFETCH if queue.is_stream else 0)
            yield self.ask(BasicQos(habits.prefetch_octets, prefetch), BasicQosOk)
            yield from self._consume(queue, prefetch)

    def _consume(self, queue: QueueSpec, prefetch: int) -> Conversation:
        habits, channel = self.actor.habits, self.channel
        channel.subscriptions_made += 1
        tag = f"{channel.name}.{queue.name}.{channel.subscriptions_made}"
        is_unlimited = not (prefetch or habits.shared_prefetch) and habits.is_steady
        no_ack = habits.no_ack and not queue.is_stream
        subscription = Subscription(
            queue, prefetch, no_ack, tag, priority=habits.priority, takes_any_number=is_unlimited
        )
        arguments: dict[str, object] = {"x-priority": habits.priority} if habits.priority else {}
        if queue.is_stream:
            arguments = {"x-stream-offset": self._start_reading(queue, tag)}
        channel.subscriptions[tag] = subscription
        yield self.ask(BasicConsume(queue.name, tag, no_ack=no_ack, arguments=arguments), BasicConsumeOk)
        if tag in channel.subscriptions:
            self.ledger.subscribed(subscription, self.now)

    def _start_reading(self, queue: QueueSpec, tag: str) -> object:
        """Where to begin in a stream, by the habits of this actor."""
        history = self.ledger.streams[queue.name]
        start: object = self.actor.habits.reads_from
        asked = start
        if start == "resume":
            start = asked = self.actor.stream_offsets.get(queue.name, "first")
        elif start == "time":
            start = float(int(self.now - self.random.random() * 3.0))
            asked = datetime.fromtimestamp(start, UTC)
        self.channel.readers[tag] = history.open(start)
        return asked

    def _make_private_queue(self) -> Generator[type[Method], Any, QueueSpec]:
        channel = self.channel
        is_exclusive = self.actor.habits.private == "exclusive"
        name = f"private.{channel.name}.{channel.subscriptions_made}"
        queue = QueueSpec(name, durable=False, is_private=True, exclusive=is_exclusive)
        self.ledger.add_private(queue)
        yield self.ask(QueueDeclare(name, exclusive=is_exclusive, auto_delete=not is_exclusive), QueueDeclareOk)
        channel.private = queue
        return queue

    def reopen(self) -> Conversation:
        """Close the channel and open another one."""
        self.channel.may_publish = self.channel.may_settle = False
        yield self.ask(ChannelClose(200, "reopen", 0, 0), ChannelCloseOk)
        self.channel.ended()
        self.ledger.departed()
        self.channel = self._new_channel()
        yield from self._open_channel()

    # --- random life ---

    def _schedule(self) -> None:
        pause = self.actor.habits.pause_s * (0.2 + self.random.random())
        if self.actor.is_at_rest:
            pause += 0.5
        self.actor.clock.call_later(pause, self._act)

    def _act(self) -> None:
        if self._is_lost or not self.is_running:
            return
        if self._missing and not self.is_talking:
            self.converse(self._resubscribe())
        else:
            choice = self._calm_choice if self.actor.is_calm else self._choice
            if choice:
                self._actions[choice.choose(self.random)](self)
        self.flush()
        self._schedule()

    def _resubscribe(self) -> Conversation:
        """Consume again from queues that were deleted under this consumer."""
        consumed = {subscription.queue.name for subscription in self.channel.subscriptions.values()}
        names = tuple(name for name in self.actor.habits.consumes if name in self._missing and name not in consumed)
        self._missing.clear()
        yield from self.declare([self.ledger.queues[name] for name in names])
        yield from self.subscribe(names)

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
        self._codec.send(0, ConnectionClose(200, "bye", 0, 0))
        yield ConnectionCloseOk
        self.closed = True

    # --- questions of the world ---

    @property
    def unconfirmed_count(self) -> int:
        return len(self.channel.unconfirmed)

    @property
    def outstanding_count(self) -> int:
        return len(self.channel.outstanding)

    @property
    def is_at_rest(self) -> bool:
        channel = self.channel
        if not self.is_running or self.is_talking:
            return False
        return not (channel.pending_count or channel.outstanding or channel.missing_copies(self.now))

    def check_calm(self) -> None:
        for copy in self.channel.missing_copies(self.now):
            raise Violation("a confirmed message is present until settled or removed by a policy", f"{copy}: lost")

    def ask_counts(self, counts: dict[str, int]) -> None:
        if not self.is_talking and self.is_running:
            self.converse(self._count(counts))
            self.flush()

    def _count(self, counts: dict[str, int]) -> Conversation:
        queues = self.ledger.public_queues()
        for queue in queues:
            self.send(QueueDeclare(queue.name, passive=True))
        for queue in queues:
            answer = yield QueueDeclareOk
            self.ledger.check_count(queue.name, answer.message_count)
            counts[queue.name] = answer.message_count
