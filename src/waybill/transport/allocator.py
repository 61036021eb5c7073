"""When the C library returns freed memory to the system."""

import ctypes
import os
from typing import Final

LARGE_BYTES: Final = 4 << 20
KEPT_BYTES: Final = 2 * LARGE_BYTES
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h."""
_OWN_SETTINGS: Final = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def return_large_blocks() -> None:
    """Return blocks of `LARGE_BYTES` and more when they are freed: bodies of large requests and messages.

    Once such a block was freed, glibc takes the next ones from its heap, up to 32 MiB each. There, a free block is kept
    as long as one behind it is in use, so a burst of large requests took twice the memory that it needed, for good.
    Setting that size ends glibc's own adjustments, so how much stays free at the end of the heap is set as well: with
    the 128 KiB that it begins with, each burst of messages would get and return its pages, a sixth of a broker's time.

    Does nothing with another C library, or if the environment has settings of its own.
    """
    if not any(name in os.environ for name in _OWN_SETTINGS):
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(_MMAP_THRESHOLD, LARGE_BYTES)
            set_option(_TRIM_THRESHOLD, KEPT_BYTES)
