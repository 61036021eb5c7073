"""Queues whose dead letters come back, or go on and on."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from waybill.wire.amqp091.properties import BasicProperties


def declare_dying(channel: Channel, name: str, target: str, **arguments: object) -> None:
    channel.declare(name, {**arguments, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": target})


@pytest.mark.parametrize("limit", [{"x-message-ttl": 0}, {"x-max-length": 0}])
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_a_circle_is_left_after_one_turn(
    bench: Bench, bystander: Channel, names: list[str], limit: dict[str, object]
) -> None:
    channel = bench.channel()
    for index, name in enumerate(names):
        declare_dying(channel, name, names[(index + 1) % len(names)], **limit)
    channel.publish(b"round and round", "a")
    bench.advance(1.0)
    assert [channel.depth(name) for name in names] == [0] * len(names)


def test_a_forged_rejection_does_not_keep_it_turning(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    declare_dying(channel, "a", "b", **{"x-message-ttl": 0})
    declare_dying(channel, "b", "a", **{"x-message-ttl": 0})
    forged = [{"queue": queue, "reason": "rejected", "count": 1} for queue in ("a", "b", "c")]
    channel.publish(b"1", "a", properties=BasicProperties(headers={"x-death": forged}))
    bench.advance(1.0)
    assert channel.depth("a") + channel.depth("b") == 0


def test_a_long_chain_of_full_queues_does_not_exhaust_the_stack(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    length = 200
    for number in range(length):
        declare_dying(channel, f"q{number}", f"q{number + 1}", **{"x-max-length": 0})
    channel.declare(f"q{length}")
    channel.publish(b"down the stairs", "q0")
    assert channel.take_all(f"q{length}") == [b"down the stairs"]


@pytest.mark.ours
def test_a_chain_ends_somewhere(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    length = 300
    for number in range(length):
        declare_dying(channel, f"q{number}", f"q{number + 1}", **{"x-max-length": 0})
    channel.declare(f"q{length}")
    channel.publish(b"down the stairs", "q0")
    assert channel.depth(f"q{length}") == 0
