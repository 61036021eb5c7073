"""Names of a shovel's own queues."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

MAX_OCTETS: Final = 255
"""The maximum size of a short string in AMQP 0-9-1."""
DIGEST_DIGITS: Final = 32


def own_name(purpose: str, queue: str) -> str:
    """Return `purpose.queue`. If that is too long, it ends with a digest, so names stay distinct."""
    name = f"{purpose}.{queue}"
    octets = name.encode()
    if len(octets) <= MAX_OCTETS:
        return name
    digest = sha256(queue.encode()).hexdigest()[:DIGEST_DIGITS]
    kept = octets[: MAX_OCTETS - 1 - DIGEST_DIGITS].decode(errors="ignore")
    return f"{kept}~{digest}"
