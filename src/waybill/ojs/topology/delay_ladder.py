"""Delays of any length without a plugin: a ladder of 28 levels, level k waiting 2**k seconds.

A delay is written in binary, and the message waits once for each bit that is 1, the greatest first:

    key of a delay of 5 s for queue email:   0.0.0. ... .0.1.0.1.email
                                             |27            |2|1|0   bit

    exchange level 2 --1--> queue level 2 (TTL 4 s) --dead letter--> exchange level 1 --0--> exchange level 0
                                                                                             --1--> queue level 0
    (TTL 1 s) --dead letter--> exchange release --email--> queue release of email (TTL 0, rewrites the key)
                                                           --dead letter--> direct exchange, key `email`

Every exchange is a topic exchange with two bindings, one for its own bit being 1 (to its queue) and one for its being
0 (to the exchange below). All messages in one queue wait equally long, so the head of the queue is always the next to
expire. Dead-lettering keeps the routing key, because the level queues name none. Publishing goes to the exchange of
the highest bit set. So any delay below 2**28 seconds (8.5 years) makes at most 28 waits.

The last queue exists once for each job queue: it is where the key becomes the queue's own again, so that a released
job arrives at the direct exchange exactly like one that has just been pushed.
"""

from __future__ import annotations

import math
from typing import Final

from waybill.ojs.spec.envelope import MAX_DELAY_SECONDS

LEVELS: Final = MAX_DELAY_SECONDS.bit_length()


def whole_seconds(delay_seconds: float) -> int:
    """Round a delay up to whole seconds, so that a job is late by less than a second and never early.

    A delay of more than 8.5 years is cut: the receiver of an early job forwards it to wait further.
    """
    return min(max(math.ceil(delay_seconds), 1), MAX_DELAY_SECONDS)


def entry_level(seconds: int) -> int:
    """Return the level of the highest bit, where a message with this delay enters the ladder."""
    return seconds.bit_length() - 1


def routing_key(seconds: int, queue: str) -> str:
    """Return the bits of the delay, highest first, and the queue, joined by dots."""
    return ".".join(f"{seconds:0{LEVELS}b}") + "." + queue


def bit_pattern(level: int, bit: int) -> str:
    """Return the binding key that matches a delay whose bit `level` is `bit`."""
    return "*." * (LEVELS - 1 - level) + f"{bit}.#"


def queue_pattern(queue: str) -> str:
    """Return the binding key that matches any delay for exactly this queue.

    Each star matches one bit. With `#` instead, a queue `b` would also match the key of `a.b`.
    """
    return "*." * LEVELS + queue
