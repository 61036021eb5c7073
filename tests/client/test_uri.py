"""What a URI says."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.client.uri import InvalidURI, parse_uri


def test_defaults() -> None:
    address = parse_uri("amqp://")
    assert (address.host, address.port, address.tls, address.connect_timeout_s) == ("localhost", 5672, False, 30)
    settings = address.settings
    assert (settings.user, settings.password, settings.virtual_host) == ("guest", "guest", "/")
    assert (settings.heartbeat_s, settings.mechanism) == (60, "PLAIN")


def test_everything() -> None:
    address = parse_uri(
        "amqps://us%40er:p%2Fw@[::1]:1234/%2Fojs?heartbeat=5&connection_timeout=1500&channel_max=9&frame_max=8192"
        "&message_size_max=5000&auth_mechanism=external&cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&verify=verify_none",
        name="me",
    )
    assert (address.host, address.port, address.tls, address.connect_timeout_s) == ("::1", 1234, True, 1.5)
    assert (address.authority, address.certificate, address.key) == (Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"))
    assert not address.verify
    settings = address.settings
    assert (settings.user, settings.password, settings.virtual_host) == ("us@er", "p/w", "/ojs")
    assert (settings.heartbeat_s, settings.channel_max, settings.frame_max) == (5, 9, 8192)
    assert (settings.mechanism, settings.name, settings.message_size_max) == ("EXTERNAL", "me", 5000)
    assert str(address) == "amqps://[::1]:1234/%2Fojs"


@pytest.mark.parametrize(
    "uri",
    [
        "http://s3cret@host",
        "amqp://u:s3cret@host:port",
        "amqp://u:s3cret@host:99999",
        "amqp://u:s3cret@host/a/b",
        "amqp://u:s3cret@host/?heartbeat=x",
        "amqp://u:s3cret@host/?heartbeat=70000",
        "amqp://u:s3cret@host/?nonsense",
        "amqp://u:s3cret@host/?unknown=1",
        "amqp://u:s3cret@host/?verify=maybe",
        "amqp://u:s3#cret@host/",
        "amqp:/s3cret",
        "amqp://u:s3cret@[host/",
    ],
)
def test_nonsense_is_refused_without_showing_the_password(uri: str) -> None:
    with pytest.raises(InvalidURI) as caught:
        parse_uri(uri)
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidURI):
        parse_uri("amqp://" + text)


def test_the_password_is_in_no_repr() -> None:
    assert "s3cret" not in repr(parse_uri("amqp://u:s3cret@host"))


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("amqp://u:p@a:5673,b,c:1/v", "amqp://a:5673,b:5672,c:1/v"),
        ("amqp://u:p@a,amqp://u:other@b", "amqp://a:5672,b:5672/%2F"),
        (["amqp://u:p@a", "amqp://u:p@b"], "amqp://a:5672,b:5672/%2F"),
        ("amqps://u:p@[::1],b/v, amqp://u:p@c/v", "amqps://[::1]:5671/v,amqps://b:5671/v,amqp://c:5672/v"),
        ("amqp://u:p,x@a", "amqp://a:5672/%2F"),
        ("amqp://u:p@a/v,w", "amqp://a:5672/v%2Cw"),
    ],
)
def test_the_nodes_of_a_cluster(uri: str | list[str], shown: str) -> None:
    assert str(parse_uri(uri)) == shown


def test_nodes_share_the_options_and_wait_less_for_each_other() -> None:
    address = parse_uri("amqp://a,b,c/?heartbeat=5&request_timeout=1000")
    assert [node.host for node in address.nodes] == ["a", "b", "c"]
    assert {node.settings.heartbeat_s for node in address.nodes} == {5}
    assert {node.connect_timeout_s for node in address.nodes} == {10}
    assert address.request_timeout_s == 1
    assert parse_uri("amqp://a,b/?connection_timeout=3000").nodes[1].connect_timeout_s == 3
    assert parse_uri("amqp://a").connect_timeout_s == 30


@pytest.mark.parametrize(
    "uri",
    [
        "amqp://a,,b",
        "amqp://a,",
        "amqp://,",
        "amqp://a,b:x",
        "amqp://a/v,amqp://b/w",
        "amqp://u@a,amqp://w@b",
        "amqp://a,http://b",
        "amqp://" + ",".join(["a"] * 65),
        [],
    ],
)
def test_nodes_that_are_refused(uri: str | list[str]) -> None:
    with pytest.raises(InvalidURI):
        parse_uri(uri)
