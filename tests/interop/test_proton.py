"""Qpid Proton against the broker, blocking and reactive: what its users know as receiver and link options."""

from collections.abc import Iterator
from typing import Any

import pika
import pytest

pytest.importorskip("proton", reason="python-qpid-proton is not built: apt install gcc python3-dev, then make setup")

from proton import Delivery, Event, Message
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import AtLeastOnce, AtMostOnce, Container, Copy, DurableSubscription, Selector
from proton.utils import BlockingConnection, LinkDetached, SendException

from tests.broker.process import BrokerProcess
from tests.conformance.requirement import requirement

TIMEOUT_S = 20


@pytest.fixture
def queue(broker: BrokerProcess) -> Iterator[str]:
    """A durable queue, declared over 0-9-1."""
    with pika.BlockingConnection(pika.URLParameters(broker.uri())) as connection:
        channel = connection.channel()
        channel.queue_declare("proton", durable=True)
        yield "/queues/proton"
        channel.queue_delete("proton")


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(broker.uri(), timeout=TIMEOUT_S)
    yield connection
    connection.close()


def take(receiver: Any) -> Any:
    message = receiver.receive(timeout=TIMEOUT_S)
    receiver.accept()
    return message


# --- blocking ---


@requirement("BB-002", "BB-013", "BB-046", "BB-054")
def test_messages_in_order(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue, options=AtLeastOnce())
    for number in range(20):
        sent = Message(id=number, subject="s", body={"n": number}, durable=True, properties={"p": number})
        assert sender.send(sent).remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver(queue, credit=5)
    for number in range(20):
        message = take(receiver)
        assert (message.id, message.body, message.properties) == (number, {"n": number}, {"p": number})
        assert (message.durable, message.first_acquirer, message.delivery_count) == (True, True, 0)


def test_a_large_message(connection: BlockingConnection, queue: str) -> None:
    body = bytes(range(256)) * 8192
    connection.create_sender(queue).send(Message(body=body))
    assert bytes(take(connection.create_receiver(queue)).body) == body


def test_at_most_once(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue, options=AtMostOnce()).send(Message("once"))
    receiver = connection.create_receiver(queue, options=AtMostOnce())
    assert receiver.receive(timeout=TIMEOUT_S).body == "once"


@requirement("BB-021")
def test_an_unknown_queue(connection: BlockingConnection) -> None:
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_sender("/queues/none")
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver("/queues/none")


def test_released_and_rejected_messages(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message("again"))
    receiver = connection.create_receiver(queue)
    receiver.receive(timeout=TIMEOUT_S)
    receiver.release(delivered=True)
    message = receiver.receive(timeout=TIMEOUT_S)
    assert (message.body, message.first_acquirer) == ("again", False)
    receiver.reject()
    connection.create_sender(queue).send(Message("next"))
    assert take(receiver).body == "next"


def test_what_goes_nowhere_is_released(connection: BlockingConnection) -> None:
    with pytest.raises(SendException) as error:
        connection.create_sender("/exchanges/amq.direct/nowhere").send(Message("lost"))
    assert error.value.state == Delivery.RELEASED


