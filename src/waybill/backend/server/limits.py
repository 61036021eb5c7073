"""How much a client may send, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_BODY_BYTES: Final = 1024 * 1024
"""What the specification gives as the default limit of a job."""
MAX_LENGTH_DIGITS: Final = 18
"""Of a length that a header gives: Python takes long for more, and refuses too many."""
MAX_BATCH_BYTES: Final = 16 * MAX_BODY_BYTES
BATCH_PATH: Final = "/ojs/v1/jobs/batch"
MANAGEMENT_PATH: Final = "/api/"
"""Of definitions, and of messages that are published by hand."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds."""

    connections: int = 20_000
    keep_alive: float = 75.0
    """How long a connection may be idle between requests."""
    head: float = 10.0
    """How long a head may take from its first octet on."""
    body: float = 20.0
    """How long a body may take, and a second more for each `body_rate` octets of it."""
    body_rate: int = 16 * 1024
    write: float = 60.0
    """How long a client may read nothing of its answer."""
    linger: float = 5.0
    """How long what a refused client still sends is read and dropped, so that it can read why."""
    pipelined_bytes: int = 64 * 1024
    """How much of the next requests is read while one is being answered."""
    body_bytes: int = 128 * 1024 * 1024
    """How much the bodies that are being received or worked on may take together."""


def body_limit(path: str) -> int:
    """Return the maximum size of a request body in octets."""
    return MAX_BATCH_BYTES if path == BATCH_PATH or path.startswith(MANAGEMENT_PATH) else MAX_BODY_BYTES
