"""Heartbeats without end, with payloads, or on channels where they do not belong."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel, NodeBench
from waybill.wire.amqp091.frames import FRAME_HEARTBEAT, HEARTBEAT_FRAME, frame


def test_ten_thousand_heartbeats_get_no_answer_and_leave_nothing(node_bench: NodeBench, bystander: Channel) -> None:
    peer = node_bench.connect(heartbeat=10)
    channel = peer.open_channel(1)
    wire = node_bench.wires[-1]
    wire.engine.receive_data(HEARTBEAT_FRAME * 10_000, node_bench.now)
    assert wire.engine.data_to_send() == b""
    channel.sync()


@pytest.mark.parametrize(
    ("attack", "code"), [(frame(FRAME_HEARTBEAT, 0, b"x" * 100), 501), (frame(FRAME_HEARTBEAT, 1, b""), 505)]
)
def test_a_heartbeat_that_is_none(bench: Bench, bystander: Channel, attack: bytes, code: int) -> None:
    peer = bench.connect()
    peer.write(attack)
    peer.expect_refused(code)
