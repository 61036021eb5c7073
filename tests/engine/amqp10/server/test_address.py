"""Addresses of nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.engine.amqp10.address import InvalidAddress, parse_address, queue_address, quoted, unquoted


@pytest.mark.parametrize(
    ("text", "kind", "name", "key"),
    [
        ("/queues/q", "queue", "q", None),
        ("/queues/a%2Fb%20c", "queue", "a/b c", None),
        ("/queues/%C3%A9", "queue", "é", None),
        ("/queues/é", "queue", "é", None),
        ("/exchanges/amq.topic/a.b", "exchange", "amq.topic", "a.b"),
        ("/exchanges/x/", "exchange", "x", ""),
        ("/exchanges/x", "exchange", "x", None),
        ("/exchanges/x/k%2F", "exchange", "x", "k/"),
        ("/management", "management", "/management", None),
        ("$management", "management", "$management", None),
        ("jobs", "plain", "jobs", None),
        ("jobs/high", "plain", "jobs/high", None),
        ("50%", "plain", "50%", None),
    ],
)
def test_an_address_names_a_node(text: str, kind: str, name: str, key: str | None) -> None:
    address = parse_address(text)
    assert (address.kind, address.name, address.key) == (kind, name, key)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "names no node"),
        ("/queues/", "names nothing"),
        ("/exchanges/", "names nothing"),
        ("/exchanges//key", "names nothing"),
        ("/queues/a/b", "%2F"),
        ("/exchanges/x/a/b", "%2F"),
        ("/queues/%", "hexadecimal"),
        ("/queues/%4", "hexadecimal"),
        ("/queues/%zz", "hexadecimal"),
        ("/queues/%+1", "hexadecimal"),
        ("/queues/" + "x" * 256, "255"),
        ("x" * 256, "255"),
        ("/exchanges/amq.default/q", "/queues/:queue"),
        ("/queue/q", "version 1: write /queues/:queue"),
        ("/amq/queue/q", "version 1: write /queues/:queue"),
        ("/exchange/x/k", "version 1: write /exchanges/:exchange/:key"),
        ("/topic/a.b", "version 1: write /exchanges/amq.topic/:key"),
        ("/nonsense", "neither"),
    ],
)
def test_what_is_no_address_says_why(text: str, hint: str) -> None:
    with pytest.raises(InvalidAddress, match=hint.replace("%", "%")):
        parse_address(text)


@given(st.binary(min_size=1, max_size=40))
def test_any_name_has_an_address(octets: bytes) -> None:
    name = octets.decode("utf-8", "surrogateescape")
    assert parse_address(queue_address(name)).name == name
    assert unquoted(quoted(name)) == name
