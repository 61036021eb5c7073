"""The harness itself: what the other tests stand on."""

from tests.engine.amqp091.peer import Bench, Channel


def test_a_message_goes_round(channel: Channel) -> None:
    channel.declare("q")
    channel.publish(b"hello")
    assert channel.take().body == b"hello"


def test_a_connection_closes(bench: Bench) -> None:
    bench.connect().close()
