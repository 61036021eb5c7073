"""Pushes with an idempotency key: a repeated push must be identical for its region to recognise it.

The fields that the layer adds to a job are remembered by key, as long as the process runs.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from waybill.backend.errors import RequestRefused, invalid
from waybill.backend.idempotency import MAX_KEY
from waybill.federation.wanted import Form
from waybill.ojs.bounded_dict import BoundedDict

MOST: Final = 10_000


class Added(NamedTuple):
    """The id of a job, and the federation attributes of its metadata."""

    digest: bytes
    job_id: str
    attributes: Form


class KeyedPushes:
    """The added fields of the newest pushes."""

    def __init__(self, most: int = MOST) -> None:
        """`most` limits the number of pushes."""
        self._added: BoundedDict[tuple[str, str], Added] = BoundedDict(most)

    def find(self, actor: str, key: str, body: bytes) -> Added | None:
        """Return the fields that were added to a repeated push; None for a new one.

        `actor` is the owner of the key. Raises RequestRefused if the key was used for another job.
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
        """Remember the added fields of a job."""
        self._added[actor, key] = Added(_digest(body), job_id, attributes)


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
