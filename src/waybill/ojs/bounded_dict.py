"""Dictionaries of bounded size."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

GENERATIONS: Final = 10


class BoundedDict(OrderedDict[K, V]):
    """A dict that drops the oldest key when it would hold more than `limit` keys."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Set a value; an existing key keeps its place in the order."""
        super().__setitem__(key, value)
        if len(self) > self._limit:
            self.popitem(last=False)


class Generations(Generic[K, V]):
    """Remembers the last `kept` keys that were added, and up to a tenth more; the oldest are dropped together.

    A single dict that drops key by key would rebuild its table again and again while the old one still exists. A large
    table leaves holes of its size in the memory of the process.
    """

    def __init__(self, kept: int, weight: int) -> None:
        """The last keys of a total `weight` are remembered if these are fewer than `kept`."""
        self._kept = kept
        self._size = max(1, kept // GENERATIONS)
        self._kept_weight = weight
        self._dicts: deque[dict[K, V]] = deque([{}])
        self._weights: deque[int] = deque([0])
        """Of each dict with the keys that it has lost."""

    def __len__(self) -> int:
        return sum(map(len, self._dicts))

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values, the oldest first."""
        return chain.from_iterable(generation.items() for generation in self._dicts)

    def newest(self) -> Iterator[tuple[K, V]]:
        """Return all keys with their values, the newest first."""
        return chain.from_iterable(reversed(generation.items()) for generation in reversed(self._dicts))

    def keys(self) -> Iterator[K]:
        """Return all keys, the oldest first."""
        return chain.from_iterable(self._dicts)

    def get(self, key: K) -> V | None:
        """Return a value, None if the key is missing."""
        for generation in reversed(self._dicts):
            if (found := generation.get(key)) is not None:
                return found
        return None

    def has_none(self, keys: Collection[K]) -> bool:
        """Return whether none of these keys exists."""
        return all(generation.keys().isdisjoint(keys) for generation in self._dicts)

    def pop(self, key: K) -> V | None:
        """Remove a key, and return its value; None if it is missing."""
        for generation in self._dicts:
            if (found := generation.pop(key, None)) is not None:
                return found
        return None

    def add(self, key: K, value: V, weight: int) -> None:
        """Set the value of a new key."""
        if len(self._dicts[-1]) >= self._size or self._weights[-1] >= self._kept_weight // GENERATIONS:
            self._dicts.append({})
            self._weights.append(0)
        self._dicts[-1][key] = value
        self._weights[-1] += weight

    def forget(self) -> dict[K, V]:
        """Drop excess keys, and return them."""
        forgotten: dict[K, V] = {}
        while len(self._dicts) > 1 and self._is_enough_without_first():
            forgotten |= self._dicts.popleft()
            self._weights.popleft()
        return forgotten

    def _is_enough_without_first(self) -> bool:
        return (
            len(self) - len(self._dicts[0]) >= self._kept or sum(self._weights) - self._weights[0] >= self._kept_weight
        )
