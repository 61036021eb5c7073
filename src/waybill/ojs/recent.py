"""A memory of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """A dict that forgets what was set first when it would hold more than `limit` keys."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value; a key that is there keeps its place in the order."""
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)
