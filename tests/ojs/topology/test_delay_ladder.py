"""The delay ladder, walked by the rules of topic exchanges, without a broker."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS
from waybill.ojs.topology import delay_ladder
from waybill.ojs.topology.declarations import BindingDeclaration, QueueDeclaration
from waybill.ojs.topology.topology import Topology


def matches(pattern: str, key: str) -> bool:
    """The topic rule for patterns whose only `#` is the last word."""
    words, expected = key.split("."), pattern.split(".")
    if expected[-1] == "#":
        expected = expected[:-1]
        words = words[: len(expected)]
    return len(words) == len(expected) and all(want in ("*", word) for want, word in zip(expected, words, strict=True))


def walk(topology: Topology, queues: list[str], seconds: int, queue: str) -> tuple[int, int, list[str]]:
    """Follow one message; the milliseconds that it waits, how often, and the release queues that it reaches."""
    entities = topology.ladder_entities() + [one for name in queues for one in topology.release_entities(name)]
    bindings = [one for one in entities if isinstance(one, BindingDeclaration)]
    arguments = {one.name: one.arguments for one in entities if isinstance(one, QueueDeclaration)}
    key = delay_ladder.routing_key(seconds, queue)
    exchange = topology.delay_level(delay_ladder.entry_level(seconds))
    waited, waits = 0, 0
    while True:
        found = [one for one in bindings if one.exchange == exchange and matches(one.routing_key, key)]
        if exchange == topology.delay_release:
            return waited, waits, [one.destination for one in found]
        assert len(found) == 1
        if found[0].to_exchange:
            exchange = found[0].destination
            continue
        ttl = arguments[found[0].destination]["x-message-ttl"]
        assert isinstance(ttl, int)
        waited += ttl
        waits += 1
        exchange = str(arguments[found[0].destination]["x-dead-letter-exchange"])


@given(st.integers(1, MAX_DELAY_SECONDS), st.sampled_from(["email", "a.b", "b"]))
def test_any_delay_is_exact_and_ends_at_its_own_queue(seconds: int, queue: str) -> None:
    topology = Topology()
    waited, waits, reached = walk(topology, ["email", "a.b", "b"], seconds, queue)
    assert waited == seconds * 1000
    assert waits == seconds.bit_count() <= 28
    assert reached == [topology.release_queue(queue)]


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 1), (1, 1), (1.01, 2), (59.5, 60)])
def test_a_delay_is_rounded_up(seconds: float, expected: int) -> None:
    assert delay_ladder.whole_seconds(seconds) == expected


@pytest.mark.parametrize("schedule_by", ["ladder", "exchange"])
def test_a_job_waits_eight_years_at_a_time(schedule_by: Literal["ladder", "exchange"]) -> None:
    topology = Topology(schedule_by=schedule_by)
    assert topology.schedule_address("email", 2**40) == topology.schedule_address("email", 2**28 - 1)


def test_a_release_queue_gives_the_key_back() -> None:
    queue, binding = Topology().release_entities("email")
    assert isinstance(queue, QueueDeclaration)
    assert isinstance(binding, BindingDeclaration)
    assert queue.arguments == {
        "x-dead-letter-exchange": "ojs.exchange.direct",
        "x-dead-letter-routing-key": "email",
        "x-message-ttl": 0,
    }
