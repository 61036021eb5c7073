"""Heartbeats, in the node's own time (0-9-1, 4.2.7)."""

import pytest

from tests.conformance.requirement import requirement
from tests.engine.amqp091.peer import Channel, NodeBench
from waybill.wire.amqp091.frames import HEARTBEAT_FRAME
from waybill.wire.amqp091.methods_connection import ConnectionTune


def test_an_idle_server_sends_a_heartbeat_every_half_interval(node_bench: NodeBench) -> None:
    peer = node_bench.connect(heartbeat=10)
    for expected in range(1, 4):
        node_bench.advance(5.0)
        peer.write(HEARTBEAT_FRAME)
        peer.receive(0.0)
        assert peer.heartbeat_count == expected


@requirement("OJS-101")
@pytest.mark.parametrize("interval", [2, 60])
def test_a_silent_client_is_cut_off_after_two_intervals(
    node_bench: NodeBench, bystander: Channel, interval: int
) -> None:
    peer = node_bench.connect(heartbeat=interval)
    node_bench.advance(2 * interval - 0.5)
    peer.receive(0.0)
    assert not peer.wire.is_closed
    node_bench.advance(1.0)
    peer.expect_closed()


@requirement("OJS-041")
def test_what_a_silent_client_held_goes_back(node_bench: NodeBench) -> None:
    channel = node_bench.connect(heartbeat=10).open_channel(1)
    channel.declare("q")
    channel.publish(b"1")
    channel.consume()
    channel.delivery()
    node_bench.advance(21.0)
    channel.peer.expect_closed()
    again = node_bench.channel().take()
    assert (again.body, again.redelivered) == (b"1", True)


@pytest.mark.parametrize("said", ["heartbeat", "method", "content"])
def test_anything_a_client_says_keeps_it_alive(node_bench: NodeBench, said: str) -> None:
    channel = node_bench.connect(heartbeat=10).open_channel(1)
    for _ in range(10):
        node_bench.advance(15.0)
        if said == "heartbeat":
            channel.peer.write(HEARTBEAT_FRAME)
        elif said == "method":
            channel.declare("q")
        else:
            channel.publish(b"1")
    channel.declare("q")


def test_a_busy_server_sends_no_heartbeats(node_bench: NodeBench) -> None:
    channel = node_bench.connect(heartbeat=10).open_channel(1)
    for _ in range(10):
        node_bench.advance(2.0)
        channel.declare("q")
    assert channel.peer.heartbeat_count == 0


def test_an_interval_of_zero_is_none(node_bench: NodeBench) -> None:
    channel = node_bench.connect(heartbeat=0).open_channel(1)
    node_bench.advance(100_000.0)
    channel.declare("q")
    assert channel.peer.heartbeat_count == 0


@requirement("OJS-101")
def test_the_server_proposes_an_interval(node_bench: NodeBench) -> None:
    peer = node_bench.plug()
    peer.start()
    peer.log_in()
    assert peer.connection.expect(ConnectionTune).heartbeat == 60


def test_heartbeats_before_the_connection_is_open_are_taken(node_bench: NodeBench) -> None:
    peer = node_bench.plug()
    peer.start()
    peer.write(HEARTBEAT_FRAME)
    peer.log_in()
    peer.connection.expect(ConnectionTune)


def test_a_flood_of_heartbeats_is_harmless(node_bench: NodeBench, bystander: Channel) -> None:
    channel = node_bench.channel()
    channel.peer.write(HEARTBEAT_FRAME * 2000)
    channel.declare("q")
