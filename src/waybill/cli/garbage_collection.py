"""Settings of Python's garbage collector for the processes of the command."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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


def collect_rarely(*, young: int = 20_000, whole_heap: int = 100) -> None:
    """Collect rarely, and never examine objects that exist now: they live as long as the process.

    By default Python collects after every 700 new objects. A job, or a message, has a dozen, hardly ever in a cycle.
    `young`: new objects until they are collected; `whole_heap`: collects the whole heap after this many times 50 such
    collections.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, 50, whole_heap)
