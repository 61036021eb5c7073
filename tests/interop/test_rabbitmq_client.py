"""rabbitmq-amqp-python-client, RabbitMQ's own for AMQP 1.0: management, publishers, consumers, streams."""

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip(
    "rabbitmq_amqp_python_client",
    reason="it needs python-qpid-proton, which is not built: apt install gcc python3-dev, then make setup",
)

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToExchangeBindingSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Message,
    OffsetSpecification,
    OutcomeState,
    QuorumQueueSpecification,
    StreamConsumerOptions,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client.entities import MessageProperties, StreamFilterOptions
from rabbitmq_amqp_python_client.management import Management
from rabbitmq_amqp_python_client.qpid.proton._data import symbol
from rabbitmq_amqp_python_client.qpid.proton.utils import SendException

from tests.broker.process import BrokerProcess


class Enough(Exception):
    """The consumer has all that it waits for."""


class Handler(AMQPMessagingHandler):  # type: ignore[misc] # typed only where it is there
    """Takes `count` messages, and settles each as `settle` says."""

    def __init__(self, count: int, settle: Callable[[Any, Event], None] | None = None) -> None:
        super().__init__()
        self.count = count
        self.dispose = settle or (lambda context, event: context.accept(event))
        self.messages: list[Message] = []

    def on_amqp_message(self, event: Event) -> None:
        self.messages.append(event.message)
        self.dispose(self.delivery_context, event)
        if len(self.messages) == self.count:
            raise Enough


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Connection]:
    environment = Environment(uri=f"amqp://guest:guest@127.0.0.1:{broker.port}/")
    connection = environment.connection()
    connection.dial()
    yield connection
    environment.close()


@pytest.fixture
def management(connection: Connection) -> Management:
    return connection.management()


@pytest.fixture
def name() -> str:
    return f"a queue/{uuid.uuid4()}"


def publish(connection: Connection, address: str, *messages: Message) -> list[Any]:
    publisher = connection.publisher(address)
    try:
        return [publisher.publish(message).remote_state for message in messages]
    finally:
        publisher.close()


def data(text: str, **kwargs: Any) -> Message:
    return Message(body=text.encode(), inferred=True, **kwargs)


def annotation(handler: Handler, name: str) -> object:
    annotations = handler.messages[0].annotations
    assert annotations is not None
    return annotations[symbol(name)]


def consume(connection: Connection, queue: str, handler: Handler, **options: Any) -> list[str]:
    consumer = connection.consumer(AddressHelper.queue_address(queue), message_handler=handler, **options)
    with pytest.raises(Enough):
        consumer.run()
    consumer.close()
    return [bytes(message.body or b"").decode() for message in handler.messages]


def test_management_declares_tells_purges_and_deletes(
    connection: Connection, management: Management, name: str
) -> None:
    management.declare_queue(QuorumQueueSpecification(name=name, max_len=100, deliver_limit=5))
    info = management.queue_info(name)
    assert info.name == name
    assert info.queue_type.value == "quorum"
    assert info.is_durable
    assert not info.is_exclusive
    assert not info.is_auto_delete
    assert (info.message_count, info.consumer_count) == (0, 0)
    assert info.leader in info.members
    assert info.arguments["x-max-length"] == 100
    publish(connection, AddressHelper.queue_address(name), data("1"), data("2"))
    assert management.queue_info(name).message_count == 2
    assert management.purge_queue(name) == 2
    with pytest.raises(ValidationCodeException, match="ErrPreconditionFailed"):
        management.declare_queue(ClassicQueueSpecification(name=name))
    management.delete_queue(name)
    with pytest.raises(ValidationCodeException, match="404"):
        management.queue_info(name)


def test_exchanges_and_bindings_route(connection: Connection, management: Management, name: str) -> None:
    exchange, inner = f"{name}/exchange", f"{name}/inner"
    management.declare_exchange(ExchangeSpecification(name=exchange, exchange_type=ExchangeType.topic))
    management.declare_exchange(ExchangeSpecification(name=inner, exchange_type=ExchangeType.fanout))
    management.declare_queue(ClassicQueueSpecification(name=name))
    management.bind(ExchangeToExchangeBindingSpecification(exchange, inner, binding_key="in.*"))
    management.bind(ExchangeToQueueBindingSpecification(inner, name))
    path = management.bind(ExchangeToQueueBindingSpecification(exchange, name, binding_key="a/#"))
    address = AddressHelper.exchange_address
    assert publish(connection, address(exchange, "in.x"), data("inner")) == [OutcomeState.ACCEPTED]
    assert publish(connection, address(exchange, "a/#"), data("outer")) == [OutcomeState.ACCEPTED]
    with pytest.raises(SendException):
        publish(connection, address(exchange, "nowhere"), data("lost"))
    assert consume(connection, name, Handler(2)) == ["inner", "outer"]
    management.unbind(path)
    with pytest.raises(SendException):
        publish(connection, address(exchange, "a/#"), data("lost"))
    for each in (exchange, inner):
        management.delete_exchange(each)


