"""Policies: which one applies, how it merges with arguments, and that a change is in force at once."""

import pytest

from tests.engine.amqp091.conftest import bench as bench  # noqa: PLC0414 - a fixture, found by its name
from tests.engine.amqp091.conftest import node_bench as node_bench  # noqa: PLC0414
from tests.engine.amqp091.peer import NodeBench
from tests.security.restart import restarted
from waybill.model.errors import InvalidArgument, NotFound
from waybill.model.queue import Queue
from waybill.node.administration import Administration


@pytest.fixture
def administration(node_bench: NodeBench) -> Administration:
    return node_bench.node.administration


def queue(bench: NodeBench, name: str = "q") -> Queue:
    return bench.node.virtual_hosts["/"].queues[name]


def test_a_policy_limits_what_is_there_at_once(node_bench: NodeBench, administration: Administration) -> None:
    channel = node_bench.channel()
    channel.declare("q")
    for number in range(5):
        channel.publish(str(number))
    channel.sync()
    administration.set_policy("/", "short", "^q$", {"max-length": 2})
    assert channel.take_all() == [b"3", b"4"]
    for number in range(5):
        channel.publish(str(number))
    assert channel.depth() == 2
    administration.clear_policy("/", "short")
    for number in range(5):
        channel.publish(str(number))
    assert channel.depth() == 7


def test_a_policy_is_for_what_comes_too(node_bench: NodeBench, administration: Administration) -> None:
    administration.set_policy("/", "dying", "^dying", {"message-ttl": 100, "dead-letter-exchange": "dead"})
    channel = node_bench.channel()
    channel.exchange("dead", "fanout")
    channel.declare("graveyard")
    channel.bind("dead", "graveyard")
    channel.declare("dying.1")
    channel.publish(b"1", "dying.1")
    node_bench.advance(0.2)
    assert channel.take_all("graveyard") == [b"1"]


@pytest.mark.parametrize(
    ("arguments", "policy", "operator", "expected"),
    [
        ({"x-max-length": 5}, {"max-length": 3}, {}, 3),
        ({"x-max-length": 3}, {"max-length": 5}, {}, 3),
        ({"x-max-length": 5}, {"max-length": 4}, {"max-length": 2}, 2),
        ({"x-max-length": 1}, {"max-length": 4}, {"max-length": 2}, 1),
        ({}, {}, {"max-length": 2}, 2),
        ({}, {"max-length": 1}, {"max-length": 2}, 1),
    ],
)
def test_the_smallest_limit_counts(
    node_bench: NodeBench,
    administration: Administration,
    arguments: dict[str, object],
    policy: dict[str, object],
    operator: dict[str, object],
    expected: int,
) -> None:
    node_bench.channel().declare("q", arguments)
    if policy:
        administration.set_policy("/", "p", "q", policy)
    if operator:
        administration.set_policy("/", "o", "q", operator, is_operator=True)
    assert queue(node_bench).policy.max_length == expected


def test_other_arguments_win_over_a_policy(node_bench: NodeBench, administration: Administration) -> None:
    channel = node_bench.channel()
    channel.declare("q", {"x-overflow": "reject-publish", "x-dead-letter-exchange": "mine"})
    administration.set_policy(
        "/", "p", "q", {"overflow": "drop-head", "dead-letter-exchange": "theirs", "dead-letter-routing-key": "key"}
    )
    policy = queue(node_bench).policy
    assert (policy.overflow, policy.dead_letter_exchange, policy.dead_letter_routing_key) == (
        "reject-publish",
        "mine",
        "key",
    )
    administration.set_policy("/", "o", "q", {"overflow": "drop-head", "max-length": 1}, is_operator=True)
    assert queue(node_bench).policy.overflow == "drop-head"


def test_the_highest_priority_that_matches_applies_alone(node_bench: NodeBench, administration: Administration) -> None:
    node_bench.channel().declare("q")
    administration.set_policy("/", "low", ".*", {"max-length": 1, "message-ttl": 5})
    administration.set_policy("/", "high", "q", {"max-length": 10}, priority=7)
    administration.set_policy("/", "other", "^r", {"max-length": 2}, priority=9)
    policy = queue(node_bench).policy
    assert (policy.max_length, policy.message_ttl_ms) == (10, -1)


def test_a_type_of_queue_takes_only_what_it_has(node_bench: NodeBench, administration: Administration) -> None:
    channel = node_bench.channel()
    for kind in ("classic", "quorum", "stream"):
        channel.declare(kind, {"x-queue-type": kind}, durable=True)
    settings: dict[str, object] = {"max-length": 4, "delivery-limit": 3, "max-age": "7D", "dead-letter-exchange": "d"}
    administration.set_policy("/", "p", ".*", settings)
    administration.set_policy("/", "o", ".*", {"max-age": "1D"}, is_operator=True)
    found = {name: queue(node_bench, name).policy for name in ("classic", "quorum", "stream")}
    assert {name: each.max_length for name, each in found.items()} == {"classic": 4, "quorum": 4, "stream": -1}
    assert {name: each.delivery_limit for name, each in found.items()} == {"classic": -1, "quorum": 3, "stream": -1}
    assert {name: each.max_age_ms for name, each in found.items()} == {
        "classic": -1,
        "quorum": -1,
        "stream": 86_400_000,
    }


