"""A socket that nobody reads: the broker's memory stays bounded, and others go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess
from tests.engine.amqp091.peer import Peer, SocketWire
from waybill.wire.amqp091.frames import content_frames, method_frame
from waybill.wire.amqp091.methods_basic import BasicPublish
from waybill.wire.amqp091.properties import BasicProperties

MEGABYTE = bytes(1 << 20)
COUNT = 150
GROWTH_MAX_KB = 100 << 10
PERSISTENT = BasicProperties(delivery_mode=2)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


def connect(broker: BrokerProcess) -> Peer:
    peer = Peer(SocketWire(broker.port))
    peer.open()
    return peer


def resident_kb(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def test_a_consumer_that_reads_nothing(broker: BrokerProcess) -> None:
    reader = connect(broker).open_channel(1)
    reader.declare("q", durable=True)
    reader.consume(no_ack=True)
    publisher = connect(broker).open_channel(1)
    publisher.select_confirms()
    before = resident_kb(broker)
    for _ in range(COUNT):
        publisher.publish(MEGABYTE, properties=PERSISTENT)
        publisher.await_confirms()
    assert resident_kb(broker) - before < GROWTH_MAX_KB
    assert publisher.depth() > COUNT // 2
    assert [len(reader.delivery().body) for _ in range(COUNT)] == [len(MEGABYTE)] * COUNT
    for peer in (reader.peer, publisher.peer):
        peer.wire.cut()


def test_a_publisher_that_does_not_read_what_is_returned(broker: BrokerProcess) -> None:
    """The broker stops reading, so that the publisher's socket takes nothing more."""
    publisher, other = connect(broker), connect(broker).open_channel(1)
    publisher.open_channel(1)
    wire = publisher.wire
    assert isinstance(wire, SocketWire)
    wire.socket.settimeout(2.0)
    message = method_frame(1, BasicPublish("", "nowhere", mandatory=True)) + content_frames(
        1, PERSISTENT, MEGABYTE, publisher.frame_max
    )
    before = resident_kb(broker)
    with pytest.raises(TimeoutError):
        wire.socket.sendall(message * COUNT)
    assert resident_kb(broker) - before < GROWTH_MAX_KB
    other.declare("q")
    other.publish(b"1")
    assert other.take().body == b"1"
    for peer in (publisher, other.peer):
        peer.wire.cut()