def test_a_publisher_without_an_address_sends_where_each_message_says(
    connection: Connection, management: Management, name: str
) -> None:
    management.declare_queue(QuorumQueueSpecification(name=name))
    publisher = connection.publisher()
    message = AddressHelper.message_to_address_helper(data("there"), AddressHelper.queue_address(name))
    assert publisher.publish(message).remote_state == OutcomeState.ACCEPTED
    assert consume(connection, name, Handler(1)) == ["there"]


def test_outcomes_bring_messages_back_or_to_the_dead(connection: Connection, management: Management, name: str) -> None:
    dead = f"{name}/dead"
    management.declare_queue(ClassicQueueSpecification(name=dead))
    management.declare_queue(QuorumQueueSpecification(name=name, dead_letter_exchange="", dead_letter_routing_key=dead))
    publish(connection, AddressHelper.queue_address(name), data("again"))
    assert consume(connection, name, Handler(1, lambda context, event: context.requeue(event))) == ["again"]
    noted = Handler(1, lambda context, event: context.requeue_with_annotations(event, {"x-opt-note": "seen"}))
    consume(connection, name, noted)
    last = Handler(1, lambda context, event: context.discard(event))
    consume(connection, name, last)
    assert annotation(last, "x-opt-note") == "seen"
    buried = Handler(1)
    assert consume(connection, dead, buried) == ["again"]
    assert annotation(buried, "x-first-death-reason") == "rejected"


def test_streams_are_read_from_offsets_and_filtered(connection: Connection, management: Management, name: str) -> None:
    management.declare_queue(StreamSpecification(name=name))
    before = datetime.now(UTC) - timedelta(hours=1)
    for number in range(6):
        message = data(
            str(number),
            subject="even" if number % 2 == 0 else "odd",
            application_properties={"n": number, "region": "eu" if number < 4 else "us"},
        )
        message.annotations = {"x-stream-filter-value": "low" if number < 3 else "high"}
        publish(connection, AddressHelper.queue_address(name), message)
    first, every = OffsetSpecification.first, ["0", "1", "2", "3", "4", "5"]
    for offset, filters, wanted in (
        (first, None, every),
        (before, None, every),
        (4, None, ["4", "5"]),
        (first, StreamFilterOptions(values=["high"]), ["3", "4", "5"]),
        (first, StreamFilterOptions(message_properties=MessageProperties(subject="even")), ["0", "2", "4"]),
        (first, StreamFilterOptions(application_properties={"region": "&p:u"}), ["4", "5"]),
        (first, StreamFilterOptions(sql="n > 1 AND properties.subject = 'odd'"), ["3", "5"]),
    ):
        options = StreamConsumerOptions(offset_specification=offset, filter_options=filters)
        assert consume(connection, name, Handler(len(wanted)), consumer_options=options) == wanted
    management.delete_queue(name)


def test_settled_deliveries_need_no_outcome(connection: Connection, management: Management, name: str) -> None:
    management.declare_queue(ClassicQueueSpecification(name=name))
    publish(connection, AddressHelper.queue_address(name), data("1"), data("2"))
    options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.PreSettled)
    handler = Handler(2, lambda context, event: None)
    assert consume(connection, name, handler, consumer_options=options) == ["1", "2"]
    assert management.queue_info(name).message_count == 0


def test_an_answer_comes_directly(connection: Connection) -> None:
    options = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.DirectReplyTo)
    handler = Handler(1, lambda context, event: None)
    consumer = connection.consumer(message_handler=handler, consumer_options=options)
    with pytest.raises(Enough):  # noqa: PT012 - either of the two raises it
        # It may come while its publisher waits for the outcome.
        publish(connection, consumer.address, data("answer"))
        consumer.run()
    consumer.close()
    assert handler.messages[0].body == b"answer"
