"""The head of a request (RFC 9112): its line and its fields, read strictly.

What two readers could take for different requests is refused: bare line feeds, white space before a colon, folded
lines, lengths that disagree, a length beside a transfer coding. A client sends nearly the same head again and again, so
those read last are remembered: of a head that is known nothing is looked at any more.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import unquote

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_TARGET_BYTES: Final = 8 * 1024
MAX_FIELDS: Final = 100
MAX_LENGTH_DIGITS: Final = 18
REMEMBERED_HEADS: Final = 500
REMEMBERED_BYTES: Final = 1024
"""Longer heads are read each time."""

_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_VERSION: Final = re.compile(rb".* HTTP/[0-9]\.[0-9]", re.DOTALL)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_SINGLE: Final = frozenset({"host", "content-length", "authorization", "content-type"})


class BadRequest(Exception):
    """A request that cannot be read: `code` is one of the codes of errors."""

    def __init__(self, code: str, message: str, method: str = "", fields: dict[str, str] | None = None) -> None:
        """Say what is wrong in a whole sentence; `method` and `fields` are what could be read."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.method = method
        self.fields = fields or {}


class Head(NamedTuple):
    """What a head says. `headers` has names in lower case; it is shared by requests, so nobody changes it."""

    method: str
    path: str
    query: bytes
    headers: dict[str, str]
    length: int
    """Octets of the body; -1 if it is chunked."""
    is_old: bool
    """Whether it is of HTTP/1.0."""
    stays: bool
    """Whether the connection may be used again."""
    is_asked: bool
    """Whether the client waits for a 100 before it sends the body."""


class HeadReader:
    """Reads heads."""

    def __init__(self) -> None:
        self._known: dict[bytes, Head] = {}

    def read(self, raw: bytes) -> Head:
        """Return what a head says, given without the empty line at its end. Raises BadRequest."""
        found = self._known.get(raw)
        if found is None:
            found = read_head(raw)
            if len(raw) <= REMEMBERED_BYTES:
                if len(self._known) >= REMEMBERED_HEADS:
                    self._known.clear()
                self._known[raw] = found
        return found


def read_head(raw: bytes) -> Head:
    """Return what a head says. Raises BadRequest."""
    line, _, rest = raw.partition(b"\r\n")
    method, target, is_old = read_line(line)
    headers = _fields(rest, method)
    try:
        path, query = _target(target, method)
        length = _length(headers, is_old=is_old)
        is_asked = not is_old and _expects(headers) and length != 0
    except BadRequest as error:
        error.method, error.fields = method, headers
        raise
    wanted = {one.strip() for one in headers.get("connection", "").lower().split(",")}
    stays = "keep-alive" in wanted if is_old else "close" not in wanted
    return Head(method, path, query, headers, length, is_old, stays, is_asked)


def read_line(line: bytes) -> tuple[str, bytes, bool]:
    """Return the method and the target of a request line, and whether it is of HTTP/1.0. Raises BadRequest."""
    found = _LINE.fullmatch(line)
    if found is None:
        if len(line) > MAX_TARGET_BYTES and _VERSION.fullmatch(line) is None and b" " in line[:70]:
            raise BadRequest("uri_too_long", f"The target is longer than {MAX_TARGET_BYTES} bytes.")
        raise BadRequest("invalid_request", "The request line is not METHOD /path HTTP/1.1.")
    if found[3] != b"1":
        raise BadRequest("version_not_supported", "This server speaks HTTP/1.1 and HTTP/1.0.")
    target = found[2]
    if len(target) > MAX_TARGET_BYTES:
        raise BadRequest("uri_too_long", f"The target is longer than {MAX_TARGET_BYTES} bytes.", found[1].decode())
    return found[1].decode(), target, found[4] == b"0"


def _target(target: bytes, method: str) -> tuple[str, bytes]:
    """Return the path of a target, decoded, and its query."""
    if b"#" in target:
        raise BadRequest("invalid_request", "The target has a fragment.")
    raw, _, query = target.partition(b"?")
    if not raw.startswith(b"/"):
        scheme, found, rest = raw.partition(b"://")
        if raw == b"*" or method == "CONNECT":
            return raw.decode("ascii"), query
        if not found or scheme.lower() not in {b"http", b"https"}:
            raise BadRequest("invalid_request", "The target is no path.")
        raw = b"/" + rest.partition(b"/")[2]
    path = raw.decode("ascii")
    return unquote(path) if "%" in path else path, query


def _fields(rest: bytes, method: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    lines = rest.split(b"\r\n") if rest else []
    if len(lines) > MAX_FIELDS:
        raise BadRequest("headers_too_large", f"There are more than {MAX_FIELDS} headers.", method)
    for line in lines:
        raw, colon, value = line.partition(b":")
        if not colon or _NAME.fullmatch(raw) is None or _CONTROL.search(value) is not None:
            raise BadRequest("invalid_request", "A header is not NAME: VALUE.", method)
        name = raw.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        before = headers.get(name)
        if before is None:
            headers[name] = text
        elif name not in _SINGLE:
            headers[name] = f"{before}, {text}"
        elif before != text or name == "host":
            raise BadRequest("invalid_request", f"The header {name} is there twice.", method)
    return headers


def _expects(headers: dict[str, str]) -> bool:
    """Say whether the client waits before it sends the body; look at what else HTTP/1.1 asks for."""
    if "host" not in headers:
        raise BadRequest("invalid_request", "The header Host is missing.")
    expected = headers.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise BadRequest("expectation_failed", "The header Expect can say 100-continue only.")
    return expected is not None


def _length(headers: dict[str, str], *, is_old: bool) -> int:
    """Return how many octets the body has, -1 for a chunked one."""
    coding = headers.get("transfer-encoding")
    declared = headers.get("content-length")
    if coding is not None:
        if declared is not None or is_old:
            raise BadRequest("invalid_request", "The length of the body is ambiguous.")
        if coding.lower() != "chunked":
            raise BadRequest("not_implemented", "The only transfer coding is chunked.")
        return -1
    if declared is None:
        return 0
    if not (declared.isascii() and declared.isdecimal()):
        raise BadRequest("invalid_request", "The header Content-Length is no number.")
    if len(declared) > MAX_LENGTH_DIGITS:
        raise BadRequest("payload_too_large", "The body is too large.")
    return int(declared)
