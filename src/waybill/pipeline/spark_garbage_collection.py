"""Settings of Python's garbage collector for Spark tasks."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# By default Python collects after every 700 new objects, and from time to time the whole heap, where a Spark worker has
# half a million objects. A job or an event is a dozen objects, none of them in a cycle.
_RARELY: Final = (20_000, 50, 100)


@contextmanager
def infrequent_collection() -> Iterator[None]:
    """Collect garbage rarely within the block. Restores the settings, because Spark reuses the process."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
