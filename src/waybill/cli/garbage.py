"""How often Python looks for cyclic garbage in the processes that the command runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause the collector during imports: they make hardly any garbage, and collecting takes a tenth of their time.

    What was made meanwhile is never looked at: it lives as long as the process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_rarely(*, young: int = 20_000, whole_heap: int = 100) -> None:
    """Collect rarely, and never look again at objects that exist now: they live as long as the process.

    By default Python looks after every 700 new objects, of which a job, or a message, has a dozen; and next to none of
    them are in a cycle. `young`: after how many new objects it looks at those; `whole_heap`: after how many times fifty
    such looks at all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, 50, whole_heap)
