"""The ids of rows that name none: the same in each try of a task, in whatever order it gets its rows.

A write, or the batch of a streaming query, has a name that outlives a try; with the number of the partition it gives
the first digits of an id. The last eighteen come from what the row says. Rows of a partition that say the same are as
many jobs, told apart by how many of them there are, not by their places.

    nnnnnnnn-nnnn-7ccc-accc-cccccccccccc        n: name, c: content; 7 and a are UUIDv7's version and variant
"""

import hashlib
from collections.abc import Sequence
from typing import Final

_DIGEST_BYTES: Final = 9


def digest(content: bytes) -> bytes:
    """What `RowIds` knows a row by."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


class RowIds:
    """Makes the ids of one partition, in one pass over its rows."""

    def __init__(self, name: str) -> None:
        digits = hashlib.sha256(name.encode()).hexdigest()
        self._head = f"{digits[:8]}-{digits[8:12]}-7"
        self._seen: set[bytes] = set()
        self._again: dict[bytes, int] = {}

    def ids(self, digests: Sequence[bytes]) -> list[str]:
        """Those of the next rows."""
        head, seen = self._head, self._seen
        found = []
        for one in digests:
            own = self._next(one) if one in seen else one
            seen.add(own)
            text = own.hex()
            found.append(f"{head}{text[:3]}-a{text[3:6]}-{text[6:]}")
        return found

    def _next(self, one: bytes) -> bytes:
        """The digest of a row that says what others before it did."""
        self._again[one] = count = self._again.get(one, 0) + 1
        return digest(one + count.to_bytes(_DIGEST_BYTES))
