"""Names and properties of what the binding declares."""

from typing import Any

import pytest

from waybill.ojs.topology.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration
from waybill.ojs.topology.names import SPEC, WEB
from waybill.ojs.topology.topology import Topology


def test_the_default_names_are_those_of_the_specification() -> None:
    topology = Topology()
    assert topology.names is SPEC
    assert topology.direct == "ojs.exchange.direct"
    assert topology.dead_letter_exchange == "ojs.exchange.dlx"
    assert topology.retry == "ojs.exchange.retry"
    assert topology.job_queue("email") == "ojs.queue.email"
    assert topology.dead_letter_queue("email") == "ojs.queue.dlx.email"
    assert topology.retry_queue("email", 5000) == "ojs.queue.retry.email.5000"
    assert topology.control_queue("email") == "ojs.queue.control.email"
    assert topology.event_stream == "ojs.events"
    assert topology.delay_level(7) == "ojs.delay.07"


def test_the_web_profile_has_the_names_of_the_page() -> None:
    topology = Topology(names=WEB)
    assert topology.direct == "ojs.direct"
    assert topology.dead_letter_exchange == "ojs.dlx"
    assert topology.retry == "ojs.retry"
    assert topology.job_queue("email") == "ojs.queue.email"
    assert topology.dead_letter_queue("email") == "ojs.dead.email"


def test_a_prefix_is_before_every_name() -> None:
    for entity in Topology(prefix="tenant1.").all_entities("email"):
        names = [entity.destination, entity.exchange] if isinstance(entity, BindingDeclaration) else [entity.name]
        assert all(name.startswith("tenant1.ojs.") for name in names)


def test_a_default_job_queue_has_exactly_the_arguments_of_the_bindings_examples() -> None:
    assert Topology().job_queue_arguments("email") == {
        "x-dead-letter-exchange": "ojs.exchange.dlx",
        "x-dead-letter-routing-key": "email",
        "x-max-priority": 10,
    }


def test_quorum_queues_have_no_priorities() -> None:
    arguments = Topology(queue_type="quorum").job_queue_arguments("email")
    assert arguments["x-queue-type"] == "quorum"
    assert "x-max-priority" not in arguments


def test_limits_of_a_queue_refuse_instead_of_dropping() -> None:
    arguments = Topology(max_length=5, max_length_bytes=100, message_ttl_ms=7).job_queue_arguments("email")
    limits = {"x-max-length": 5, "x-max-length-bytes": 100, "x-message-ttl": 7, "x-overflow": "reject-publish"}
    assert arguments.items() >= limits.items()


def test_a_retry_queue_gives_back_to_its_job_queue() -> None:
    queue, binding = Topology().retry_entities("email", 4000)
    assert queue == QueueDeclaration(
        "ojs.queue.retry.email.4000",
        {
            "x-dead-letter-exchange": "ojs.exchange.direct",
            "x-dead-letter-routing-key": "email",
            "x-message-ttl": 4000,
        },
    )
    assert binding == BindingDeclaration("ojs.queue.retry.email.4000", "ojs.exchange.retry", "email.4000")


def test_everything_that_is_bound_is_declared_before() -> None:
    declared: set[str] = set()
    for entity in Topology().all_entities("email"):
        if isinstance(entity, BindingDeclaration):
            assert {entity.destination, entity.exchange} <= declared
        else:
            declared.add(entity.name)
            assert isinstance(entity, ExchangeDeclaration | QueueDeclaration)


def test_the_control_queue_has_one_reader_and_both_keys() -> None:
    queue, full, short = Topology().control_entities("email")
    assert queue == QueueDeclaration("ojs.queue.control.email", {"x-single-active-consumer": True})
    assert full == BindingDeclaration("ojs.queue.control.email", "ojs.exchange.direct", "ojs.queue.control.email")
    assert short == BindingDeclaration("ojs.queue.control.email", "ojs.exchange.direct", "control.email")


def test_in_a_cluster_nothing_is_on_one_node_alone() -> None:
    entities = Topology(queue_type="quorum", replicas=3, leader_locator="balanced").all_entities("email")
    queues = [entity for entity in entities if isinstance(entity, QueueDeclaration)]
    sizes = {"quorum": "x-quorum-initial-group-size", "stream": "x-initial-cluster-size"}
    for queue in queues:
        assert queue.arguments[sizes[str(queue.arguments["x-queue-type"])]] == 3
        assert queue.arguments["x-queue-leader-locator"] == "balanced"
    assert {"ojs.leader", "ojs.requests", "ojs.queue.control.email", "ojs.events"} <= {queue.name for queue in queues}


def test_without_replicas_the_arguments_are_as_ever() -> None:
    queue, *_ = Topology(queue_type="quorum").control_entities("email")
    assert queue == QueueDeclaration("ojs.queue.control.email", {"x-single-active-consumer": True})
    assert "x-initial-cluster-size" not in str(Topology(queue_type="quorum").all_entities("email"))


@pytest.mark.parametrize("settings", [{"replicas": 3}, {"leader_locator": "balanced"}])
def test_classic_queues_have_no_replicas(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="quorum"):
        Topology(**settings)
