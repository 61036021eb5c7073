"""The results of a workflow's jobs as JSON, one after another in one row of octets; 4 octets more for each job.

It is a log: what was added since is written by itself, and the whole is made again of these parts.
"""

from __future__ import annotations

from array import array
from typing import Final

import msgspec

from waybill.ojs.workflow.numbering import FIRST_MEMBER, MAX_MEMBERS

MAX_RESULTS_BYTES: Final = 64 * 1024 * 1024
"""What a workflow keeps in all. A result beyond it is kept with its job only, and stands here as a reference."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[tuple[int, bytes]]).decode


class Results:
    """Results by the number of their job."""

    def __init__(self) -> None:
        """There are none."""
        self._octets = bytearray()
        self._nodes = array("I")
        self._members = array("I")
        """Where the result of a number begins, plus 1; 0 for none."""
        self._new: list[tuple[int, bytes]] = []

    @property
    def size(self) -> int:
        """How many octets there are in all."""
        return len(self._octets)

    def add(self, number: int, result: bytes) -> bool:
        """Keep a result; False if there is no room for it."""
        if len(self._octets) + len(result) > MAX_RESULTS_BYTES:
            return False
        self._keep(number, result)
        self._new.append((number, result))
        return True

    def get(self, number: int) -> bytes | None:
        """Return the result of a job, None if there is none."""
        row, index = self._row(number)
        if index >= len(row) or row[index] == 0:
            return None
        start = row[index] - 1
        length = int.from_bytes(self._octets[start : start + 4])
        return bytes(self._octets[start + 4 : start + 4 + length])

    def take_new(self) -> bytes | None:
        """Return what was added since the last call, to be written; None if nothing was."""
        if not self._new:
            return None
        encoded = _encode(self._new)
        self._new = []
        return encoded

    def load(self, part: bytes) -> None:
        """Take back what was written."""
        for number, result in _decode(part):
            self._keep(number, result)

    def _row(self, number: int) -> tuple[array[int], int]:
        return (self._members, number - FIRST_MEMBER) if number >= FIRST_MEMBER else (self._nodes, number)

    def _keep(self, number: int, result: bytes) -> None:
        row, index = self._row(number)
        if not 0 <= index < MAX_MEMBERS:
            return
        if index >= len(row):
            row.extend(bytes(index + 1 - len(row)))
        row[index] = len(self._octets) + 1
        self._octets += len(result).to_bytes(4)
        self._octets += result
