"""Reads requests from octets: httptools parses, and this module adds the limits that it lacks.

Clients repeat the same few heads, and mostly send a request in one piece. Such a request is not parsed again: the
cached result for the same head is used.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

import httptools

from waybill.backend.message import Request
from waybill.backend.server.head import MAX_HEAD_BYTES, BadRequest, Head, read_head
from waybill.backend.server.limits import MAX_LENGTH_DIGITS, Limits, too_large

MAX_TARGET_BYTES: Final = 8 * 1024
REMEMBERED_BYTES: Final = 1024
"""Longer heads are not cached, to limit memory."""
KNOWN_WHOLE: Final = 500
UNRESERVED_BYTES: Final = 4 * 1024
"""Heads and bodies up to this size need no reservation: the limit of connections covers them."""
PIECE_BYTES: Final = 1024
"""How much input is parsed at once: it may be requests or chunks of a few octets."""
END_OF_HEAD: Final = b"\r\n\r\n"
_known: Final[dict[bytes, Head]] = {}
"""The heads of simple requests that arrived alone and in one piece."""
_METHOD: Final = re.compile(rb"(?:\r\n)*([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}+)( |\Z|[!#$%&'*+.^_`|~0-9A-Za-z-])")
_STAND_IN: Final = b"SOURCE "


class Phase(Enum):
    """The part of a request that has arrived."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


class Received(NamedTuple):
    """A complete request, and the memory reserved for its body."""

    head: Head
    body: bytes
    reserved: int


