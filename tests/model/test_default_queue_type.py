"""Queues that are declared without a type, in a virtual host that has a default."""

from pathlib import Path

import pytest

from tests.engine.amqp091.peer import Cut, NodeBench
from tests.management.api import running
from waybill.model.errors import InvalidArgument
from waybill.model.queue_arguments import QUORUM, STREAM
from waybill.model.stream import Stream
from waybill.node.definitions import export_definitions, import_definitions
from waybill.node.parameters import Description


@pytest.fixture
def bench() -> NodeBench:
    return NodeBench(Cut.WHOLE)


def type_of(bench: NodeBench, name: str) -> object:
    return bench.node.virtual_hosts["/"].queues[name].arguments.get("x-queue-type")


def set_default(bench: NodeBench, kind: str) -> None:
    bench.node.administration.describe_virtual_host("/", Description("", (), kind))


def test_a_queue_without_a_type_gets_the_default(bench: NodeBench) -> None:
    channel = bench.channel()
    channel.declare("before", durable=True)
    set_default(bench, QUORUM)
    channel.declare("q", durable=True)
    channel.declare("named", {"x-queue-type": "classic"}, durable=True)
    # What a quorum queue cannot be is classic.
    channel.declare("transient")
    channel.declare("mine", durable=True, exclusive=True)
    channel.declare("passing", durable=True, auto_delete=True)
    assert [type_of(bench, name) for name in ("before", "q", "named", "transient", "mine", "passing")] == [
        *(None, QUORUM, "classic"),
        *(None, None, None),
    ]
    set_default(bench, STREAM)
    channel.declare("log", durable=True)
    assert isinstance(bench.node.virtual_hosts["/"].queues["log"], Stream)
    # Those that are there stay as they are, and may be declared again.
    for name in ("before", "q", "named", "log"):
        channel.declare(name, durable=True)
    assert type_of(bench, "q") == QUORUM
    set_default(bench, "")
    channel.declare("after", durable=True)
    assert type_of(bench, "after") is None


def test_it_is_a_type(bench: NodeBench) -> None:
    with pytest.raises(InvalidArgument):
        set_default(bench, "magic")


def test_it_goes_out_and_in_with_definitions(bench: NodeBench) -> None:
    bench.node.administration.describe_virtual_host("/", Description("shop", ("eu",), QUORUM))
    document = export_definitions(bench.node)
    described = {"name": "/", "description": "shop", "tags": ["eu"], "default_queue_type": "quorum"}
    assert isinstance(document["vhosts"], list)
    assert described in document["vhosts"]
    other = NodeBench(Cut.WHOLE)
    report = import_definitions(other.node, document | {"queues": [{"name": "q", "vhost": "/", "durable": True}]})
    assert report.errors == []
    assert type_of(other, "q") == QUORUM
    undefined = {"name": "/", "default_queue_type": "undefined"}
    assert import_definitions(other.node, {"vhosts": [undefined]}).errors == []
    assert other.node.virtual_hosts["/"].default_queue_type == ""
    wrong = {"name": "/", "default_queue_type": "magic"}
    assert len(import_definitions(other.node, {"vhosts": [wrong]}).errors) == 1


async def test_it_is_set_over_the_api_and_outlives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as api:
        assert await api.put("/vhosts/%2F", {"default_queue_type": "quorum"}) == 204
    async with running(tmp_path) as api:
        await api.queue("q", durable=True)
        assert (await api.get("/queues/%2F/q"))["type"] == "quorum"
        assert (await api.get("/vhosts/%2F"))["default_queue_type"] == "quorum"
