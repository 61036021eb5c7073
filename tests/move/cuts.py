"""Ends a mover at its n-th request to a broker, before or after the broker has executed it, as a kill would."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from waybill.client import requests, side_channel


class Cut(Exception):
    """Stands for the end of the process."""


class Cutter:
    """Counts the requests of side channels: gets, commits and declarations."""

    def __init__(self) -> None:
        self.count = 0
        self.cut_at = -1
        self.after = False

    def arm(self, cut_at: int, *, after: bool) -> None:
        """Cut at this request, counted from 0; never if it is negative."""
        self.count, self.cut_at, self.after = 0, cut_at, after

    def around(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a function that does the same, or cuts."""

        async def cutting(*arguments: Any, **named: Any) -> Any:
            number, self.count = self.count, self.count + 1
            if number == self.cut_at and not self.after:
                raise Cut
            result = await real(*arguments, **named)
            if number == self.cut_at:
                raise Cut
            return result

        return cutting


@contextmanager
def cutting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutter]:
    """Put a cutter into all side channels."""
    cutter = Cutter()
    with monkeypatch.context() as patch:
        patch.setattr(side_channel, "ask", cutter.around(requests.ask))
        patch.setattr(side_channel, "ask_many", cutter.around(requests.ask_many))
        yield cutter
