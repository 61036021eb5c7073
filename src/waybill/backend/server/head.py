"""The head of a request (RFC 9112): its request line and its fields.

The parser refuses ambiguous requests: bare line feeds, white space before a colon, folded lines, two lengths, a length
with a transfer coding. Other errors are found here. Clients repeat nearly the same head, so the last heads are cached,
and a known head is not checked again.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple
from urllib.parse import unquote

from waybill.backend.server.limits import MAX_LENGTH_DIGITS, body_limit

MAX_HEAD_BYTES: Final = 32 * 1024
MAX_FIELDS: Final = 100
LARGE_BYTES: Final = 64 * 1024
"""Bodies from this size on count toward the limit of all connections."""
REMEMBERED_HEADS: Final = 500

_HOST: Final = re.compile(r"([A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_SINGLE: Final = frozenset({"host", "authorization", "content-type"})


class BadRequest(Exception):
    """A request that cannot be read: `code` is one of the codes of errors."""

    def __init__(self, code: str, message: str, details: dict[str, object] | None = None) -> None:
        """`message` describes the error in a full sentence."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.method = ""
        self.fields: dict[str, str] = {}
        """The readable part of the request."""


class Head(NamedTuple):
    """A parsed head. `headers` has names in lower case; requests share it, so it must not be changed."""

    method: str
    path: str
    query: bytes
    headers: dict[str, str]
    length: int
    """The size of the body; -1 if it is chunked."""
    limit: int
    """The maximum size of the body."""
    is_old: bool
    """Whether it is HTTP/1.0."""
    stays: bool
    """Whether the connection stays open."""
    is_asked: bool
    """Whether the client waits for a 100 before it sends the body."""
    is_cut: bool
    """Whether the parser ends the request after the head, as another protocol could follow."""
    is_special: bool
    """Whether the body needs preparation."""
    target: str
    """The encoded path."""


@functools.lru_cache(REMEMBERED_HEADS)
def read_head(
    method: bytes,
    version: str,
    target: bytes,
    fields: tuple[bytes, ...],
    stays: bool,  # noqa: FBT001
    upgrades: bool,  # noqa: FBT001
) -> Head:
    """Parse a head: `fields` are alternating names and values. Raises BadRequest."""
    headers: dict[str, str] = {}
    try:
        is_old = _is_old(version)
        _read_fields(fields, headers)
        raw, query, host = _target(target, method)
        path = unquote(raw) if "%" in raw else raw
        length = _length(headers, is_old=is_old, may_be=method != b"CONNECT")
        is_asked = not is_old and _expects(headers) and length != 0
        _set_host(headers, host)
    except BadRequest as error:
        error.method, error.fields = method.decode(), headers
        raise
    is_special = is_asked or not 0 <= length < LARGE_BYTES
    limit = body_limit(path)
    is_cut = upgrades and length != 0
    return Head(method.decode(), path, query, headers, length, limit, is_old, stays, is_asked, is_cut, is_special, raw)


def _is_old(version: str) -> bool:
    if version not in {"1.1", "1.0"}:
        raise BadRequest("version_not_supported", "This server speaks HTTP/1.1 and HTTP/1.0.")
    return version == "1.0"


def _read_fields(fields: tuple[bytes, ...], headers: dict[str, str]) -> None:
    if len(fields) > 2 * MAX_FIELDS:
        raise BadRequest("headers_too_large", f"The request has more than {MAX_FIELDS} headers.")
    if sum(map(len, fields)) > MAX_HEAD_BYTES:
        raise BadRequest("headers_too_large", f"The head is longer than {MAX_HEAD_BYTES} bytes.")
    for raw, value in zip(fields[::2], fields[1::2], strict=True):
        name = raw.decode("ascii").lower()
        text = value.strip(b" \t").decode("latin-1")
        before = headers.get(name)
        if before is None:
            headers[name] = text
        elif name not in _SINGLE:
            headers[name] = f"{before}, {text}"
        elif before != text or name == "host":
            raise BadRequest("invalid_request", f"The header {name} appears twice.")


def _target(target: bytes, method: bytes) -> tuple[str, bytes, str | None]:
    """Return the path, the query and the host of a target; most have no host."""
    if b"#" in target:
        raise BadRequest("invalid_request", "The target has a fragment.")
    raw, _, query = target.partition(b"?")
    if not raw.startswith(b"/"):
        scheme, found, rest = raw.partition(b"://")
        if (raw == b"*" and method == b"OPTIONS") or method == b"CONNECT":
            return raw.decode("ascii"), query, None
        host, _, path = rest.partition(b"/")
        if not found or not host or scheme.lower() not in {b"http", b"https"}:
            raise BadRequest("invalid_request", "The target is not a path.")
        return f"/{path.decode('ascii')}", query, host.decode("ascii")
    return raw.decode("ascii"), query, None


def _set_host(headers: dict[str, str], host: str | None) -> None:
    """Replace the host by that of the target (RFC 9112 section 3.2.2), if it has one."""
    if host is not None:
        headers["host"] = host
    if _HOST.fullmatch(headers.get("host", "")) is None:
        raise BadRequest("invalid_request", "The host is not a name or an address, with or without a port.")


def _expects(headers: dict[str, str]) -> bool:
    """Return whether the client waits before it sends the body; checks other requirements of HTTP/1.1."""
    if "host" not in headers:
        raise BadRequest("invalid_request", "The header Host is missing.")
    expected = headers.get("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise BadRequest("expectation_failed", "The header Expect supports only 100-continue.")
    return expected is not None


def _length(headers: dict[str, str], *, is_old: bool, may_be: bool) -> int:
    """Return the size of the body, -1 for a chunked one."""
    coding = headers.get("transfer-encoding")
    digits = headers.get("content-length", "0").lstrip("0") or "0"
    if len(digits) > MAX_LENGTH_DIGITS:
        raise BadRequest("payload_too_large", "The body is too large.")
    length = int(digits)
    if not may_be and (length or coding is not None):
        raise BadRequest("invalid_request", "This method does not allow a body.")
    if coding is None:
        return length
    if is_old:
        raise BadRequest("invalid_request", "The length of the body is ambiguous.")
    if coding.lower() != "chunked":
        raise BadRequest("not_implemented", "The only supported transfer coding is chunked.")
    return -1
