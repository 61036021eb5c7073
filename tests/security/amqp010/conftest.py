"""A session of AMQP 0-10 for an attacker, and one for a bystander."""

from collections.abc import Iterator

import pytest

from tests.engine.amqp010.peer import Session
from tests.engine.amqp091.peer import Cut, NodeBench
from tests.security.amqp010.attached import attached
from waybill.wire.amqp010.class_queue import QueueDeclare


@pytest.fixture
def bench() -> Iterator[NodeBench]:
    bench = NodeBench(Cut.WHOLE)
    yield bench
    bench.close()


@pytest.fixture
def session(bench: NodeBench) -> Session:
    return attached(bench)


@pytest.fixture(autouse=True)
def bystander(bench: NodeBench) -> Iterator[Session]:
    """Whatever happens to others, it goes on."""
    witness = attached(bench, b"bystander")
    witness.call(QueueDeclare("bystander", exclusive=True))
    yield witness
    witness.publish(b"after", key="bystander")
    witness.subscribe("bystander")
    assert witness.take().body == b"after"
