"""Names of the queues that a shovel keeps for itself."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

MAX_OCTETS: Final = 255
"""A short string of AMQP 0-9-1 holds so many."""
DIGEST_DIGITS: Final = 32


def own_name(purpose: str, queue: str) -> str:
    """Return `purpose.queue`. The end of a name that is too long is a digest, so no two queues share one."""
    name = f"{purpose}.{queue}"
    octets = name.encode()
    if len(octets) <= MAX_OCTETS:
        return name
    digest = sha256(queue.encode()).hexdigest()[:DIGEST_DIGITS]
    kept = octets[: MAX_OCTETS - 1 - DIGEST_DIGITS].decode(errors="ignore")
    return f"{kept}~{digest}"