@requirement("M10-041", "M10-087", "M10-099", "M10-113")
def test_a_selector(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for colour in ("red", "green", "red", "blue"):
        sender.send(Message(colour, properties={"colour": colour}))
    reds = connection.create_receiver(queue, name="reds", options=Selector("colour = 'red'"))
    assert [take(reds).body for _ in range(2)] == ["red", "red"]
    in_force = reds.link.remote_source.filter
    in_force.rewind()
    in_force.next()
    assert [str(key) for key in in_force.get_dict()] == ["selector"]
    rest = connection.create_receiver(queue, name="rest")
    assert [take(rest).body for _ in range(2)] == ["green", "blue"]


@requirement("BB-075")
def test_browsing(connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(3):
        sender.send(Message(number))
    browser = connection.create_receiver(queue, name="browser", options=Copy(), credit=3)
    assert [browser.receive(timeout=TIMEOUT_S).body for _ in range(3)] == [0, 1, 2]
    receiver = connection.create_receiver(queue, name="consumer")
    assert [take(receiver).body for _ in range(3)] == [0, 1, 2]


@requirement("BB-076", "M10-033")
def test_a_dynamic_node_for_replies(broker: BrokerProcess, connection: BlockingConnection, queue: str) -> None:
    replies = connection.create_receiver(None, dynamic=True)
    address = replies.link.remote_source.address
    connection.create_sender(queue).send(Message("question", reply_to=address, correlation_id=7))
    server = BlockingConnection(broker.uri(), timeout=TIMEOUT_S)
    question = take(server.create_receiver(queue))
    server.create_sender(question.reply_to).send(Message("answer", correlation_id=question.correlation_id))
    answer = take(replies)
    assert (answer.body, answer.correlation_id) == ("answer", 7)
    server.close()


def test_the_anonymous_terminus(connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(None).send(Message("anywhere", address=queue))
    assert take(connection.create_receiver(queue)).body == "anywhere"


def test_a_login_without_a_name(broker: BrokerProcess, queue: str) -> None:
    uri = broker.uri().replace("guest:guest@", "")
    connection = BlockingConnection(uri, timeout=TIMEOUT_S)
    connection.create_sender(queue).send(Message("anonymous"))
    assert take(connection.create_receiver(queue)).body == "anonymous"
    connection.close()


# --- reactive ---


class Script(MessagingHandler, TransactionHandler):  # type: ignore[misc] # proton has no types
    """A reactive program. What it raises fails its test."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(**options)
        self.uri = uri
        self.connection: Any = None
        self.container: Any = None
        self.timer: Any = None

    def on_start(self, event: Event) -> None:
        self.container = event.container
        self.connection = event.container.connect(self.uri)
        self.timer = event.container.schedule(TIMEOUT_S, self)
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.timer.cancel()
        self.connection.close()

    def on_timer_task(self, event: Event) -> None:
        self.connection.close()
        raise TimeoutError

    def on_link_error(self, event: Event) -> None:
        raise AssertionError(event.link.remote_condition)


class TransactionalForwarder(Script):
    """Moves messages from one queue to another in transactions, the first of which is rolled back."""

    def __init__(self, uri: str, source: str, target: str) -> None:
        super().__init__(uri, prefetch=0, auto_accept=False)
        self.addresses = (source, target)
        self.transaction: Any = None
        self.log: list[str] = []

    def begin(self) -> None:
        self.receiver = self.container.create_receiver(self.connection, self.addresses[0])
        self.sender = self.container.create_sender(self.connection, self.addresses[1])
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event: Event) -> None:
        self.transaction.send(self.sender, Message(event.message.body))
        self.transaction.accept(event.delivery)
        if "aborted" in self.log:
            self.transaction.commit()
        else:
            self.transaction.abort()

    def on_transaction_aborted(self, event: Event) -> None:
        self.log.append("aborted")
        self.container.declare_transaction(self.connection, handler=self)

    def on_transaction_committed(self, event: Event) -> None:
        self.log.append("committed")
        self.end()


@requirement("BB-078", "BB-079", "BB-087", "BB-090")
def test_transactions(broker: BrokerProcess, connection: BlockingConnection, queue: str) -> None:
    connection.create_sender(queue).send(Message("moved", durable=True))
    replies = connection.create_receiver(None, dynamic=True)
    script = TransactionalForwarder(broker.uri(), queue, replies.link.remote_source.address)
    Container(script).run()
    assert script.log == ["aborted", "committed"]
    assert take(replies).body == "moved"
    left = connection.create_receiver(queue, name="left", credit=1)
    connection.create_sender(queue).send(Message("last"))
    assert take(left).body == "last"


class Subscriber(Script):
    """A durable subscription that takes so many messages and ends, or none and detaches.

    The container-id and the name of the link are what identifies it.
    """

    def __init__(self, uri: str, count: int) -> None:
        super().__init__(uri)
        self.count = count
        self.bodies: list[object] = []

    def on_start(self, event: Event) -> None:
        event.container.container_id = "proton-subscriber"
        super().on_start(event)

    def begin(self) -> None:
        self.receiver = self.container.create_receiver(
            self.connection, "/exchanges/amq.topic/news.%23", name="subscription", options=DurableSubscription()
        )

    def on_link_opened(self, event: Event) -> None:
        if not self.count:
            self.receiver.detach()

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)
        if len(self.bodies) == self.count:
            self.receiver.close()

    def on_link_remote_detach(self, event: Event) -> None:
        self.end()

    def on_link_closed(self, event: Event) -> None:
        self.end()


def test_a_durable_subscription(broker: BrokerProcess, connection: BlockingConnection) -> None:
    Container(Subscriber(broker.uri(), 0)).run()
    sender = connection.create_sender("/exchanges/amq.topic/news.today")
    sender.send(Message("1", durable=True))
    sender.send(Message("2", durable=True))
    subscriber = Subscriber(broker.uri(), 2)
    Container(subscriber).run()
    assert subscriber.bodies == ["1", "2"]
    with pytest.raises(SendException):
        sender.send(Message("nobody"))


class Drainer(Script):
    """Drains a queue with more credit than it has messages."""

    def __init__(self, uri: str, address: str) -> None:
        super().__init__(uri, prefetch=0)
        self.address = address
        self.bodies: list[object] = []
        self.credit_left = -1

    def begin(self) -> None:
        self.receiver = self.container.create_receiver(self.connection, self.address)
        self.receiver.drain(10)

    def on_message(self, event: Event) -> None:
        self.bodies.append(event.message.body)

    def on_link_flow(self, event: Event) -> None:
        if event.link.is_receiver and not event.link.draining() and len(self.bodies) == 3:
            self.credit_left = event.link.credit
            self.end()


@requirement("BB-095")
def test_draining(broker: BrokerProcess, connection: BlockingConnection, queue: str) -> None:
    sender = connection.create_sender(queue)
    for number in range(3):
        sender.send(Message(number))
    script = Drainer(broker.uri(), queue)
    Container(script).run()
    assert (script.bodies, script.credit_left) == ([0, 1, 2], 0)
