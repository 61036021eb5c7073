"""Tables in tables in tables, to exhaust the stack of whoever decodes them."""

import pytest

from tests.engine.amqp091.peer import Bench, Channel
from tests.security.attack import array, declare, field, header, publish, table


def nested(depth: int, *, in_arrays: bool) -> bytes:
    if in_arrays:
        items = b""
        for _ in range(depth):
            items = b"A" + array(items)
        return table(field("a", "A", array(items)))
    inner = table()
    for _ in range(depth):
        inner = table(field("a", "F", inner))
    return inner


@pytest.mark.parametrize("in_arrays", [False, True])
@pytest.mark.parametrize("depth", [33, 1000, 15_000])
def test_in_the_arguments_of_a_method(bench: Bench, bystander: Channel, depth: int, in_arrays: bool) -> None:
    channel = bench.channel()
    channel.peer.write(declare(nested(depth, in_arrays=in_arrays)))
    channel.peer.expect_refused(502)


@pytest.mark.parametrize("depth", [33, 15_000])
def test_in_the_headers_of_a_message(bench: Bench, bystander: Channel, depth: int) -> None:
    channel = bench.channel()
    channel.declare("q")
    channel.peer.write(publish("", "q") + header(0, nested(depth, in_arrays=False)))
    channel.peer.expect_refused(502)
