"""The event loop: uvloop where it is installed, asyncio's own otherwise."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop as new_event_loop  # noqa: PLC0414 - the explicit re-export
except ImportError:  # uvloop is an optional dependency, and there is none for Windows.
    from asyncio import new_event_loop as new_event_loop  # noqa: PLC0414

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a fresh event loop, like `asyncio.run`."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
