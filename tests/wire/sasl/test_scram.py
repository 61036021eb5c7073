"""SCRAM-SHA-256: the example of RFC 7677, and responses that nobody honest sends."""

import base64
import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waybill.wire.sasl.errors import MalformedResponse
from waybill.wire.sasl.scram import ServerExchange, derive_keys, parse_client_first, prepare

SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
WITHOUT_PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PROOF = b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KEYS = derive_keys("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)


def exchange() -> ServerExchange:
    return ServerExchange(parse_client_first(CLIENT_FIRST), KEYS, SERVER_NONCE)


def test_the_example_of_the_rfc() -> None:
    assert exchange().challenge == SERVER_FIRST
    assert exchange().finish(WITHOUT_PROOF + PROOF) == SERVER_FINAL


@pytest.mark.parametrize(
    "response",
    [
        WITHOUT_PROOF.replace(b"biws", b"eSws") + PROOF,
        WITHOUT_PROOF[:-1] + PROOF,
        WITHOUT_PROOF + b",p=",
        WITHOUT_PROOF + b",p=AAAA",
        WITHOUT_PROOF + PROOF + b"AAAA",
        WITHOUT_PROOF,
    ],
)
def test_what_does_not_go_on_with_the_exchange(response: bytes) -> None:
    with pytest.raises(MalformedResponse):
        exchange().finish(response)


@pytest.mark.parametrize("position", [3, 20, 40])
def test_a_proof_with_one_other_character_proves_nothing(position: int) -> None:
    other = PROOF[:position] + (b"A" if PROOF[position : position + 1] != b"A" else b"B") + PROOF[position + 1 :]
    assert exchange().finish(WITHOUT_PROOF + other) is None


@given(st.binary(max_size=200))
@example(b"n,,n=\xc0,r=x")
@example(b"y,,n=,r=x")
def test_any_octets_are_a_response_or_malformed(octets: bytes) -> None:
    for prefix in (b"", b"n,,", b"n,,n="):
        with contextlib.suppress(MalformedResponse):
            parse_client_first(prefix + octets)
    for prefix in (b"", WITHOUT_PROOF + b",p="):
        with contextlib.suppress(MalformedResponse):
            assert exchange().finish(prefix + octets) is None


@pytest.mark.parametrize(("text", "prepared"), [("I\u00adX", "IX"), ("\u2168", "IX"), ("a\u00a0b", "a b"), ("ª", "a")])
def test_the_examples_of_saslprep(text: str, prepared: str) -> None:
    assert prepare(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\ufdd0", "\ud800", "\ue000"])
def test_what_saslprep_prohibits(text: str) -> None:
    with pytest.raises(MalformedResponse):
        prepare(text)
