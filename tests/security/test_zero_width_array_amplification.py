"""An array of items without any octets of value: a few octets that would become a huge list."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from tests.security.attack import array, declare, field, header, publish, table

TOO_MANY = table(field("a", "A", array(b"V" * 100_000)))


def test_in_the_arguments_of_a_method(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.peer.write(declare(TOO_MANY))
    channel.peer.expect_refused(502)


def test_in_the_headers_of_a_message(bench: Bench, bystander: Channel) -> None:
    channel = bench.channel()
    channel.exchange("by-headers", "headers", auto_delete=False)
    channel.peer.write(publish("by-headers", "") + header(0, TOO_MANY))
    channel.peer.expect_refused(502)


@pytest.mark.parametrize("depth", [3, 30])
def test_spread_over_nested_arrays(bench: Bench, bystander: Channel, depth: int) -> None:
    items = b"V" * 2000
    for _ in range(depth):
        items = b"A" + array(items) + b"V" * (100_000 // depth)
    channel = bench.channel()
    channel.peer.write(declare(table(field("a", "A", array(items)))))
    channel.peer.expect_refused(502)
