"""The interface by which blocking handles run coroutines in the loop of the connection."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

O_co = TypeVar("O_co", covariant=True)
T = TypeVar("T")


class Caller(Protocol[O_co]):
    """Runs a coroutine with an object of the loop, and waits for it."""

    def __call__(self, work: Callable[[O_co], Coroutine[Any, Any, T]], instead: str, /) -> T:
        """`instead` is the asynchronous equivalent, for the error message."""
        ...
