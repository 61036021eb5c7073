"""The JSON of jobs by id; the waiting jobs of a streamed group take little memory.

Until they start, these jobs differ only in their ids, which count up, and in the time, which is the same for some
thousand of them. So a group keeps each text once, without the id, and two bytes for each job: the number of its text. A
million waiting jobs take megabytes, not half a gigabyte.

    01a2b3c4-d5e6-7abc-8def-0123 01000007     piece 0, place 7: 2     texts[2 - 1]: {"id":"?","type":"a.b",...
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from waybill.ojs.coordinator.overflow import Overflow
from waybill.ojs.workflow.numbering import MEMBERS_LENGTH, member_job_id, read_member_id

PIECE: Final = 256
MAX_TEXTS: Final = 60_000
FEW: Final = 64
ALIKE: Final = 16
"""The average number of jobs per text beyond FEW; below it, no more texts are kept here."""

_MEMBER_MARK: Final = "01"
_ID: Final = b"\0"
"""Stands for the id: JSON cannot contain this byte."""


class _Group:
    """The waiting jobs of one streamed group."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: dict[bytes, int] = {}
        self._texts: list[bytes] = []
        self._pieces: dict[int, array[int]] = {}
        """For each job the number of its text, 0 for none; pieces without jobs are left out."""

    def put(self, index: int, text: bytes) -> bool:
        """Store the text of a job; False if there is no room for another text."""
        number = self._numbers.get(text)
        if number is None:
            if len(self._texts) >= min(MAX_TEXTS, FEW + self.count // ALIKE):
                return False
            self._texts.append(text)
            number = self._numbers[text] = len(self._texts)
        piece = self._pieces.get(index // PIECE)
        if piece is None:
            piece = self._pieces[index // PIECE] = array("H", bytes(2 * PIECE))
        self.count += not piece[index % PIECE]
        piece[index % PIECE] = number
        return True

    def get(self, index: int) -> bytes | None:
        piece = self._pieces.get(index // PIECE)
        number = 0 if piece is None else piece[index % PIECE]
        return self._texts[number - 1] if number else None

    def remove(self, index: int) -> None:
        piece = self._pieces.get(index // PIECE)
        if piece is not None and piece[index % PIECE]:
            piece[index % PIECE] = 0
            self.count -= 1
            if not any(piece):
                del self._pieces[index // PIECE]

    def indices(self) -> Iterator[int]:
        for number, piece in list(self._pieces.items()):
            for place in range(PIECE):
                if piece[place]:
                    yield number * PIECE + place


class JobTexts:
    """A dictionary of texts; texts that are `alike` take little memory, if their jobs are of one group.

    For all others, `overflow` has what memory has no room for.
    """

    def __init__(self, overflow: Overflow) -> None:
        self._overflow = overflow
        self._own: dict[str, bytes] = {}
        """What is held for the texts, see `Overflow`."""
        self._groups: dict[str, _Group] = {}
        """By the id of the workflow."""

    def put(self, job_id: str, text: bytes, *, alike: bool) -> None:
        """Store the text of a job, replacing its last one. Those that wait are alike."""
        self.pop(job_id)
        place = _place_of(job_id) if alike else None
        if place is not None:
            group = self._groups.get(place[0])
            if group is None:
                group = self._groups[place[0]] = _Group()
            if group.put(place[1], text.replace(job_id.encode(), _ID)):
                return
        self._own[job_id] = self._overflow.keep(job_id, text, is_needed_soon=not alike)

    def put_new(self, job_id: str, text: bytes) -> None:
        """Store the text of a job that has none and that is like others."""
        if job_id[MEMBERS_LENGTH : MEMBERS_LENGTH + 2] == _MEMBER_MARK:
            self.put(job_id, text, alike=True)
        else:
            self._own[job_id] = self._overflow.keep(job_id, text)

    def has_all(self, job_ids: Iterable[str]) -> bool:
        """Return whether all of these jobs have texts of their own; False if they may have."""
        return all(map(self._own.__contains__, job_ids))

    def has_none(self, job_ids: Collection[str]) -> bool:
        """Return whether none of these jobs has a text."""
        return self._own.keys().isdisjoint(job_ids) and not (self._groups and any(one in self for one in job_ids))

    def held(self, job_id: str) -> bytes | None:
        """Return the text of a job, or what `Overflow` holds for it; None if there is none."""
        held = self._own.get(job_id)
        if held is not None:
            return held
        place = _place_of(job_id)
        group = None if place is None else self._groups.get(place[0])
        text = None if place is None or group is None else group.get(place[1])
        return None if text is None else text.replace(_ID, job_id.encode())

    def pop(self, job_id: str) -> None:
        """Remove the text of a job, if there is one."""
        held = self._own.pop(job_id, None)
        if held is not None:
            self._overflow.drop(job_id, held)
            return
        place = _place_of(job_id)
        group = None if place is None else self._groups.get(place[0])
        if place is not None and group is not None:
            group.remove(place[1])
            if not group.count:
                del self._groups[place[0]]

    def __contains__(self, job_id: str) -> bool:
        return self.held(job_id) is not None

    def __iter__(self) -> Iterator[str]:
        """Yield the ids. Texts may be put and removed meanwhile."""
        yield from list(self._own)
        yield from self._members()

    def first(self, count: int) -> list[str]:
        """Return the ids of the first texts that were put, those of groups last."""
        found = list(islice(self._own, count))
        return found + list(islice(self._members(), count - len(found)))

    def _members(self) -> Iterator[str]:
        for name, group in list(self._groups.items()):
            for index in group.indices():
                yield member_job_id(name, index)


def _place_of(job_id: str) -> tuple[str, int] | None:
    """Return the workflow of a streamed job and its index there; None if the id does not have exactly that form."""
    if job_id[MEMBERS_LENGTH : MEMBERS_LENGTH + 2] != _MEMBER_MARK:
        return None
    place = read_member_id(job_id)
    return place if place is not None and member_job_id(*place) == job_id else None
