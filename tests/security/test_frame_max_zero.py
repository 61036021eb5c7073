"""`frame_max` 0 means no limit: a client that asks for it gets the limit of the node all the same."""

from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.methods_connection import ConnectionOpen, ConnectionOpenOk, ConnectionTune, ConnectionTuneOk


def test_frames_stay_within_the_limit_of_the_node(bench: Bench, bystander: Channel) -> None:
    peer = bench.plug()
    peer.start()
    peer.log_in()
    tune = peer.connection.expect(ConnectionTune)
    peer.connection.send(ConnectionTuneOk(tune.channel_max, 0, 0))
    peer.connection.call(ConnectionOpen("/"), ConnectionOpenOk)
    channel = peer.open_channel(1)
    channel.declare("q")
    channel.publish(bytes(300_000))
    assert len(channel.take().body) == 300_000
    assert max(peer.frame_sizes) <= tune.frame_max
    peer.write(b"\x03\x00\x01" + (tune.frame_max + 1).to_bytes(4, "big") + bytes(16))
    peer.expect_refused(501)
