"""How often Python looks for cyclic garbage in the tasks of Spark."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# By default Python looks at what is new after every 700 objects, and now and then at all that there is, of which a
# worker of Spark has half a million. A job or an event is a dozen objects, none of them in a cycle.
_RARELY: Final = (20_000, 50, 100)


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look for cyclic garbage rarely; afterwards as before, since Spark has more for this process to do."""
    before = gc.get_threshold()
    gc.set_threshold(*_RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