@pytest.mark.parametrize(
    ("apply_to", "limited"),
    [
        ("all", {"classic", "quorum", "stream"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", set()),
    ],
)
def test_what_it_applies_to(
    node_bench: NodeBench, administration: Administration, apply_to: str, limited: set[str]
) -> None:
    channel = node_bench.channel()
    for kind in ("classic", "quorum", "stream"):
        channel.declare(kind, {"x-queue-type": kind}, durable=True)
    administration.set_policy("/", "p", ".*", {"max-length-bytes": 1000}, apply_to=apply_to)
    queues = node_bench.node.virtual_hosts["/"].queues
    assert {name for name, each in queues.items() if each.policy.max_length_bytes == 1000} == limited


def test_an_alternate_exchange_by_policy(node_bench: NodeBench, administration: Administration) -> None:
    channel = node_bench.channel()
    channel.declare("q")
    channel.exchange("unrouted", "fanout")
    channel.bind("unrouted", "q")
    channel.exchange("x", "direct")
    channel.publish(b"lost", "nowhere", "x")
    channel.sync()
    administration.set_policy("/", "ae", "^x$", {"alternate-exchange": "unrouted"}, apply_to="exchanges")
    channel.publish(b"found", "nowhere", "x")
    assert channel.take_all() == [b"found"]
    administration.clear_policy("/", "ae")
    channel.publish(b"lost", "nowhere", "x")
    assert channel.depth() == 0


def test_policies_outlive_the_node(node_bench: NodeBench, administration: Administration) -> None:
    node_bench.channel().declare("q", durable=True)
    administration.set_policy("/", "p", "q", {"max-length": 3}, priority=2, apply_to="queues")
    administration.set_policy("/", "o", "q", {"max-length": 2}, is_operator=True)
    again = restarted(node_bench)
    assert again.virtual_hosts["/"].queues["q"].policy.max_length == 2
    again.administration.clear_policy("/", "o", is_operator=True)
    assert again.virtual_hosts["/"].queues["q"].policy.max_length == 3


@pytest.mark.parametrize(
    ("pattern", "definition", "apply_to", "is_operator"),
    [
        ("(", {"max-length": 1}, "all", False),
        ("q", {}, "all", False),
        ("q", {"max-length": "1"}, "all", False),
        ("q", {"max-length": -1}, "all", False),
        ("q", {"overflow": "explode"}, "all", False),
        ("q", {"magic": "all"}, "all", False),
        ("q", {"ha-mode": "some"}, "all", False),
        ("q", {"ha-mode": "exactly"}, "all", False),
        ("q", {"ha-mode": "nodes", "ha-params": "one"}, "all", False),
        ("q", {"ha-params": 2}, "all", False),
        ("q", {"queue-mode": 1}, "all", False),
        ("q", {"ha-mode": "all"}, "all", True),
        ("q", {"alternate-exchange": 1}, "all", False),
        ("q", {"max-length": 1}, "everything", False),
        ("q", {"dead-letter-exchange": "x"}, "all", True),
    ],
)
def test_a_policy_is_checked_when_it_is_set(
    administration: Administration, pattern: str, definition: dict[str, object], apply_to: str, *, is_operator: bool
) -> None:
    with pytest.raises(InvalidArgument):
        administration.set_policy("/", "p", pattern, definition, apply_to=apply_to, is_operator=is_operator)


def test_settings_of_a_cluster_are_kept_and_mean_nothing(node_bench: NodeBench, administration: Administration) -> None:
    """One node has no mirrors to place: as a single RabbitMQ, it takes what clients say of them."""
    node_bench.channel().declare("q")
    definition: dict[str, object] = {
        "ha-mode": "nodes",
        "ha-params": ["a", "b"],
        "ha-sync-mode": "automatic",
        "ha-sync-batch-size": 2,
        "queue-mode": "lazy",
        "queue-version": 2,
        "queue-master-locator": "min-masters",
        "max-length": 7,
    }
    administration.set_policy("/", "p", "q", definition)
    administration.set_policy("/", "o", "q", {"max-in-memory-length": 5}, is_operator=True)
    host = node_bench.node.virtual_hosts["/"]
    assert host.policies.policies["p"].definition == definition
    assert host.queues["q"].policy.max_length == 7


def test_a_policy_that_is_not_there(administration: Administration) -> None:
    with pytest.raises(NotFound):
        administration.clear_policy("/", "p")


def test_a_great_many_queues_get_their_settings_in_turns(node_bench: NodeBench, administration: Administration) -> None:
    node = node_bench.node
    channel = node_bench.channel()
    names = [f"q{number}" for number in range(200)]
    for name in names:
        channel.declare(name)
    runtime = node.runtime
    runtime.turn_units = 64
    runtime.begin_turn()
    administration.set_policy("/", "p", ".*", {"max-length": 1})
    limited = sum(queue(node_bench, name).policy.max_length == 1 for name in names)
    assert limited < 100
    # The second one counts, however far the first has come.
    administration.set_policy("/", "p", ".*", {"max-length": 2})
    node_bench.settle()
    assert {queue(node_bench, name).policy.max_length for name in names} == {2}
