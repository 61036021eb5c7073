"""Compressed bodies: of requests, in gzip or zstd, and of large answers to clients that accept gzip.

A body is decompressed up to the limit of its path and no further, and all decompressed bodies in progress have a limit
together: a few octets may stand for many. Work on large bodies leaves the event loop.
"""

from __future__ import annotations

import asyncio
import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from waybill.backend.errors import RequestRefused
from waybill.backend.message import Request, Response
from waybill.backend.router import Handler
from waybill.backend.server.limits import body_limit, too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    try:
        from backports import zstd
    except ImportError as error:
        raise ImportError("HTTP needs the package backports.zstd: pip install 'waybill-amqp[http]'") from error

ENCODING: Final = "content-encoding"
CODINGS: Final = ("gzip", "zstd")
"""The codings that requests may use (ojs-payload-limits section 6)."""
MOST_INFLATED_BYTES: Final = 64 * 1024 * 1024
MOST_MEMBERS: Final = 100
AT_A_TIME: Final = 2
"""How many bodies are decompressed at the same time."""
LEAST_BYTES: Final = 4 * 1024
"""Smaller answers are not worth it."""
LEAVES_LOOP_BYTES: Final = 64 * 1024
LEVEL: Final = 1

_READING: Final = frozenset({"GET", "HEAD"})
_WINDOW: Final = 16 + zlib.MAX_WBITS
"""zlib's value for gzip."""
_ZSTD_OPTIONS: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: 23}
"""A frame that needs a window of more than 8 MiB is refused (RFC 9659): the decompressor allocates it at once."""


class _Reader(Protocol):
    """Decompresses one member."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _gzip_reader() -> _Reader:
    return zlib.decompressobj(_WINDOW)


def _zstd_reader() -> _Reader:
    return zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)


_READERS: Final[dict[str, Callable[[], _Reader]]] = {"gzip": _gzip_reader, "x-gzip": _gzip_reader, "zstd": _zstd_reader}


class Compression:
    """The compression of one application."""

    def __init__(self) -> None:
        self._line = asyncio.Semaphore(AT_A_TIME)
        self._inflated = 0
        """The octets of the decompressed bodies in progress."""

    async def handle(self, request: Request, handler: Handler) -> Response:
        """Pass on a request with its body decompressed, and compress the answer. Raises RequestRefused."""
        coding = request.headers.get(ENCODING, "").strip().lower()
        if not request.body or coding in {"", "identity"}:
            response = await handler(request)
        elif coding not in _READERS:
            text = f"The content coding {coding[:100]!r} is not supported."
            headers = [("Accept-Encoding", ", ".join(CODINGS))]
            raise RequestRefused("UNSUPPORTED_COMPRESSION", text, headers=headers)
        else:
            async with self._line:
                request.body = await asyncio.to_thread(
                    _inflated, request.body, _READERS[coding], body_limit(request.path)
                )
            with self._counted(len(request.body)):
                response = await handler(request)
        if request.method in _READING:
            await _compress(request, response)
        return response

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        if self._inflated + size > MOST_INFLATED_BYTES:
            raise RequestRefused("overloaded", "The server is processing too many compressed requests.")
        self._inflated += size
        try:
            yield
        finally:
            self._inflated -= size


def is_concerned(request: Request) -> bool:
    """Return whether the body of a request or of its answer may be compressed."""
    headers = request.headers
    return ENCODING in headers or (request.method in _READING and "accept-encoding" in headers)


def _inflated(body: bytes, make_reader: Callable[[], _Reader], limit: int) -> bytes:
    """Return a decompressed body of one or more members. Raises RequestRefused."""
    pieces: list[bytes] = []
    left = limit
    try:
        while body:
            reader = make_reader()
            piece = reader.decompress(body, left + 1)
            left -= len(piece)
            if left < 0:
                details = too_large(limit - left, limit)
                raise RequestRefused("payload_too_large", "The decompressed body is too large.", details=details)
            pieces.append(piece)
            if not reader.eof:
                raise RequestRefused("invalid_payload", "The compressed body is incomplete.")
            # A copy of the rest.
            body = reader.unused_data
            if body and len(pieces) == MOST_MEMBERS:
                raise RequestRefused("invalid_payload", f"The compressed body has more than {MOST_MEMBERS} members.")
    except (zlib.error, zstd.ZstdError):
        raise RequestRefused("invalid_payload", "The body is not compressed as its Content-Encoding says.") from None
    return b"".join(pieces)


async def _compress(request: Request, response: Response) -> None:
    """Compress an answer, if the client accepts that and it is worth it."""
    body = response.body
    if response.stream is not None or len(body) < LEAST_BYTES:
        return
    names = {name.lower() for name, _ in response.headers}
    if "content-encoding" in names:
        return
    response.headers.append(("Vary", "Accept-Encoding"))
    if not _accepts_gzip(request.headers.get("accept-encoding", "")):
        return
    if len(body) < LEAVES_LOOP_BYTES:
        response.body = gzip.compress(body, LEVEL, mtime=0)
    else:
        response.body = await asyncio.to_thread(gzip.compress, body, LEVEL, mtime=0)
    response.headers.append(("Content-Encoding", "gzip"))


def _accepts_gzip(header: str) -> bool:
    """Whether a list of codings allows gzip (RFC 9110 section 12.5.3)."""
    weights: dict[str, bool] = {}
    for one in header.split(","):
        name, _, rest = one.partition(";")
        weight = rest.strip().removeprefix("q=").strip()
        weights[name.strip().lower()] = not weight or weight.strip("0.") != ""
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", False)))
