"""Pushes with an idempotency key: one that is repeated must reach its region as it was, to be known there.

What the layer adds to a job is remembered under the key. It is lost with the process.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final, NamedTuple

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.idempotency import MAX_KEY
from waybill.federation.wanted import Form

MOST: Final = 10_000


class Added(NamedTuple):
    """The id of a job, and the federation attributes of its metadata."""

    digest: bytes
    job_id: str
    attributes: Form


class KeyedPushes:
    """What was added to the newest of them."""

    def __init__(self, most: int = MOST) -> None:
        """Remember so many."""
        self._most = most
        self._added: OrderedDict[tuple[str, str], Added] = OrderedDict()

    def find(self, actor: str, key: str, body: bytes) -> Added | None:
        """Return what was added to a job that is pushed again; None for a new one.

        `actor` is whose key it is. Raises RequestRefused for another job under a key that was used.
        """
        if not 0 < len(key) <= MAX_KEY or not key.isprintable():
            raise invalid("Idempotency-Key", f"must have 1 to {MAX_KEY} printable characters")
        found = self._added.get((actor, key))
        if found is not None and found.digest != _digest(body):
            raise RequestRefused(
                "conflict", "This idempotency key was used for another request.", hint="Use a new key for each change."
            )
        return found

    def note(self, actor: str, key: str, body: bytes, job_id: str, attributes: Form) -> None:
        """Remember what was added to a job."""
        self._added[actor, key] = Added(_digest(body), job_id, attributes)
        while len(self._added) > self._most:
            self._added.popitem(last=False)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
