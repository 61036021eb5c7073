"""A large virtual host is deleted in turns, and if the node stops half-way the next one goes on."""

import pytest

from tests.engine.amqp091.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.amqp091.conftest import node_bench as node_bench  # noqa: PLC0414
from tests.engine.amqp091.peer import MEMORY_LIMIT_BYTES, NodeBench
from waybill.model.errors import NotAllowed, NotFound
from waybill.node.node import Node, NodeOptions

QUEUES = 100


def half_deleted(bench: NodeBench) -> None:
    administration = bench.node.administration
    administration.add_virtual_host("tenant")
    administration.set_permission("guest", "tenant", ".*", ".*", ".*")
    administration.set_policy("tenant", "p", ".*", {"max-length": 5})
    channel = bench.connect("tenant").open_channel(1)
    channel.exchange("x", durable=True)
    for number in range(QUEUES):
        channel.declare(f"q{number}", durable=True)
        channel.bind("x", f"q{number}", "k")
    bench.settle()
    runtime = bench.node.runtime
    runtime.turn_units = 64
    runtime.begin_turn()
    administration.delete_virtual_host("tenant")
    for _ in range(3):
        bench.node.end_turn()
        bench.node.work(bench.now)
    host = bench.node.virtual_hosts["tenant"]
    assert 0 < len(host.queues) < QUEUES


def assert_gone(node: Node) -> None:
    for _ in range(QUEUES):
        node.end_turn()
        node.work(0.0)
    store = node.runtime.store
    for kind in ("queue", "exchange", "binding", "policy"):
        assert list(store.definitions(kind)) == []
    assert "tenant" not in node.virtual_hosts
    assert "tenant" not in node.administration.accounts.account("guest").user.permissions


def test_nobody_gets_into_it_while_it_goes(node_bench: NodeBench) -> None:
    half_deleted(node_bench)
    node = node_bench.node
    assert node.virtual_host("tenant") is None
    with pytest.raises(NotFound):
        node.administration.delete_virtual_host("tenant")
    with pytest.raises(NotAllowed):
        node.administration.add_virtual_host("tenant")
    assert_gone(node)
    node.administration.add_virtual_host("tenant")
    assert node.virtual_host("tenant") is not None


def test_the_next_node_goes_on(node_bench: NodeBench) -> None:
    half_deleted(node_bench)
    options = NodeOptions("bench", "0", node_bench.random.randbytes, MEMORY_LIMIT_BYTES)
    again = Node(node_bench.store, options, node_bench.now)
    assert again.virtual_host("tenant") is None
    assert_gone(again)