class RequestReader:
    """Reads the requests of one connection."""

    def __init__(self, reserve: Callable[[int], None]) -> None:
        """`reserve` reserves memory for octets of a body, and raises BadRequest if there is none."""
        self.phase = Phase.NOTHING
        self.ready: deque[Received] = deque()
        """Complete requests."""
        self.is_asked = False
        """Whether the client waits for a 100 before it sends the body."""
        self.is_last = False
        """Whether the client has announced its last request."""
        self.has_more = False
        """Whether it has sent more nevertheless."""
        self._reserve = reserve
        self._parser: Any = httptools.HttpRequestParser(self)
        self._fault: BadRequest | None = None
        self._head: Head | None = None
        self._target = b""
        self._fields: list[bytes] = []
        self._method = b""
        """The method of the request, once known."""
        self._body: bytes | bytearray = b""
        self._reserved = 0
        self._loose = 0
        """Octets since the last callback of the parser."""
        self._has_moved = False

    @property
    def missing(self) -> int:
        """The size of the rest of the body; 0 if it is unknown."""
        head = self._head
        return 0 if head is None or self.phase is not Phase.BODY else max(0, head.length - len(self._body))

    @property
    def is_fresh(self) -> bool:
        """Whether the next octet begins a request, and none is waiting."""
        return self.phase is Phase.NOTHING and not (self._loose or self._method or self.is_last or self.ready)

    @property
    def size(self) -> int:
        """The received size of the body."""
        return len(self._body)

    def overdue(self, waited: float, limits: Limits) -> BadRequest | None:
        """Return the error for the rest of a request that did not arrive in time, None if there is still time."""
        if self.phase is Phase.HEAD:
            part, is_late = "head", waited > limits.head
        else:
            part, is_late = "body", waited > limits.body + self.size / limits.body_rate
        return BadRequest("request_timeout", f"The {part} of the request did not arrive in time.") if is_late else None

    def close(self) -> None:
        """Release what has been received, and the parser, which refers to this reader. Nothing more can be read."""
        self._parser = None
        self.ready.clear()
        self._forget()

    def feed(self, data: bytes) -> None:
        """Process received data. Raises BadRequest, after which nothing more can be read."""
        if self.is_last:
            self.has_more = True
            return
        # With a method, the parser gets a substitute for the real input.
        is_first, parser = self.phase is Phase.NOTHING and not self._loose and not self._method, self._parser
        if is_first:
            end = head_end(data)
            known = _known.get(data[:end])
            if known is not None and known.length == len(data) - end:
                self.ready.append(Received(known, data[end:], 0))
                return
        is_start = self.phase is Phase.NOTHING
        self._has_moved = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            # An upgrade to another protocol was offered and is ignored.
            self._begin_again(data[pause.args[0] :])
        except httptools.HttpParserInvalidMethodError:
            found = _METHOD.match(data) if is_start and not self._has_moved else None
            if found is None or found[2] != b" " or self._method:
                code = "not_implemented" if found or not is_start else "invalid_request"
                raise self._refusal(code, "The request does not begin with a known method.") from None
            self._method = found[1]
            self._begin_again(_STAND_IN + data[found.end() :])
        except httptools.HttpParserError as error:
            self._explain(error)
        if is_first and parser is self._parser and self.phase is Phase.NOTHING and len(self.ready) == 1:
            _remember(self.ready[0].head, data)
        self._loose = 0 if self._has_moved else self._loose + len(data)
        if self._loose > MAX_HEAD_BYTES:
            raise self._refusal("headers_too_large", f"The head is longer than {MAX_HEAD_BYTES} bytes.")
        if self._loose > UNRESERVED_BYTES and not self._reserved:
            self._take_room(MAX_HEAD_BYTES)

    def _begin_again(self, data: bytes) -> None:
        """Continue with a new parser where this one stopped."""
        self._parser = httptools.HttpRequestParser(self)
        if self._head is not None:
            # The parser assumes that there is no body: give it a head without an upgrade.
            pairs = zip(self._fields[::2], self._fields[1::2], strict=True)
            fields = b"".join(b"%b: %b\r\n" % one for one in pairs if one[0].lower() != b"upgrade")
            data = b"%b%b HTTP/1.1\r\n%b\r\n%b" % (_STAND_IN, self._target, fields, data)
            method = self._method
            self._forget()
            self._method = method
        self.phase = Phase.NOTHING
        if data:
            self.feed(data)
        self._has_moved = True

    def _explain(self, error: httptools.HttpParserError) -> None:
        """Raise BadRequest for an error of the parser."""
        if self.is_last:
            self.has_more = True
            return
        fault = self._fault
        if fault is None:
            if isinstance(error, httptools.HttpParserCallbackError):
                raise error
            text = str(error)
            code = "invalid_request"
            if "overflow" in text:
                code = "payload_too_large"
            elif text in {"Invalid HTTP version", "Pause on PRI/Upgrade"}:
                code = "version_not_supported"
            fault = self._refusal(code, f"The request is not HTTP/1.1: {text}.")
        raise fault from None

    def _refusal(self, code: str, message: str, details: dict[str, object] | None = None) -> BadRequest:
        error = BadRequest(code, message, details)
        if self._head is not None and self.phase is Phase.BODY:
            error.method, error.fields = self._head.method, self._head.headers
        return error

    def _fail(self, code: str, message: str, details: dict[str, object] | None = None) -> BadRequest:
        """Return the error for a callback, and store it: the parser does not pass it on."""
        self._fault = self._refusal(code, message, details)
        return self._fault

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        """A request begins."""
        self.phase = Phase.HEAD

    def on_url(self, piece: bytes) -> None:
        """Add a piece of the target."""
        self._target += piece
        if len(self._target) > MAX_TARGET_BYTES:
            raise self._fail("uri_too_long", f"The target is longer than {MAX_TARGET_BYTES} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Process a header field, or a trailer, which is ignored."""
        self._fields += (name, value)

    def on_headers_complete(self) -> None:
        """Read the head."""
        parser, self._has_moved = self._parser, True
        self._method = method = self._method or parser.get_method()
        try:
            size = len(self._target) + sum(map(len, self._fields))
            self._head = head = (read_head.__wrapped__ if size > REMEMBERED_BYTES else read_head)(
                *(method, parser.get_http_version(), self._target, tuple(self._fields)),
                *(parser.should_keep_alive(), parser.should_upgrade()),
            )
            self.phase = Phase.BODY
            if size > UNRESERVED_BYTES and not self._reserved:
                self._take_room(MAX_HEAD_BYTES)
            if head.is_special:
                self._look_at(head)
        except BadRequest as error:
            self._fault = error
            raise

    def _look_at(self, head: Head) -> None:
        size = head.limit if head.length < 0 else head.length
        if size > head.limit:
            raise self._refusal("payload_too_large", "The body is too large.", too_large(size, head.limit))
        self.is_asked = head.is_asked

    def on_chunk_header(self) -> None:
        """Note that the body continues."""
        self._has_moved = True

    def on_body(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._has_moved = True
        if not self._body:
            self._body = piece
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += piece
        size = len(self._body)
        if self._head is not None and size > self._head.limit:
            raise self._fail("payload_too_large", "The body is too large.", too_large(size, self._head.limit))
        if size > self._reserved + UNRESERVED_BYTES:
            self._take_room(size - self._reserved)

    def _take_room(self, size: int) -> None:
        try:
            self._reserve(size)
        except BadRequest as error:
            self._fault = error
            raise
        self._reserved += size

    def on_message_complete(self) -> None:
        """A request is complete, unless the parser only assumes so."""
        head = self._head
        if head is None or head.is_cut:
            return
        self.ready.append(Received(head, bytes(self._body), self._reserved))
        self.phase = Phase.NOTHING
        self.is_last = not head.stays
        self.is_asked = False
        self._forget()

    def _forget(self) -> None:
        self._head, self._method, self._target, self._body, self._reserved = None, b"", b"", b"", 0
        self._fields.clear()


def request_of(received: Received, peer: str) -> Request:
    """Return a request for the application, without its query, which may be invalid."""
    head = received.head
    return Request(
        head.method,
        head.path,
        {},
        head.headers,
        received.body,
        target=head.target,
        raw_query=head.query,
        peer=peer,
    )


def head_end(data: bytes) -> int:
    """Return the end of the head at the start of `data`; less than 4 if it is incomplete or too long for the cache."""
    return data.find(END_OF_HEAD, 0, REMEMBERED_BYTES) + len(END_OF_HEAD)


def is_one_request(data: bytes) -> bool:
    """Whether input is one request with a body that is not chunked: it is parsed at once, regardless of its size."""
    end = data.find(END_OF_HEAD, 0, PIECE_BYTES)
    if end < 0:
        return False
    _, _, rest = data[:end].lower().partition(b"\r\ncontent-length:")
    digits = rest.partition(b"\r\n")[0].strip()
    return digits.isdigit() and len(digits) < MAX_LENGTH_DIGITS and int(digits) == len(data) - end - 4


def known_head(raw: bytes) -> Head | None:
    """Return the cached head of simple requests that begin with these octets, None if there is none."""
    return _known.get(raw)


def _remember(head: Head, data: bytes) -> None:
    """Cache the head of a request, if it arrived alone."""
    end = head_end(data)
    is_usual = head.stays and not (head.is_old or head.is_special or head.is_cut)
    if is_usual and end >= len(END_OF_HEAD) and data[:1].isalpha() and head.length == len(data) - end:
        if len(_known) >= KNOWN_WHOLE:
            _known.clear()
        _known[data[:end]] = head
