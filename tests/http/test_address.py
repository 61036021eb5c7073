"""URLs of servers."""

import pytest

from waybill.client import InvalidURI
from waybill.http.address import Address, parse_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8080", Address("http://localhost:8080", None)),
        ("https://jobs.example.com/", Address("https://jobs.example.com", None)),
        ("HTTPS://wb_key@jobs.example.com/prefix/", Address("https://jobs.example.com/prefix", "wb_key")),
        ("http://:wb%40key@[::1]:8080", Address("http://[::1]:8080", "wb@key")),
    ],
)
def test_a_url_has_a_server_and_perhaps_a_key(url: str, expected: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYBILL_API_KEY", raising=False)
    assert parse_url(url) == expected
    if expected.key is not None:
        assert expected.key not in repr(parse_url(url))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.1", True),
        ("http://[::1]", True),
        ("http://jobs.example.com", False),
    ],
)
def test_this_machine_is_known(url: str, *, expected: bool) -> None:
    assert parse_url(url).is_loopback is expected


def test_the_environment_has_the_key_of_a_url_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_API_KEY", "wb_env")
    assert parse_url("http://localhost").key == "wb_env"
    assert parse_url("http://own@localhost").key == "own"


@pytest.mark.parametrize(
    "url", ["http://", "ftp://localhost", "http://localhost:port", "http://localhost:99999", "http://[::1", "http://h/?q",
            "http://secret%0A@localhost", "http://localhost/#f"]
)  # fmt: skip
def test_a_wrong_url_is_refused_without_its_key(url: str) -> None:
    with pytest.raises(InvalidURI) as raised:
        parse_url(url)
    assert "secret" not in str(raised.value)
