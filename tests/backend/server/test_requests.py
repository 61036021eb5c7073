"""Requests: what is read, and what is refused because two readers could take it for different things."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waybill.backend.server import requests
from waybill.backend.server.head import MAX_FIELDS, BadRequest
from waybill.backend.server.limits import MAX_BODY_BYTES
from waybill.backend.server.requests import MAX_TARGET_BYTES, REMEMBERED_BYTES, Phase, Received, RequestReader

HOST = b"\r\nHost: a"
POST = b"POST / HTTP/1.1" + HOST
CHUNKED = POST + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
GET = b"GET /next HTTP/1.1" + HOST + b"\r\n\r\n"


def read_all(parts: Iterable[bytes]) -> list[Received]:
    reader = RequestReader(lambda _size: None)
    for part in parts:
        reader.feed(part)
    return list(reader.ready)


def read(raw: bytes) -> Received:
    """Read one request, whole and then octet by octet: both must be the same."""
    found = read_all([raw])
    assert read_all(raw[index : index + 1] for index in range(len(raw))) == found
    (one,) = found
    return one


def test_a_head_says_what_is_asked() -> None:
    head, body, _ = read(
        b"POST /a%20b/c?x=1 HTTP/1.1\r\nHOST: a\r\nA: 1 \r\nE:\r\nA:\t2\r\nContent-Length: 3\r\nExpect: 100-Continue"
        b"\r\n\r\nabc"
    )
    assert (head.method, head.path, head.query, head.length, body) == ("POST", "/a b/c", b"x=1", 3, b"abc")
    assert head.headers == {"host": "a", "a": "1, 2", "e": "", "content-length": "3", "expect": "100-Continue"}
    assert (head.is_old, head.stays, head.is_asked) == (False, True, True)
    assert not read(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close, x\r\n\r\n").head.stays
    assert not read(b"GET / HTTP/1.0\r\n\r\n").head.stays
    assert read(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").head.stays
    absolute = read(b"\r\nGET http://b.example:1/x/y?z HTTP/1.1" + HOST + b"\r\n\r\n").head
    assert (absolute[1:3], absolute.headers["host"]) == (("/x/y", b"z"), "b.example:1")
    assert read(POST + b"\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n").head.length == -1


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"GET / HTTP/1.1 " + HOST, "invalid_request"),
        (b"GET / HTTP/1,1" + HOST, "invalid_request"),
        (b"GET / HTTP/1.1\n" + HOST, "invalid_request"),
        (b"GE\xffT / HTTP/1.1" + HOST, "invalid_request"),
        (b"CONNECT a:1 HTTP/1.1" + HOST + b"\r\nContent-Length: 1", "invalid_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\n", "invalid_request"),
        (b"x" * 9000, "not_implemented"),
        (b"GET /\xc3\xa9 HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /a b HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /a\0b HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /#a HTTP/1.1" + HOST, "invalid_request"),
        (b"GET nowhere HTTP/1.1" + HOST, "invalid_request"),
        (b"GET /\r\n", "version_not_supported"),
        (b"GET / HTTP/2.0" + HOST, "version_not_supported"),
        (b"GET / HTTP/3.0" + HOST, "version_not_supported"),
        (b"PRI * HTTP/2.0\r\n\r\nSM", "version_not_supported"),
        (b"GET /" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1" + HOST, "uri_too_long"),
        (b"GET / HTTP/1.1", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost : a", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded", "invalid_request"),
        (b"GET / HTTP/1.1\r\n folded: a\r\nHost: a", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\nX: b", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\rX: b", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\x00", "invalid_request"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: \x7f", "invalid_request"),
        (b"GET / HTTP/1.1\r\nno header", "invalid_request"),
        (b"GET / HTTP/1.1" + HOST + b"\r\n: 1", "invalid_request"),
        (b"GET / HTTP/1.1" + HOST + b"\r\nA: 1" * MAX_FIELDS, "headers_too_large"),
        (b"GET * HTTP/1.1" + HOST, "invalid_request"),
        (b"GET http:///x HTTP/1.1" + HOST, "invalid_request"),
        (b"GET http://u@b.example/x HTTP/1.1" + HOST, "invalid_request"),
        (b"GET http://b.example/x HTTP/1.1", "invalid_request"),
        *((b"GET / HTTP/1.1\r\nHost: " + host, "invalid_request") for host in (b"a b", b"a:b", b"a/b", b"[a", b"a, b")),
        (b"GET / HTTP/1.1" + HOST + b"\r\nA: " + b"x" * 40_000, "headers_too_large"),
        (POST + b"\r\nContent-Length: +1", "invalid_request"),
        (POST + b"\r\nContent-Length: -1", "invalid_request"),
        (POST + b"\r\nContent-Length: 0x1", "invalid_request"),
        (POST + b"\r\nContent-Length:", "invalid_request"),
        (POST + b"\r\nContent-Length: 1, 1", "invalid_request"),
        (POST + b"\r\nContent-Length: 1\r\nContent-Length: 1", "invalid_request"),
        (POST + b"\r\nContent-Length: " + b"9" * 30, "payload_too_large"),
        (POST + b"\r\nContent-Length: 1" + b"0" * 18, "payload_too_large"),
        (POST + b"\r\nContent-Length: %d" % (MAX_BODY_BYTES + 1), "payload_too_large"),
        (POST + b"\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", "invalid_request"),
        (POST + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 1", "invalid_request"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", "invalid_request"),
        (POST + b"\r\nTransfer-Encoding: gzip", "not_implemented"),
        (POST + b"\r\nTransfer-Encoding: gzip, chunked", "not_implemented"),
        (POST + b"\r\nTransfer-Encoding: chunked, identity", "invalid_request"),
        (POST + b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "invalid_request"),
        (POST + b"\r\nTransfer-Encoding: \x0bchunked", "invalid_request"),
        (POST + b"\r\nExpect: 200-ok", "expectation_failed"),
    ],
)
def test_what_is_ambiguous_is_refused(raw: bytes, code: str) -> None:
    raw += b"\r\n\r\n"
    with pytest.raises(BadRequest) as error:
        read_all([raw])
    assert error.value.code == code
    with pytest.raises(BadRequest) as error:
        read_all(raw[index : index + 100] for index in range(0, len(raw), 100))
    assert error.value.code == code


@pytest.mark.parametrize(
    "raw",
    [
        *(b"x\r\n", b"-1\r\n", b"\r\n", b"1\r\nabc", b"0x1\r\n", b"1" * 300, b"f" * 17 + b"\r\n", b" 1\r\n", b"1 \r\n"),
        *(b"1\na\r\n", b"1\r\na\n0\r\n\r\n", b"1\r\na\r\n0\n\n", b"1;a\nb\r\na\r\n", b"1;\0\r\na\r\n", b"1\ra\r\n"),
        *(b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nT: a\nB: b\r\n\r\n", b"0\r\nT: a\r\n fold\r\n\r\n"),
    ],
)
def test_bad_chunks_are_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        read_all([CHUNKED, raw])
    with pytest.raises(BadRequest):
        read_all([CHUNKED, *(raw[index : index + 1] for index in range(len(raw)))])


@pytest.mark.parametrize("around", [(b"1;", b"x"), (b"0\r\nT: ", b"x"), (b"0\r\n", b"T: " + b"x" * 96 + b"\r\n")])
def test_what_is_around_chunks_has_limits(around: tuple[bytes, bytes]) -> None:
    start, rest = around
    with pytest.raises(BadRequest) as error:
        read_all([CHUNKED, start, *[rest * (1000 // len(rest))] * 40])
    assert error.value.code == "headers_too_large"


def test_chunks_beyond_the_limit_are_refused() -> None:
    with pytest.raises(BadRequest) as error:
        read_all([CHUNKED, b"ffffffff\r\n", *[b"x" * 65_536] * 17])
    assert error.value.code == "payload_too_large"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.data())
def test_chunks_are_one_body_however_they_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    raw = CHUNKED + b"".join(b"%X;a=b\r\n%b\r\n" % (len(one), one) for one in pieces) + b"0\r\nTrailer: x\r\n\r\n" + GET
    parts = []
    while raw:
        count = data.draw(st.integers(1, len(raw)))
        parts.append(raw[:count])
        raw = raw[count:]
    first, second = read_all(parts)
    assert first.body == b"".join(pieces)
    assert "trailer" not in first.head.headers
    assert second.head.path == "/next"


@pytest.mark.parametrize(
    "framing", [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize("line", [b"POST /x", b"BREW /x"])
def test_nothing_is_upgraded_and_bodies_stay_bodies(line: bytes, framing: bytes) -> None:
    raw = line + b" HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" + framing
    for parts in ([raw + GET], [raw, GET], [raw[:-4], raw[-4:] + GET]):
        first, second = read_all(parts)
        assert (first.head.method, first.body) == (line.split()[0].decode(), b"abc")
        assert second.head.path == "/next"
    first, second = read_all([b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + GET])
    assert (first.head.path, second.head.path) == ("/", "/next")
    trailed, second = read_all([CHUNKED + b"0\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" + GET])
    assert (trailed.body, second.head.path) == (b"", "/next")


def test_what_follows_the_last_request_is_not_read() -> None:
    for parts in ([b"GET / HTTP/1.0\r\n\r\n" + GET], [b"GET / HTTP/1.0\r\n\r\n", GET]):
        reader = RequestReader(lambda _size: None)
        for part in parts:
            reader.feed(part)
        assert (len(reader.ready), reader.is_last, reader.has_more) == (1, True, True)


def test_a_head_that_is_known_is_the_same() -> None:
    first, second = read_all([GET + GET])
    assert first.head is second.head
    long = GET[:-2] + b"A: " + b"x" * REMEMBERED_BYTES + b"\r\n\r\n"
    first, second = read_all([long + long])
    assert first == second
    assert first.head is not second.head


PIECES = (
    *(b"GET / HTTP/1.1\r\n", b"POST /a?b HTTP/1.1\r\n", b"BREW / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n", b"\r\n"),
    *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Content-Length: +3\r\n", b"\r\n\r\n"),
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
    *(b"Expect: 100-continue\r\n", b"Transfer-Encoding: chunked\r\n", b"abc", b"3\r\nabc\r\n0\r\n\r\n", b"a: b\n"),
)


def outcome(parts: Iterable[bytes]) -> tuple[list[Received], str, Phase, bool, bool, bool]:
    reader = RequestReader(lambda _size: None)
    code = ""
    try:
        for part in parts:
            reader.feed(part)
    except BadRequest as error:
        code = error.code
    return list(reader.ready), code, reader.phase, reader.is_last, reader.is_asked, reader.has_more


@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=7).map(b"".join), min_size=1, max_size=3))
@settings(max_examples=300)
def test_a_request_that_is_not_parsed_again_is_the_same(parts: list[bytes]) -> None:
    requests._known.clear()
    cold = outcome(parts)
    assert outcome(parts) == cold
    # Others know a head by now that came behind something else.
    warm = outcome([b"".join(parts)])
    requests._known.clear()
    assert outcome([b"".join(parts)]) == warm


def test_only_whole_and_usual_requests_are_known() -> None:
    requests._known.clear()
    body = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
    for raw in (body[:-1], body + GET, GET[:-2] + b"Connection: close\r\n\r\n", CHUNKED + b"0\r\n\r\n"):
        read_all([raw])
        assert not requests._known
    for _ in range(2):
        (found,) = read_all([body])
        assert (found.body, list(requests._known)) == (b"abc", [body[:-3]])
    for number in range(requests.KNOWN_WHOLE + 10):
        read_all([b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number])
    assert len(requests._known) <= requests.KNOWN_WHOLE


@given(st.binary(max_size=300), st.booleans())
def test_no_octets_do_more_than_be_refused(raw: bytes, has_line: bool) -> None:
    reader = RequestReader(lambda _size: None)
    with suppress(BadRequest):
        reader.feed(b"GET / HTTP/1.1\r\n" + raw if has_line else raw)
        assert reader.phase in Phase


def test_a_length_of_many_digits_is_read() -> None:
    """Python refuses to make a number of more than 4,300."""
    found = read(POST + b"\r\nContent-Length: " + b"0" * 5000 + b"3\r\n\r\nabc")
    assert (found.head.length, found.body) == (3, b"abc")
