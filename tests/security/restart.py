"""A node that finds what another one has defined."""

from tests.engine.amqp091.peer import MEMORY_LIMIT_BYTES, NodeBench
from waybill.node.node import Node, NodeOptions


def restarted(bench: NodeBench) -> Node:
    """A new node on the store of a bench."""
    bench.settle()
    options = NodeOptions("bench", "0", bench.random.randbytes, MEMORY_LIMIT_BYTES)
    return Node(bench.store, options, bench.now)
