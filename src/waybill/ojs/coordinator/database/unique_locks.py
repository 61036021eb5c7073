"""Locks for unique jobs: reservations of one key are decided one by one, also across partitions of the event stream.

The partitions have no common order, so the order of the transactions decides. A lock is held until its transaction
ends: the next holder sees the earlier reservations.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sql
from sqlalchemy.engine import Connection
from xxhash import xxh3_64_intdigest

_LOCK = sql.select(sql.func.pg_advisory_xact_lock(sql.bindparam("key", type_=sql.BigInteger)))


def lock_keys(connection: Connection, keys: Iterable[str]) -> None:
    """Lock some fingerprints, always in the same order. Two fingerprints may share a lock."""
    for key in sorted({xxh3_64_intdigest(one.encode(errors="surrogatepass")) >> 1 for one in keys}):
        connection.execute(_LOCK, {"key": key})
