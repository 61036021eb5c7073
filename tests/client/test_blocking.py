"""The client without an event loop."""

import inspect
import threading

import pytest

from waybill.client import Channel, Connection, NotFound, blocking, connect
from waybill.client.errors import ConnectFailed, ConnectionClosed, MessageReturned
from waybill.client.hosts import ChannelHost
from waybill.engine.amqp091.client.events import ChannelEvents


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
        for body in (b"five", b"six"):
            channel.publish(body, routing_key=name)
        channel.drain()
        assert [got.body for got in channel.get_many(name, 3)] == [b"five", b"six"]


def test_a_consumer_of_a_stream_ends_early(broker_uri: str, name: str) -> None:
    with blocking.connect(broker_uri) as connection, connection.channel() as channel:
        channel.declare_queue(name, durable=True, arguments={"x-queue-type": "stream"})
        channel.publish_many([b"one", b"two", b"three"], routing_key=name)
        for delivery in channel.consume(name, prefetch_count=10, arguments={"x-stream-offset": "first"}):
            assert delivery.body == b"one"
            break
        channel.delete_queue(name)
        assert connection.reconnections == 0


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


LOOP_ONLY = {"after_reading", "ask_aside", "check_loop", "pause_reading", "resume_reading", "side_channel"}


def test_both_clients_have_the_same_methods_with_the_same_arguments_and_defaults() -> None:
    differing = {
        "publish_nowait",
        "publish_run",
        "publish_telling",
        "consume",
        "restore",
        "give_up",
        "abandon",
        "present",
        "open_now",
        "check_loop",
        "call",
    }
    differing |= {name for name in dir(ChannelEvents) if not name.startswith("_")}
    hosted = {name for name in dir(ChannelHost) if not name.startswith("_")} - {"flowing"}
    for waits, blocks, left_out in (
        (Channel, blocking.Channel, differing),
        (Connection, blocking.Connection, hosted | LOOP_ONLY),
    ):
        names = {name for name in dir(waits) if not name.startswith("_")} - left_out
        assert names <= set(dir(blocks))
        for name in names:
            ours, theirs = getattr(waits, name), getattr(blocks, name)
            if callable(ours):
                assert [(one.name, one.kind, one.default) for one in inspect.signature(ours).parameters.values()] == [
                    (one.name, one.kind, one.default) for one in inspect.signature(theirs).parameters.values()
                ], name
    assert inspect.signature(connect).parameters.keys() == inspect.signature(blocking.connect).parameters.keys()


def test_after_the_close_every_call_says_so(waybill_uri: str) -> None:
    connection = blocking.connect(waybill_uri)
    channel = connection.channel()
    channel.declare_queue("blocking-closed", exclusive=True)
    channel.publish(b"x", routing_key="blocking-closed")
    delivery = channel.get("blocking-closed")
    assert delivery is not None
    connection.close()
    for call in (connection.channel, channel.drain, lambda: channel.publish(b"x"), lambda: channel.get("q")):
        with pytest.raises(ConnectionClosed):
            call()
    delivery.ack()
    assert not delivery.is_current
    channel.close()


def test_a_channel_with_confirms_says_that_it_has_no_transactions(waybill_uri: str) -> None:
    with blocking.connect(waybill_uri) as connection:
        with pytest.raises(ValueError, match="confirms=False"):
            connection.channel().tx_select()
        connection.channel(confirms=False).tx_select()
