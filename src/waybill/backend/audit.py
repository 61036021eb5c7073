"""The audit log: who changed what, and when. Entries are records that are kept for 30 days.

Pushes are not logged, since job events record them. Bodies are not logged, as they may contain secrets.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from waybill.backend.job_form import Form
from waybill.backend.message import Request
from waybill.ojs.coordinator.records import Records
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.timestamps import format_timestamp

KIND: Final = "audit/"
RETENTION: Final = timedelta(days=30)
_LAST_MILLISECOND: Final = 2**48 - 1
MAX_PATH: Final = 500


class Entry(msgspec.Struct, omit_defaults=True):
    """A change. `actor` is the name of the API key; empty if the server has no keys."""

    time: str
    actor: str
    method: str
    path: str
    status: int
    request_id: str


def record_change(records: Records, request: Request, status: int) -> None:
    """Record a change."""
    now = datetime.now(UTC)
    entry = Entry(format_timestamp(now), request.actor, request.method, request.path[:MAX_PATH], status, request.id)
    # Keys are listed in ascending order, and the newest entry must be first.
    key = f"{KIND}{_LAST_MILLISECOND - time.time_ns() // 1_000_000:012x}-{new_id()[19:]}"
    records.put_soon(key, entry, expires_at=format_timestamp(now + RETENTION))


async def entries(records: Records, limit: int, after: str) -> list[Form]:
    """Return the newest entries, or those older than the entry `after`."""
    found = await records.list(KIND, limit, KIND + after if after and len(after) < 100 else "")
    return [{"id": one.key.removeprefix(KIND), **msgspec.to_builtins(one.read(Entry))} for one in found]
