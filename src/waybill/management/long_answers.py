"""What all requests share: their long answers take turns, and there are not too many of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from waybill.backend.portions import Steps
from waybill.management.errors import Refused

ITEMS_MAX: Final = 400_000
"""Each item that is still to be sent takes about 100 bytes, and the time of a garbage collection."""


class LongAnswers:
    """The answers that are being made or sent."""

    def __init__(self) -> None:
        self._items = 0
        self._steps = Steps()

    async def step(self) -> None:
        """Wait for the turn to make some items: each iteration of the event loop serves one answer."""
        await self._steps.begin()

    def check(self, count: int) -> None:
        """Raise Refused if there are too many items for an answer with more. One alone may have any number."""
        if self._items and self._items + count > ITEMS_MAX:
            raise Refused(503, "too many long lists are being sent", "overloaded")

    @contextmanager
    def sending(self, count: int) -> Iterator[None]:
        """Count items for as long as they are kept."""
        self._items += count
        try:
            yield
        finally:
            self._items -= count
