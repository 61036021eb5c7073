"""AMQPStorm: its body frames are eight octets longer than frame_max allows, which RabbitMQ tolerates."""

from collections.abc import Iterator

import pytest
from amqpstorm.connection import Connection
from amqpstorm.exception import AMQPChannelError
from amqpstorm.message import Message

from tests.broker.process import BrokerProcess

FRAME_MAX = 131_072


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Connection]:
    with Connection("127.0.0.1", "guest", "guest", port=broker.port) as connection:
        yield connection


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, FRAME_MAX, FRAME_MAX + 1, 1_000_000])
def test_a_body_of_any_size_comes_back(connection: Connection, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with connection.channel() as channel:
        channel.confirm_deliveries()
        channel.queue.declare("storm", exclusive=True)
        # The second and the third are recognised by the first.
        for _ in range(3):
            assert channel.basic.publish(body, "storm", properties={"delivery_mode": 2}, mandatory=True)
        for _ in range(3):
            message = channel.basic.get("storm", auto_decode=False)
            assert isinstance(message, Message)
            assert message.body == body
            message.ack()


def test_errors_close_the_channel(connection: Connection) -> None:
    with connection.channel() as channel, pytest.raises(AMQPChannelError) as refused:
        channel.queue.declare("absent", passive=True)
    assert refused.value.error_code == 404


def test_consumers_reject_and_requeue(connection: Connection) -> None:
    taken: list[tuple[object, object]] = []

    def on_message(message: Message) -> None:
        taken.append((message.body, message.redelivered))
        if message.redelivered:
            message.ack()
        else:
            message.reject(requeue=True)
        if len(taken) == 2:
            assert message.channel is not None
            message.channel.stop_consuming()

    with connection.channel() as channel:
        channel.queue.declare("storm", exclusive=True)
        channel.basic.consume(on_message, "storm")
        channel.basic.publish("once more", "storm")
        channel.start_consuming()
    assert taken == [("once more", False), ("once more", True)]
