"""How often Python looks for cyclic garbage in the processes that the command runs."""

import gc


def collect_rarely(*, whole_heap_after: int = 100) -> None:
    """Look rarely, and never again at what is there by now, which lives as long as the process.

    By default Python looks after every 700 new objects, of which a job, or a message, has a dozen; and next to none of
    them are in a cycle. The whole heap is looked at after `whole_heap_after` million new objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, whole_heap_after)
