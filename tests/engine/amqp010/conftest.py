"""Every protocol test runs three times: its input whole, octet by octet, and in random cuts."""

import zlib
from collections.abc import Iterator

import pytest

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import Cut, NodeBench


@pytest.fixture(params=list(Cut), ids=lambda cut: cut.value)
def bench(request: pytest.FixtureRequest) -> Iterator[NodeBench]:
    """The node to talk to."""
    bench = NodeBench(request.param, zlib.crc32(request.node.name.encode()))
    yield bench
    bench.close()


@pytest.fixture
def peer(bench: NodeBench) -> Peer:
    """An open connection."""
    peer = Peer(bench)
    peer.open()
    return peer


@pytest.fixture
def session(peer: Peer) -> Session:
    """A session on channel 1 of an open connection."""
    return peer.session()
