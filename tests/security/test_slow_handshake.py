"""Connections that never get anywhere, to hold what each of them costs."""

import pytest

from tests.engine.amqp091.peer import Channel, NodeBench
from waybill.wire.amqp091.frames import PROTOCOL_HEADER
from waybill.wire.amqp091.methods_connection import (
    ConnectionSecure,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)


@pytest.mark.parametrize("step", ["silent", "header", "start", "scram", "tuned"])
def test_no_step_lasts_longer_than_the_handshake_may(node_bench: NodeBench, bystander: Channel, step: str) -> None:
    peer = node_bench.plug()
    if step == "header":
        peer.write(PROTOCOL_HEADER)
    elif step != "silent":
        peer.start()
    if step == "scram":
        peer.connection.send(ConnectionStartOk({}, "SCRAM-SHA-256", b"n,,n=guest,r=abc"))
        peer.connection.expect(ConnectionSecure)
    if step == "tuned":
        peer.log_in()
        peer.connection.expect(ConnectionTune)
        peer.connection.send(ConnectionTuneOk(2047, 131_072, 60))
    node_bench.advance(node_bench.node.limits.handshake_timeout_s + 0.1)
    peer.expect_closed()
    assert len(node_bench.node.connections) == 1


def test_one_octet_a_second_does_not_prolong_it(node_bench: NodeBench, bystander: Channel) -> None:
    peer = node_bench.plug()
    for octet in PROTOCOL_HEADER + bytes(8):
        peer.write(bytes([octet]))
        node_bench.advance(1.0)
    peer.expect_closed()
