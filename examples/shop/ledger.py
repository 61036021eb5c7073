"""What the shop has done, in one SQLite file that all of its processes write: SHOP_LEDGER, or shop.sqlite."""

import functools
import os
import sqlite3
from typing import Final

from waybill import current_job

_SCHEMA: Final = """
create table if not exists done (
    what text, subject text, job text, attempt integer, runs integer,
    primary key (what, subject, job, attempt)
)
"""
_NOTE: Final = "insert into done values (?, ?, ?, ?, 1) on conflict do update set runs = runs + 1"


@functools.cache
def _open(path: str, _process: int) -> sqlite3.Connection:
    # Handlers in threads note as well as those of the loop: SQLite serializes them.
    ledger = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    ledger.execute("pragma journal_mode = wal")
    ledger.execute("pragma synchronous = off")
    ledger.execute(_SCHEMA)
    return ledger


def note(what: str, subject: object) -> None:
    """Write down that the job at hand has done something about a subject."""
    job = current_job()
    ledger = _open(os.environ.get("SHOP_LEDGER", "shop.sqlite"), os.getpid())
    ledger.execute(_NOTE, (what, str(subject), job.id, job.attempt))
