import pytest
from hypothesis import given
from hypothesis import strategies as st

from waybill.wire.amqp091.field_table import encode_table
from waybill.wire.sasl import amqplain, external, plain
from waybill.wire.sasl.errors import MalformedResponse
from waybill.wire.sasl.plain import PlainCredentials

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=300)


def test_plain_known_octets() -> None:
    assert plain.build_response("guest", "secret") == b"\0guest\0secret"
    assert plain.parse_response(b"\0guest\0secret") == PlainCredentials("guest", "secret")
    assert plain.parse_response(b"other\0g\xc3\xa9\0") == PlainCredentials("gé", "", "other")


def test_amqplain_known_octets() -> None:
    octets = b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x06secret"
    assert amqplain.build_response("guest", "secret") == octets
    assert amqplain.parse_response(octets) == PlainCredentials("guest", "secret")
    assert amqplain.parse_response(octets + b"\x01kV") == PlainCredentials("guest", "secret")


@given(words, words, words)
def test_round_trips(user: str, password: str, identity: str) -> None:
    assert plain.parse_response(plain.build_response(user, password, identity)) == PlainCredentials(
        user, password, identity
    )
    assert amqplain.parse_response(amqplain.build_response(user, password)) == PlainCredentials(user, password)
    assert external.parse_response(external.build_response(identity)) == identity


@pytest.mark.parametrize("response", [b"", b"guest", b"guest\0secret", b"\0guest\0sec\0ret", b"\0\0\0\0"])
def test_plain_with_other_than_three_parts_is_refused(response: bytes) -> None:
    with pytest.raises(MalformedResponse):
        plain.parse_response(response)


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\x05LOGIN",
        encode_table({"LOGIN": "a", "PASSWORD": "b"}),
        encode_table({"LOGIN": "a"})[4:],
        encode_table({"LOGIN": "a", "PASSWORD": 5})[4:],
        encode_table({"LOGIN": b"a", "PASSWORD": "b"})[4:],
        encode_table({"LOGIN": "a", "PASSWORD": "b"})[4:-1],
    ],
)
def test_amqplain_without_both_strings_is_refused(response: bytes) -> None:
    with pytest.raises(MalformedResponse):
        amqplain.parse_response(response)


@given(st.binary(max_size=60))
def test_garbage_raises_malformed_response_only(response: bytes) -> None:
    for parse in (plain.parse_response, amqplain.parse_response, external.parse_response):
        try:
            parse(response)
        except MalformedResponse:
            continue


def test_nul_and_lone_surrogates_have_no_place() -> None:
    for build in (plain.build_response, amqplain.build_response):
        with pytest.raises(MalformedResponse):
            build("\ud800", "")
    with pytest.raises(MalformedResponse):
        plain.build_response("a\0", "b")
    with pytest.raises(MalformedResponse):
        external.build_response("a\0")
    with pytest.raises(MalformedResponse):
        external.build_response("\ud800")
    with pytest.raises(MalformedResponse):
        external.parse_response(b"a\0")


def test_passwords_stay_out_of_logs() -> None:
    assert "hunter2" not in repr(plain.parse_response(b"\0me\0hunter2"))
    with pytest.raises(MalformedResponse) as caught:
        plain.parse_response(b"hunter2")
    assert "hunter2" not in str(caught.value)
