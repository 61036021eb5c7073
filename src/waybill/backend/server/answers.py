"""Encodes answers."""

from __future__ import annotations

import functools
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from waybill.backend.message import Response

_LINES: Final = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n" for one in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_BODY: Final = frozenset({204, 304})


@functools.lru_cache(1)
def _date(second: int) -> str:
    return f"Date: {formatdate(second, usegmt=True)}\r\n"


@functools.lru_cache(1)
def _encoded_date(second: int) -> bytes:
    return _date(second).encode()


def encode_answer(response: Response, *, is_head: bool, stays: bool, is_old: bool = False) -> bytes:
    """Return a response with its body; `stays`: the connection is kept open."""
    body = response.body
    if response.lines:
        framing = f"Content-Length: {len(body)}\r\n{_closing(stays=stays, is_old=is_old)}\r\n"
        return b"".join((response.lines, _encoded_date(int(time.time())), framing.encode(), body))
    if response.status in NO_BODY:
        return _head(response, "" if stays else "Connection: close\r\n", has_type=False)
    closing = _closing(stays=stays, is_old=is_old)
    head = _head(response, f"Content-Length: {len(body)}\r\n{closing}")
    return head if is_head else head + body


def encode_stream_head(response: Response, *, is_chunked: bool, stays: bool) -> bytes:
    """Return the head of a stream; one that is not chunked ends with the connection."""
    framing = "Transfer-Encoding: chunked\r\n" if is_chunked else ""
    return _head(response, framing + _closing(stays=stays and is_chunked, is_old=False))


def encode_switch(response: Response) -> bytes:
    """Return the head after which another protocol follows."""
    return _head(response, "", has_type=False)


def chunk(piece: bytes) -> bytes:
    """Return a piece of a stream as a chunk."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _closing(*, stays: bool, is_old: bool) -> str:
    if not stays:
        return "Connection: close\r\n"
    return "Connection: keep-alive\r\n" if is_old else ""


def _head(response: Response, framing: str, *, has_type: bool = True) -> bytes:
    headers = response.headers
    if not has_type:
        headers = [one for one in headers if one[0] != "Content-Type"]
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not lines.count("\n") == lines.count("\r") == len(headers):
        # A line end in a header could start another answer.
        plain = (f"{name}: {value}".replace("\r", " ").replace("\n", " ") for name, value in headers)
        lines = "".join(f"{one}\r\n" for one in plain)
    status = _LINES.get(response.status) or f"HTTP/1.1 {response.status} \r\n"
    return f"{status}{lines}{_date(int(time.time()))}{framing}\r\n".encode("latin-1", "replace")
