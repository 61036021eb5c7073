"""A random 0-9-1 client that speaks real frames and tells the ledger all that it does and sees.

An `Actor` lives as long as the run and connects again whenever it lost its connection; a `ClientConnection` is one of
its connections, an engine for one end of the simulated network. What needs an answer is a conversation, written as a
generator that yields the type of the method to wait for; everything else is fired off between the answers.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.simulation.ledger import Copy, Ledger, Message, Subscription, Violation
from waybill.testing.virtual_clock import VirtualClock
from waybill.wire.amqp091.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_METHOD,
    PROTOCOL_HEADER,
    content_frames,
    method_frame,
    parse_frame,
)
from waybill.wire.amqp091.methods import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    decode_method,
)
from waybill.wire.amqp091.properties import BasicProperties

FANOUT: Final = "sim.fanout"
FRAME_MAX: Final = 4096
CONNECTION_FORCED: Final = 320

# What an actor does no more once the run calms down.
RESTLESS: Final = frozenset({"cancel", "reopen", "close"})
IDLE: Final = {"pause": 1}

Conversation = Generator[type[Method] | tuple[type[Method], ...], Any, None]


@dataclass(frozen=True)
class Habits:
    """What an actor tends to do. Weights of actions by name; `pause_s` between two of them.

    Without `confirms` it does not learn what became of its messages, so nothing is promised to it; but what it makes
    the broker write is not synced for it either, which is what a crash likes.
    """

    weights: dict[str, int]
    consumes: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    prefetch: int = 0
    no_ack: bool = False
    confirms: bool = True
    window: int = 50
    pause_s: float = 0.05
    burst: int = 10
    body_bytes: int = 300


@dataclass
class Delivered:
    """A delivery that this client has not settled."""

    copy: Copy
    subscription: Subscription | None


@dataclass
class Arriving:
    """A method whose content is still on its way."""

    method: Method
    properties: BasicProperties = field(default_factory=BasicProperties)
    size: int = -1
    body: bytearray = field(default_factory=bytearray)


class Actor:
    """One client program. `connect` is given by the world: it opens a connection for the engine that it gets."""

    def __init__(
        self,
        name: str,
        random: Random,
        clock: VirtualClock,
        ledger: Ledger,
        habits: Habits,
        connect: Callable[["ClientConnection"], bool],
    ) -> None:
        self.name = name
        self.random = random
        self.clock = clock
        self.ledger = ledger
        self.habits = habits
        self.connection: ClientConnection | None = None
        self.connections_made = 0
        self.published = 0
        self.publish_limit = 0
        self.is_calm = False
        self.is_stopping = False
        self._connect = connect

    def start(self) -> None:
        """Connect, now or as soon as the broker can be reached."""
        if self.is_stopping:
            return
        self.connections_made += 1
        connection = ClientConnection(self, f"{self.name}.{self.connections_made}")
        if self._connect(connection):
            self.connection = connection
        else:
            self.clock.call_later(0.05 + self.random.random() * 0.2, self.start)

    def lost(self, connection: "ClientConnection", *, orderly: bool) -> None:
        """The connection is gone."""
        if not orderly:
            self.ledger.connections_lost += 1
        if self.connection is connection:
            self.connection = None
        if not self.is_stopping:
            self.clock.call_later(self.random.random() * 0.2, self.start)

    @property
    def is_at_rest(self) -> bool:
        """Connected, everything published and settled."""
        return (
            self.connection is not None
            and self.connection.is_at_rest
            and (self.published >= self.publish_limit or not self.habits.targets)
        )

    def stop(self) -> None:
        """Close the connection in an orderly way, and connect no more."""
        self.is_stopping = True
        if self.connection is not None:
            self.connection.begin_close()


class ClientConnection:
    """The client's end of one connection: an engine, as the network drives them."""

    def __init__(self, actor: Actor, name: str) -> None:
        self.actor = actor
        self.name = name
        self.random = actor.random
        self.ledger = actor.ledger
        self.closed = False
        self.flush: Callable[[], None] = lambda: None
        self.is_running = False
        self._asked_at = self._sent_after = actor.clock.now()
        self._is_lost = False
        self._is_closing = False
        self._output = bytearray(PROTOCOL_HEADER)
        self._input = b""
        self._arriving: Arriving | None = None
        self._channel = self.random.randint(1, 5)
        self._channels_opened = 0
        self._waiting_for: type[Method] | tuple[type[Method], ...] = ()
        self._talk: Conversation | None = None
        self._reset_channel_state()
        self._converse(self._open_connection())

    def _reset_channel_state(self) -> None:
        self.stream = f"{self.name}.{self._channels_opened}"
        self._publish_tag = 0
        self._unconfirmed: dict[int, Message] = {}
        self.outstanding: dict[int, Delivered] = {}
        self._newest_tag = 0
        self.subscriptions: dict[str, Subscription] = {}
        # Copies whose settle was sent, in order: `_settles[0]` is number `_settles_base` of this channel. They are
        # known to be processed once an answer to something later arrives.
        self._settles: deque[Copy] = deque()
        self._settles_base = 0
        self._settles_at_publish: dict[int, int] = {}
        self._settles_at_question = 0
        self._may_publish = False
        self._may_settle = False

    # --- engine ---

    def receive_data(self, data: bytes, now: float) -> None:
        data = self._input + data
        offset = 0
        while (parsed := parse_frame(data, offset, FRAME_MAX)) is not None:
            frame, offset = parsed
            if frame.type == FRAME_METHOD:
                self._on_method(decode_method(frame.payload))
            elif frame.type == FRAME_HEADER:
                self._on_header(frame.payload)
            elif frame.type == FRAME_BODY:
                self._on_body(frame.payload)
        self._input = data[offset:]

    def data_to_send(self) -> bytes:
        data = bytes(self._output)
        self._output.clear()
        return data

    def connection_lost(self, now: float) -> None:
        self._is_lost = True
        self.is_running = False
        self.actor.lost(self, orderly=self.closed and self._is_closing)

    def next_timeout(self) -> float | None:
        return None

    def handle_timeout(self, now: float) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self, now: float) -> None: ...

    # --- frames in ---

    def _on_method(self, method: Method) -> None:
        if method.HAS_CONTENT:
            self._arriving = Arriving(method)
        elif isinstance(method, ConnectionClose):
            self._send(0, ConnectionCloseOk())
            self.closed = True
            if method.reply_code != CONNECTION_FORCED:
                raise Violation("a correct client gets no error", f"{self.name}: {method}")
        elif isinstance(method, ChannelClose):
            raise Violation("a correct client gets no error", f"{self.name}: {method}")
        elif isinstance(method, (BasicAck, BasicNack)):
            self._on_confirm(method)
        elif isinstance(method, self._waiting_for):
            self._answered(method)
        elif not isinstance(method, BasicCancel):
            raise Violation("a correct client gets no error", f"{self.name}: unexpected {method}")

    def _on_header(self, payload: bytes) -> None:
        arriving = self._expected_content()
        arriving.size = int.from_bytes(payload[4:12], "big")
        arriving.properties = BasicProperties.decode(payload, 12)
        self._complete(arriving)

    def _on_body(self, payload: bytes) -> None:
        arriving = self._expected_content()
        arriving.body += payload
        self._complete(arriving)

    def _expected_content(self) -> Arriving:
        if self._arriving is None:
            raise Violation("content follows its method", self.name)
        return self._arriving

    def _complete(self, arriving: Arriving) -> None:
        if len(arriving.body) < arriving.size:
            return
        self._arriving = None
        method, body = arriving.method, bytes(arriving.body)
        if isinstance(method, BasicDeliver):
            self._on_delivery(method, arriving.properties, body)
        elif isinstance(method, BasicGetOk):
            self._answered((method, arriving.properties, body))
        elif isinstance(method, BasicReturn):
            raise Violation("a routable message is not returned", f"{self.name}: {method}")

    def _on_delivery(self, method: BasicDeliver, properties: BasicProperties, body: bytes) -> None:
        subscription = self.subscriptions.get(method.consumer_tag)
        if subscription is None:
            raise Violation("a delivery names its consumer", f"{self.name}: {method}")
        copy = self.ledger.deliver(
            subscription.queue,
            body,
            redelivered=method.redelivered,
            subscription=subscription,
            sent_after=self._sent_after,
        )
        self._took(copy, subscription, method.delivery_tag, properties, no_ack=subscription.no_ack)

    def _took(
        self, copy: Copy, subscription: Subscription | None, tag: int, properties: BasicProperties, *, no_ack: bool
    ) -> None:
        if tag != self._newest_tag + 1:
            raise Violation("delivery tags count up", f"{self.name}: {tag} after {self._newest_tag}")
        self._newest_tag = tag
        if properties.message_id != copy.message.key:
            raise Violation("properties pass through", f"{copy.message.key} came as {properties}")
        if no_ack:
            copy.settle_sent = True
        else:
            self.outstanding[tag] = Delivered(copy, subscription)

    def _on_confirm(self, method: BasicAck | BasicNack) -> None:
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= method.delivery_tag]
        for tag in tags:
            if tag not in self._unconfirmed:
                raise Violation("one confirm a message", f"{self.name}: {method}")
            message = self._unconfirmed.pop(tag)
            if isinstance(method, BasicNack):
                raise Violation("a correct client gets no error", f"{self.name}: {method}")
            self.ledger.confirm(message)
            is_durable = message.persistent and any(copy.queue.durable for copy in message.copies.values())
            self._settles_are_processed(self._settles_at_publish.pop(tag), durably=is_durable)

    # --- evidence about settles ---

    @property
    def _settle_count(self) -> int:
        return self._settles_base + len(self._settles)

    def _settles_are_processed(self, count: int, *, durably: bool) -> None:
        """The broker has answered something that this client sent after its first `count` settles on this channel."""
        for index in range(count - self._settles_base):
            self.ledger.settled(self._settles[index], self.actor.clock.now(), durably=durably)
        if durably:
            while self._settles_base < count:
                self._settles.popleft()
                self._settles_base += 1

    # --- conversations ---

    def _converse(self, talk: Conversation) -> None:
        """Begin a conversation. One runs at a time."""
        self._talk = talk
        self._waiting_for = next(talk)
        self._asked()

    def _answered(self, answer: object) -> None:
        talk = self._talk
        if talk is None:
            raise Violation("a correct client gets no error", f"{self.name}: unexpected {answer}")
        self._settles_are_processed(self._settles_at_question, durably=False)
        # What comes after an answer was sent after the question was.
        self._sent_after = self._asked_at
        try:
            self._waiting_for = talk.send(answer)
            self._asked()
        except StopIteration:
            self._talk = None
            self._waiting_for = ()

    def _asked(self) -> None:
        self._settles_at_question = self._settle_count
        self._asked_at = self.actor.clock.now()

    def _open_connection(self) -> Conversation:
        yield ConnectionStart
        response = b"\0guest\0guest"
        capabilities: dict[str, object] = {
            "publisher_confirms": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
        }
        self._send(0, ConnectionStartOk({"capabilities": capabilities}, "PLAIN", response, "en_US"))
        yield ConnectionTune
        self._send(0, ConnectionTuneOk(2047, FRAME_MAX, 0))
        self._send(0, ConnectionOpen("/"))
        yield ConnectionOpenOk
        yield from self._open_channel()
        self.is_running = True
        self._schedule()

    def _open_channel(self) -> Conversation:
        self._channels_opened += 1
        self._reset_channel_state()
        yield self._ask(ChannelOpen(), ChannelOpenOk)
        yield self._ask(ExchangeDeclare(FANOUT, "fanout", durable=True), ExchangeDeclareOk)
        for queue in self.ledger.queues.values():
            yield self._ask(
                QueueDeclare(queue.name, durable=queue.durable, arguments=dict(queue.arguments)), QueueDeclareOk
            )
            if not queue.name.startswith("dead"):
                yield self._ask(QueueBind(queue.name, FANOUT), QueueBindOk)
        if self.actor.habits.confirms:
            yield self._ask(ConfirmSelect(), ConfirmSelectOk)
        yield from self._subscribe()
        self._may_publish = self._may_settle = True

    def _subscribe(self) -> Conversation:
        habits = self.actor.habits
        yield self._ask(BasicQos(0, habits.prefetch), BasicQosOk)
        if habits.no_ack:
            self.ledger.lossy.update(habits.consumes)
        for name in habits.consumes:
            tag = f"{self.stream}.{name}.{len(self.subscriptions)}"
            self.subscriptions[tag] = Subscription(self.ledger.queues[name], habits.prefetch, habits.no_ack, tag)
            yield self._ask(BasicConsume(name, tag, no_ack=habits.no_ack), BasicConsumeOk)

    def _ask(self, method: Method, answer: type[Method]) -> type[Method]:
        self._send(self._channel, method)
        return answer

    def _send(self, channel: int, method: Method) -> None:
        self._output += method_frame(channel, method)

    # --- random life ---

    def _schedule(self) -> None:
        pause = self.actor.habits.pause_s * (0.2 + self.random.random())
        if self.actor.is_at_rest:
            pause += 0.5
        self.actor.clock.call_later(pause, self._act)

    def _act(self) -> None:
        if self._is_lost or not self.is_running:
            return
        weights = self.actor.habits.weights
        if self.actor.is_calm:
            weights = {name: weight for name, weight in weights.items() if name not in RESTLESS} or IDLE
        action = self.random.choices(list(weights), list(weights.values()))[0]
        getattr(self, f"_do_{action}")()
        self.flush()
        self._schedule()

    def _do_publish(self) -> None:
        actor, habits = self.actor, self.actor.habits
        for _ in range(self.random.randint(1, habits.burst)):
            is_full = len(self._unconfirmed) >= habits.window
            if is_full or not self._may_publish or actor.published >= actor.publish_limit:
                return
            actor.published += 1
            self._publish_one(self.random.choice(habits.targets))

    def _publish_one(self, target: str) -> None:
        number = self.actor.published
        key = f"{self.actor.name}#{number}"
        size = self.random.randrange(self.actor.habits.body_bytes)
        body = f"{key} ".encode() + bytes(self.random.randrange(256) for _ in range(4)) * (size // 4)
        is_persistent = self.random.random() < 0.85
        exchange, routing_key, queues = "", target, [target]
        if target == FANOUT:
            exchange, routing_key = FANOUT, ""
            queues = [name for name in self.ledger.queues if not name.startswith("dead")]
        message = self.ledger.publish(self.stream, number, body, queues, persistent=is_persistent)
        if self.actor.habits.confirms:
            self._publish_tag += 1
            self._unconfirmed[self._publish_tag] = message
            self._settles_at_publish[self._publish_tag] = self._settle_count
        properties = BasicProperties(
            delivery_mode=2 if is_persistent else 1, message_id=key, priority=self.random.randrange(4)
        )
        self._send(self._channel, BasicPublish(exchange, routing_key, mandatory=self.random.random() < 0.5))
        self._output += content_frames(self._channel, properties, body, FRAME_MAX)

    def _do_ack(self) -> None:
        """Settle one delivery or many, in any order."""
        if not self.outstanding or not self._may_settle:
            return
        tags = list(self.outstanding)
        if self.random.random() < 0.3:
            tag = self.random.choice(tags)
            self._send(self._channel, BasicAck(tag, multiple=True))
            for other in [other for other in tags if other <= tag]:
                self._settled(other)
            return
        for tag in self.random.sample(tags, self.random.randint(1, len(tags))):
            self._send(self._channel, BasicAck(tag))
            self._settled(tag)

    def _settled(self, tag: int) -> None:
        delivered = self._forget(tag)
        delivered.copy.settle_sent = True
        self._settles.append(delivered.copy)

    def _forget(self, tag: int) -> Delivered:
        delivered = self.outstanding.pop(tag)
        if delivered.subscription is not None:
            delivered.subscription.outstanding -= 1
        return delivered

    def _do_ack_all(self) -> None:
        if self._may_settle:
            for tag in list(self.outstanding):
                self._send(self._channel, BasicAck(tag))
                self._settled(tag)

    def _do_nack(self) -> None:
        """Give one delivery or many back."""
        if not self.outstanding or not self._may_settle:
            return
        tags = list(self.outstanding)
        tag = self.random.choice(tags)
        if self.random.random() < 0.3:
            self._send(self._channel, BasicNack(tag, multiple=True, requeue=True))
            for other in [other for other in tags if other <= tag]:
                self._forget(other)
            return
        method = BasicReject(tag, requeue=True) if self.random.random() < 0.5 else BasicNack(tag)
        self._send(self._channel, method)
        self._forget(tag)

    def _do_reject(self) -> None:
        """Refuse one delivery for good."""
        if not self.outstanding or not self._may_settle:
            return
        tag = self.random.choice(list(self.outstanding))
        self._send(self._channel, BasicReject(tag, requeue=False))
        copy = self.outstanding[tag].copy
        if copy.queue.dead_letter_to is None:
            self._settled(tag)
        else:
            self._forget(tag)
            copy.reject_sent = True

    def _do_get(self) -> None:
        if self._talk is None and len(self.outstanding) < 20:
            self._converse(self._get(self.random.choice(list(self.ledger.queues))))

    def _get(self, name: str) -> Conversation:
        self._send(self._channel, BasicGet(name))
        answer = yield (BasicGetOk, BasicGetEmpty)
        if not isinstance(answer, BasicGetEmpty):
            method, properties, body = answer
            copy = self.ledger.deliver(
                self.ledger.queues[name],
                body,
                redelivered=method.redelivered,
                subscription=None,
                sent_after=self._sent_after,
            )
            self._took(copy, None, method.delivery_tag, properties, no_ack=False)

    def _do_recover(self) -> None:
        if self._talk is None:
            self._converse(self._recover())

    def _recover(self) -> Conversation:
        # All that comes before the answer was sent before the broker took it back.
        self._may_settle = False
        self._send(self._channel, BasicRecover(requeue=True))
        yield BasicRecoverOk
        for tag in list(self.outstanding):
            self._forget(tag)
        self._may_settle = True

    def _do_cancel(self) -> None:
        if self._talk is None and self.subscriptions:
            self._converse(self._cancel())

    def _cancel(self) -> Conversation:
        for tag in list(self.subscriptions):
            yield self._ask(BasicCancel(tag), BasicCancelOk)
            del self.subscriptions[tag]
        yield from self._subscribe()

    def _do_reopen(self) -> None:
        if self._talk is None and not self._unconfirmed:
            self._converse(self._reopen())

    def _reopen(self) -> Conversation:
        self._may_publish = self._may_settle = False
        yield self._ask(ChannelClose(200, "reopen", 0, 0), ChannelCloseOk)
        self._channel = self.random.randint(1, 5)
        yield from self._open_channel()

    def _do_close(self) -> None:
        if self._talk is None and not self._unconfirmed:
            self.begin_close()

    def _do_pause(self) -> None: ...

    def begin_close(self) -> None:
        """Close in an orderly way as soon as no conversation runs."""
        if self._is_lost or self._is_closing:
            return
        if self._talk is not None:
            self.actor.clock.call_later(0.05, self.begin_close)
            return
        self._is_closing = True
        self.is_running = False
        self._converse(self._close())
        self.flush()

    def _close(self) -> Conversation:
        self._send(0, ConnectionClose(200, "bye", 0, 0))
        yield ConnectionCloseOk
        self.closed = True

    # --- questions of the world ---

    @property
    def unconfirmed_count(self) -> int:
        return len(self._unconfirmed)

    @property
    def is_at_rest(self) -> bool:
        """Connected, and no question, publish or delivery without its answer."""
        return self.is_running and self._talk is None and not self._unconfirmed and not self.outstanding

    def ask_counts(self, counts: dict[str, int]) -> bool:
        """Ask for the number of messages in every queue. False if something else is being asked."""
        if self._talk is not None or not self.is_running:
            return False
        self._converse(self._count(counts))
        self.flush()
        return True

    def _count(self, counts: dict[str, int]) -> Conversation:
        for name in self.ledger.queues:
            answer = yield self._ask(QueueDeclare(name, passive=True), QueueDeclareOk)
            counts[name] = answer.message_count
