"""More of everything than anybody needs: each kind has a limit, and reaching it concerns nobody else."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.methods_basic import BasicConsume, BasicGet
from waybill.wire.amqp091.methods_channel import ChannelOpen
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionTune, ConnectionTuneOk
from waybill.wire.amqp091.methods_exchange import ExchangeDeclare
from waybill.wire.amqp091.methods_queue import QueueDeclare


def open_refused(bench: Bench, virtual_host: str = "/") -> str:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(2047, 131_072, 0), ConnectionOpen(virtual_host))
    return peer.expect_refused(530)


def test_connections_of_the_node(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.connections_max = 3
    first = node_bench.connect()
    node_bench.connect()
    assert "node connection limit (3) is reached" in open_refused(node_bench)
    first.close()
    node_bench.connect()


def test_connections_of_a_virtual_host(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.set_virtual_host_limits("/ojs", max_connections=1, max_queues=-1)
    node_bench.connect("/ojs")
    node_bench.connect("/")
    text = open_refused(node_bench, "/ojs")
    assert text.endswith("access to vhost '/ojs' refused for user 'guest': connection limit (1) is reached")


def test_connections_of_a_user(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.set_user_limits("guest", max_connections=2, max_channels=-1)
    node_bench.connect()
    assert "user connection limit (2) is reached" in open_refused(node_bench)


def test_channels_of_a_user(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.set_user_limits("guest", max_connections=-1, max_channels=2)
    peer = node_bench.connect()
    peer.open_channel(1)
    peer.open_channel(2)
    peer.connection.number = 3
    peer.connection.send(ChannelOpen())
    peer.connection.number = 0
    peer.expect_refused(530)


def test_consumers(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.consumers_per_channel_max = 2
    channel = node_bench.channel()
    channel.declare("q")
    channel.consume("q")
    channel.consume("q")
    channel.send(BasicConsume("q"))
    channel.peer.expect_refused(506)


def test_queues(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.queues_per_virtual_host_max = 2
    channel = node_bench.channel()
    channel.declare("q")
    channel.declare("q")
    channel.send(QueueDeclare("one-more"))
    channel.peer.expect_refused(506)


def test_queues_of_a_limited_virtual_host(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.administration.set_virtual_host_limits("/", max_connections=-1, max_queues=2)
    channel = node_bench.channel()
    channel.declare("q")
    close = channel.refuses(QueueDeclare("one-more"), 406)
    assert "queue limit in vhost '/' (2) is reached" in close.reply_text
    channel.reopen()
    channel.declare("q")


def test_exchanges(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.exchanges_per_virtual_host_max = 8
    channel = node_bench.channel()
    channel.exchange("x")
    channel.send(ExchangeDeclare("one-more", "fanout"))
    channel.peer.expect_refused(506)


@pytest.mark.parametrize("consumers", [1, 2])
def test_unsettled_deliveries_of_a_consumer_without_prefetch(
    node_bench: NodeBench, bystander: Channel, consumers: int
) -> None:
    node_bench.node.limits.unsettled_per_channel_max = 10
    channel = node_bench.channel()
    channel.declare("q")
    for _ in range(consumers):
        channel.consume("q")
    for number in range(25):
        channel.publish(str(number))
    first = channel.deliveries(10)
    assert channel.depth() == 15
    channel.ack(first[-1].tag, multiple=True)
    second = channel.deliveries(10)
    channel.ack(second[0].tag)
    assert len(channel.deliveries(1)) == 1


def test_unsettled_deliveries_of_a_poller(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.unsettled_per_channel_max = 2
    channel = node_bench.channel()
    channel.declare("q")
    for _ in range(3):
        channel.publish(b"")
    channel.get(no_ack=False)
    channel.get(no_ack=False)
    channel.send(BasicGet("q", no_ack=False))
    channel.peer.expect_refused(506)


def test_a_delivery_that_is_never_settled(node_bench: NodeBench, bystander: Channel) -> None:
    node_bench.node.limits.consumer_timeout_s = 600.0
    channel = node_bench.channel()
    channel.declare("q")
    channel.consume("q")
    channel.publish(b"prompt")
    channel.publish(b"forgotten")
    first, _ = channel.deliveries(2)
    channel.ack(first.tag)
    minutes = 0
    while not channel.replies and minutes < 20:
        minutes += 1
        node_bench.advance(60.0)
        node_bench.node.maintain(node_bench.now)
        node_bench.settle()
        channel.peer.receive(0.0)
    close = channel.expect_refused(406)
    assert 10 <= minutes <= 12
    assert "timed out" in close.reply_text
    channel.reopen()
    assert channel.take().redelivered


def test_a_consumer_that_asks_for_more_time_gets_it(node_bench: NodeBench) -> None:
    node_bench.node.limits.consumer_timeout_s = 600.0
    channel = node_bench.channel()
    channel.declare("q")
    channel.consume("q", arguments={"x-consumer-timeout": 3_600_000})
    channel.publish(b"long")
    channel.deliveries(1)
    minutes = 0
    while not channel.replies and minutes < 70:
        minutes += 1
        node_bench.advance(60.0)
        node_bench.node.maintain(node_bench.now)
        node_bench.settle()
        channel.peer.receive(0.0)
    assert "3600000 ms" in channel.expect_refused(406).reply_text
    assert 60 <= minutes <= 62
    channel.reopen()
    channel.send(BasicConsume("q", "", arguments={"x-consumer-timeout": "soon"}))
    channel.expect_refused(406)
