"""Settings of Python's garbage collector for the processes of the command."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG: Final = 10_000
"""New objects until they are collected: some milliseconds."""
MIDDLE: Final = 4
"""After this many collections of young objects, those that survived them are examined once more.

All of them in one go: with many, while a crowd of clients or a backlog arrives, everything waits for a quarter of a
second.
"""


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector during imports: they make hardly any garbage, and collecting takes 10 % of their time.

    Objects made meanwhile are never examined: they live as long as the process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_rarely(*, whole_heap: int = 2_500) -> None:
    """Collect rarely, and never examine objects that exist now: they live as long as the process.

    By default Python collects after every 700 new objects. A job, or a message, has a dozen, hardly ever in a cycle.
    `whole_heap`: collects the whole heap after this many times `MIDDLE` collections of new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, whole_heap)
