"""An attached session, and what the node counts for what is not finished."""

from tests.engine.amqp010.peer import Peer, Session
from tests.engine.amqp091.peer import NodeBench


def attached(bench: NodeBench, name: bytes = b"session") -> Session:
    peer = Peer(bench)
    peer.open()
    return peer.session(name)


def held(bench: NodeBench) -> int:
    return int(bench.node.runtime.held_bytes)
