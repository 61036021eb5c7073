"""The client without an event loop."""

import threading

import pytest

from waybill.client import NotFound, blocking
from waybill.client.errors import ConnectFailed, MessageReturned


def test_publish_and_consume(broker_uri: str, name: str) -> None:
    with blocking.connect(broker_uri, name="blocking") as connection, connection.channel() as channel:
        channel.declare_queue(name, exclusive=True)
        channel.publish(b"one", routing_key=name)
        channel.publish_many([b"two", b"three", b"four"], routing_key=name)
        received = []
        for delivery in channel.consume(name, prefetch_count=10, inactivity_timeout=5):
            received.append(delivery.body)
            delivery.ack()
            if len(received) == 2:
                break
        assert received == [b"one", b"two"]
        rest = [d.body for d in channel.consume(name, no_ack=True, inactivity_timeout=0.3)]
        assert sorted(rest) == [b"four", b"three"]
        assert channel.get(name) is None


def test_errors_reach_the_caller(broker_uri: str, free_port: int) -> None:
    with blocking.connect(broker_uri) as connection:
        channel = connection.channel()
        with pytest.raises(NotFound):
            channel.declare_queue("no-such-queue", passive=True)
        with pytest.raises(MessageReturned):
            channel.publish(b"x", routing_key="no-such-queue", mandatory=True)
        with pytest.raises(NotFound):
            next(iter(channel.consume("no-such-queue")))
    with pytest.raises(ConnectFailed):
        blocking.connect(f"amqp://127.0.0.1:{free_port}")


def test_no_thread_is_left(broker_uri: str) -> None:
    before = threading.active_count()
    connection = blocking.connect(broker_uri)
    connection.channel()
    connection.close()
    connection.close()
    assert threading.active_count() == before
