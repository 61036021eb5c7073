"""Headers that the broker adds to, filled to their limits by the publisher."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from tests.security.attack import array, field, header, publish, table
from waybill.wire.amqp091.properties import BasicProperties

FULL = table(field("a", "A", array(b"V" * 65_535)))


@pytest.mark.ours
@pytest.mark.parametrize("arguments", [{"x-message-ttl": 10}, {"x-max-length": 0}])
def test_a_death_that_has_no_room_in_the_headers_is_the_end(
    bench: Bench, bystander: Channel, arguments: dict[str, object]
) -> None:
    channel = bench.channel()
    channel.declare("dead")
    channel.declare("q", {**arguments, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.peer.write(publish("", "q") + header(0, FULL))
    channel.publish(b"next")
    bench.advance(0.1)
    assert channel.take_all("dead") == [b"next"]


@pytest.mark.parametrize("count", [2**63 - 1, -(2**63), "many", None])
def test_a_forged_count_of_deaths(bench: Bench, bystander: Channel, count: object) -> None:
    channel = bench.channel()
    channel.declare("dead")
    channel.declare("q", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    death = {"queue": "q", "reason": "expired", "count": count}
    channel.publish(b"1", properties=BasicProperties(headers={"x-death": [death]}))
    bench.advance(0.1)
    assert channel.take_all("dead") == [b"1"]


@pytest.mark.ours
def test_the_record_of_deaths_is_bounded(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.declare("dead")
    channel.declare("q", {"x-message-ttl": 10, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    deaths = [{"queue": f"q{number}", "reason": "expired", "count": 1} for number in range(300)]
    channel.publish(b"1", properties=BasicProperties(headers={"x-death": deaths}))
    bench.advance(0.1)
    assert channel.depth("q") == 0
    assert channel.depth("dead") == 0
