"""The rows with a mark, in portions: rows that keep their mark for long do not keep others from being seen."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from waybill.ojs.coordinator.job_view import JobView

R = TypeVar("R", bound=msgspec.Struct)


class MarkedRows(Generic[R]):
    """Goes round the rows with a mark; each call of `next` returns the rows after the last ones."""

    def __init__(self, view: JobView, mark: str, kind: type[R], size: int) -> None:
        """`size` is the number of rows of a portion."""
        self._view = view
        self._mark = mark
        self._kind = kind
        self._size = size
        self._after = ""

    @property
    def is_round(self) -> bool:
        """Whether the last portion was the last one of a round."""
        return not self._after

    async def next(self) -> list[tuple[str, R]]:
        """Return the next rows with their keys."""
        found = await self._view.marked(self._mark, self._kind, self._size, self._after)
        self._after = found[-1][0] if len(found) == self._size else ""
        return found
