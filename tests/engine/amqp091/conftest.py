"""Every protocol test runs three times: its input whole, octet by octet, and in random cuts.

With WAYBILL_TEST_BROKER=rabbitmq the same tests run once, against Debian's RabbitMQ: what passes there as well is not
only our opinion. Tests marked `ours` show where RabbitMQ 3.10 differs from 4.x, or what only we promise.
"""

import os
import zlib
from collections.abc import Iterator

import pytest

from tests.engine.amqp091.peer import Bench, Channel, Cut, NodeBench, RabbitBench
from tests.rabbitmq import RabbitMQ

AGAINST_RABBITMQ = os.environ.get("WAYBILL_TEST_BROKER") == "rabbitmq"


@pytest.fixture(params=["rabbitmq"] if AGAINST_RABBITMQ else list(Cut), ids=lambda cut: getattr(cut, "value", cut))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """The broker to talk to."""
    if request.param == "rabbitmq":
        if request.node.get_closest_marker("ours") is not None:
            pytest.skip("RabbitMQ 3.10 differs")
        broker: RabbitMQ = request.getfixturevalue("rabbitmq")
        bench: Bench = RabbitBench(broker.port)
    else:
        bench = NodeBench(request.param, zlib.crc32(request.node.name.encode()))
    yield bench
    bench.close()


@pytest.fixture
def node_bench(bench: Bench) -> NodeBench:
    """The same where a test needs to see or stop the node's disk."""
    if not isinstance(bench, NodeBench):
        pytest.skip("needs a node")
    return bench


@pytest.fixture
def channel(bench: Bench) -> Channel:
    """Channel 1 of an open connection."""
    return bench.channel()


@pytest.fixture
def bystander(bench: Bench) -> Iterator[Channel]:
    """A connection that works before, and must work after, whatever a test does to others."""
    witness = bench.channel()
    witness.declare("bystander", exclusive=True)
    witness.publish(b"before", "bystander")
    yield witness
    witness.publish(b"after", "bystander")
    assert witness.take_all("bystander") == [b"before", b"after"]
