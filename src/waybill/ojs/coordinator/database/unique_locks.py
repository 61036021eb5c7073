"""Locks for unique jobs: reservations of one key in several partitions of the event stream are decided one by one.

The partitions have no common order, so the order of the transactions decides. A lock is held until its transaction
ends: whoever waits for it sees the reservations before.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sql
from sqlalchemy.engine import Connection
from xxhash import xxh3_64_intdigest

_LOCK = sql.select(sql.func.pg_advisory_xact_lock(sql.bindparam("key", type_=sql.BigInteger)))


def lock_keys(connection: Connection, keys: Iterable[str]) -> None:
    """Lock some fingerprints, in one order everywhere. Two that share a lock do no harm."""
    for key in sorted({xxh3_64_intdigest(one.encode(errors="surrogatepass")) >> 1 for one in keys}):
        connection.execute(_LOCK, {"key": key})
