"""Heads of requests: what is read, and what is refused because two readers could take it for different things."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.backend.server.body import BodyTooLarge, Chunks
from waybill.backend.server.head import MAX_FIELDS, MAX_TARGET_BYTES, BadRequest, HeadReader, read_head

HOST = b"\r\nHost: a"


def test_a_head_says_what_is_asked() -> None:
    head = read_head(
        b"POST /a%20b/c?x=1 HTTP/1.1\r\nHOST: a\r\nA: 1 \r\nA:\t2\r\nContent-Length: 7\r\nExpect: 100-Continue"
    )
    assert (head.method, head.path, head.query, head.length) == ("POST", "/a b/c", b"x=1", 7)
    assert head.headers == {"host": "a", "a": "1, 2", "content-length": "7", "expect": "100-Continue"}
    assert (head.is_old, head.stays, head.is_asked) == (False, True, True)
    assert not read_head(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close, x").stays
    assert not read_head(b"GET / HTTP/1.0").stays
    assert read_head(b"GET / HTTP/1.0\r\nConnection: keep-alive").stays
    assert read_head(b"GET http://b.example:1/x/y?z HTTP/1.1" + HOST)[1:3] == ("/x/y", b"z")
    assert read_head(b"GET /x HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: Chunked").length == -1


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET  / HTTP/1.1" + HOST, "invalid_request"),
        (b"GET / HTTP/1.1 " + HOST, "invalid_request"),
        (b"GET / HTTP/1,1" + HOST, "invalid_request"),
        (b"GE\xffT / HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /\xc3\xa9 HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /#a HTTP/1.1" + HOST, "invalid_request"),
        (b"GET nowhere HTTP/1.1" + HOST, "invalid_request"),
        (b"PRI * HTTP/2.0", "version_not_supported"),
        (b"GET /" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1" + HOST, "uri_too_long"),
        (b"GET / HTTP/1.1", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost : a", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\rX: b", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\x00", "invalid_request"),
        (b"GET / HTTP/1.1\r\nno header", "invalid_request"),
        (b"GET / HTTP/1.1" + HOST + b"\r\nA: 1" * MAX_FIELDS, "headers_too_large"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: +1", "invalid_request"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: -1", "invalid_request"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: 1, 1", "invalid_request"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: 1\r\nContent-Length: 2", "invalid_request"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: " + b"9" * 30, "payload_too_large"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", "invalid_request"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", "invalid_request"),
        (b"POST / HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: gzip, chunked", "not_implemented"),
        (
            b"POST / HTTP/1.1" + HOST + b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "not_implemented",
        ),
        (b"POST / HTTP/1.1" + HOST + b"\r\nExpect: 200-ok", "expectation_failed"),
    ],
)
def test_what_is_ambiguous_is_refused(raw: bytes, code: str) -> None:
    with pytest.raises(BadRequest) as error:
        read_head(raw)
    assert error.value.code == code


def test_a_head_that_is_known_is_the_same() -> None:
    reader = HeadReader()
    raw = b"GET /x HTTP/1.1\r\nHost: a"
    assert reader.read(raw) is reader.read(raw)
    assert reader.read(raw) == read_head(raw)


@given(st.binary(max_size=300), st.booleans())
def test_no_octets_do_more_than_be_refused(raw: bytes, has_line: bool) -> None:
    with suppress(BadRequest):
        read_head(b"GET / HTTP/1.1\r\n" + raw if has_line else raw)


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_chunks_are_one_body_however_they_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(b"%X;a=b\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\nTrailer: x\r\n\r\nNEXT"
    chunks, buffer, done = Chunks(1000), bytearray(), False
    while not done:
        count = data.draw(st.integers(1, len(raw) or 1))
        buffer += raw[:count]
        raw = raw[count:]
        done = chunks.take(buffer)
    assert bytes(chunks.body) == b"".join(pieces)
    assert bytes(buffer) + raw == b"NEXT"


@pytest.mark.parametrize(
    "raw", [b"x\r\n", b"-1\r\n", b"\r\n", b"1\r\nabc", b"0x1\r\n", b"1" * 300, b"f" * 16 + b"\r\n"]
)
def test_bad_chunks_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        Chunks(1000).take(bytearray(raw))


def test_chunks_beyond_the_limit_are_refused_before_they_come() -> None:
    with pytest.raises(BodyTooLarge):
        Chunks(1000).take(bytearray(b"400\r\n"))
    with pytest.raises(BadRequest, match="trailers"):
        Chunks(1000).take(bytearray(b"0\r\n" + b"a" * 9000))
