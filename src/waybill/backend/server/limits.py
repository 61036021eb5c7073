"""Limits of sizes and times for clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_BODY_BYTES: Final = 1024 * 1024
"""The specification's default limit of a job."""
MAX_LENGTH_DIGITS: Final = 18
"""The maximum digits of a length: Python is slow for more, and refuses too many."""
STREAM_BUFFER_BYTES: Final = 1024
"""How much unread output of one stream is buffered. There may be thousands of streams."""
MAX_BATCH_BYTES: Final = 16 * MAX_BODY_BYTES
BATCH_PATH: Final = "/ojs/v1/jobs/batch"
MANAGEMENT_PATH: Final = "/api/"
"""The limit for definitions and for published messages."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds."""

    connections: int = 10_240
    """Closing this many at once takes the kernel more than 0.1 s, during which no client is served."""
    refused: int = 500
    """How many more may wait for the answer that there are too many."""
    tls_connections: int = 3000
    """How many of them may use TLS, which takes 50 KB for each."""
    streams: int = 4096
    """How many event streams and streamed lists there may be at a time: an event may be for all of them."""
    keep_alive: float = 75.0
    """How long a connection may be idle between requests."""
    head: float = 10.0
    """How long a head may take from its first octet."""
    body: float = 20.0
    """How long a body may take, plus one second for each `body_rate` octets."""
    body_rate: int = 16 * 1024
    write: float = 60.0
    """How long a client may stop reading its answer."""
    write_crowded: float = 5.0
    """The same while `crowded_bytes` are unread: then reading means `body_rate` octets in a second."""
    crowded_bytes: int = 32 * 1024 * 1024
    """With so much unread, a further large answer waits a moment."""
    linger: float = 5.0
    """How long the input of a refused client is dropped, so that it can read the error."""
    pipelined_bytes: int = 16 * 1024
    """How much of the next requests is parsed while one is in progress."""
    body_bytes: int = 48 * 1024 * 1024
    """The maximum total size of bodies that are being received or processed, of large heads, and of unparsed input."""
    unread_bytes: int = 64 * 1024 * 1024
    """The maximum total size of answers that clients do not read."""
    turn: float = 0.004
    """How long one turn of the loop works on input beyond the first request of each connection."""


def body_limit(path: str) -> int:
    """Return the maximum size of a request body in octets."""
    return MAX_BATCH_BYTES if path == BATCH_PATH or path.startswith(MANAGEMENT_PATH) else MAX_BODY_BYTES


def too_large(actual_bytes: int, max_bytes: int) -> dict[str, object]:
    """Return the details of the error for a body that is too large (ojs-payload-limits section 9.1)."""
    return {"field": "envelope", "actual_bytes": actual_bytes, "max_bytes": max_bytes}
