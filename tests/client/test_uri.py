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
        "&auth_mechanism=external&cacertfile=/ca.pem&certfile=/c.pem&keyfile=/k.pem&verify=verify_none",
        name="me",
    )
    assert (address.host, address.port, address.tls, address.connect_timeout_s) == ("::1", 1234, True, 1.5)
    assert (address.authority, address.certificate, address.key) == (Path("/ca.pem"), Path("/c.pem"), Path("/k.pem"))
    assert not address.verify
    settings = address.settings
    assert (settings.user, settings.password, settings.virtual_host) == ("us@er", "p/w", "/ojs")
    assert (settings.heartbeat_s, settings.channel_max, settings.frame_max) == (5, 9, 8192)
    assert (settings.mechanism, settings.name) == ("EXTERNAL", "me")
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
