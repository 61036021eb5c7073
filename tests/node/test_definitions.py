"""Definitions as RabbitMQ writes them: out, in, and round."""

import json
from typing import Any

import pytest

from tests.engine.amqp091.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.amqp091.conftest import node_bench as node_bench  # noqa: PLC0414
from tests.engine.amqp091.peer import Cut, NodeBench
from waybill.node.definitions import export_definitions, import_definitions

# In the form of RabbitMQ 3.10, with the example of its documentation for a password ("test12").
OF_RABBITMQ: dict[str, Any] = {
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "users": [
        {
            "name": "bob",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["monitoring"],
            "limits": {"max-channels": 7},
        },
        {"name": "old", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": "a,b"},
        {"name": "plain", "password": "text", "tags": []},
    ],
    "vhosts": [{"name": "/"}, {"name": "tenant"}],
    "permissions": [{"user": "bob", "vhost": "tenant", "configure": "^bob", "write": ".*", "read": ".*"}],
    "topic_permissions": [
        {"user": "bob", "vhost": "tenant", "exchange": "events", "write": "^bob\\.", "read": ".*"}
    ],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 3}, "vhost": "tenant"},
        {
            "component": "operator_policy",
            "name": "cap",
            "value": {"apply-to": "queues", "definition": {"max-length": 50}, "pattern": ".*", "priority": 0},
            "vhost": "tenant",
        },
        {"component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}, "vhost": "tenant"},
    ],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@here"}],
    "policies": [
        {
            "vhost": "tenant",
            "name": "dead",
            "pattern": "^jobs",
            "apply-to": "queues",
            "definition": {"dead-letter-exchange": "dead", "max-length": 100},
            "priority": 1,
        }
    ],
    "queues": [
        {"name": "jobs", "vhost": "tenant", "durable": True, "auto_delete": False, "arguments": {"x-max-priority": 9}},
        {"name": "log", "vhost": "tenant", "durable": True, "auto_delete": False,
         "arguments": {"x-queue-type": "stream"}},
    ],
    "exchanges": [
        {"name": "events", "vhost": "tenant", "type": "topic", "durable": True, "auto_delete": False,
         "internal": False, "arguments": {}},
        {"name": "dead", "vhost": "tenant", "type": "fanout", "durable": True, "auto_delete": False,
         "internal": True, "arguments": {"alternate-exchange": "events"}},
    ],
    "bindings": [
        {"source": "events", "vhost": "tenant", "destination": "jobs", "destination_type": "queue",
         "routing_key": "job.#", "arguments": {}},
        {"source": "events", "vhost": "tenant", "destination": "dead", "destination_type": "exchange",
         "routing_key": "dead", "arguments": {"note": "x"}},
    ],
}  # fmt: skip


def test_a_file_of_rabbitmq(node_bench: NodeBench) -> None:
    node = node_bench.node
    report = import_definitions(node, OF_RABBITMQ)
    assert report.errors == []
    assert report.notes == [
        "global_parameters: unknown, skipped",
        "parameters: component 'shovel' is unknown, skipped",
    ]
    assert report.counts["users"] == 3
    host = node.virtual_hosts["tenant"]
    jobs = host.queues["jobs"]
    assert (jobs.policy.max_priority, jobs.policy.max_length, jobs.policy.dead_letter_exchange) == (9, 50, "dead")
    assert host.max_queues == 3
    assert len(host.exchanges["events"].bindings) == 2
    assert host.exchanges["dead"].internal
    user = node.authenticate("bob", "test12", "192.0.2.1:1")
    assert user is not None
    assert (user.tags, user.channel_max, set(user.permissions)) == (("monitoring",), 7, {"tenant"})
    assert ("tenant", "events") in user.topic_permissions
    assert node.authenticate("old", "", "192.0.2.1:1") is None
    assert node.authenticate("plain", "text", "192.0.2.1:1") is not None


def test_what_goes_out_comes_in_again(node_bench: NodeBench) -> None:
    import_definitions(node_bench.node, OF_RABBITMQ)
    document = json.loads(json.dumps(export_definitions(node_bench.node)))
    other = NodeBench(Cut.WHOLE)
    report = import_definitions(other.node, document)
    assert report.errors == report.notes == []
    assert export_definitions(other.node) == document
    assert other.node.authenticate("plain", "text", "192.0.2.1:1") is not None
    assert other.node.authenticate("guest", "guest", "192.0.2.1:1") is None
    other.close()


def test_what_is_not_durable_stays_at_home(node_bench: NodeBench) -> None:
    channel = node_bench.channel()
    channel.declare("transient")
    channel.declare("mine", exclusive=True, durable=True)
    channel.exchange("transient")
    document = export_definitions(node_bench.node)
    assert document["queues"] == document["exchanges"] == document["bindings"] == []


@pytest.mark.parametrize(
    ("section", "item", "message"),
    [
        ("users", {}, "'name' must be text"),
        ("users", {"name": "x", "password_hash": "!"}, "'password_hash' must be base64"),
        ("users", {"name": "x", "password_hash": "", "hashing_algorithm": "md5"}, "'md5' is not supported"),
        ("users", {"name": "x", "password_hash": "", "tags": 1}, "'tags'"),
        ("users", [], "must be an object"),
        ("permissions", {"user": "x", "vhost": "/", "configure": "", "write": "", "read": ""}, "no user 'x'"),
        ("permissions", {"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""}, "pattern"),
        ("queues", {"name": "q"}, "'vhost' must be text"),
        ("queues", {"name": "q", "vhost": "/", "durable": "yes"}, "'durable' must be true or false"),
        ("queues", {"name": "q", "vhost": "/", "arguments": {"x-max-length": -5}}, "x-max-length"),
        ("queues", {"name": "q", "vhost": "/", "arguments": {"x": [2**70]}}, "64 bits"),
        ("exchanges", {"name": "x", "vhost": "/", "type": "magic"}, "unknown exchange type"),
        ("bindings", {"vhost": "/", "source": "x", "destination": "q", "destination_type": "queue"}, "no queue"),
        ("policies", {"vhost": "/", "name": "p", "pattern": "", "definition": {"magic": "all"}}, "magic"),
    ],
)  # fmt: skip
def test_what_is_refused_keeps_nothing_else_out(
    node_bench: NodeBench, section: str, item: object, message: str
) -> None:
    good = {"name": "good", "vhost": "/", "durable": True}
    document: dict[str, Any] = {"queues": [good]}
    document[section] = [item, *document.get(section, [])]
    report = import_definitions(node_bench.node, document)
    assert len(report.errors) == 1
    assert report.errors[0].startswith(f"{section}[0]: ")
    assert message in report.errors[0]
    assert "good" in node_bench.node.virtual_hosts["/"].queues
