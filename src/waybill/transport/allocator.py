"""When the C library returns freed memory to the system."""

import ctypes
import os
from typing import Final

LARGE_BYTES: Final = 4 << 20
_MMAP_THRESHOLD: Final = -3
"""M_MMAP_THRESHOLD of malloc.h."""
_OWN_SETTINGS: Final = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def return_large_blocks() -> None:
    """Return blocks of `LARGE_BYTES` and more when they are freed: bodies of large requests and messages.

    Once such a block was freed, glibc takes the next ones from its heap, up to 32 MiB each. There, a free block is kept
    as long as one behind it is in use, so a burst of large requests took twice the memory that it needed, for good.
    Does nothing with another C library, or if the environment has settings of its own.
    """
    if not any(name in os.environ for name in _OWN_SETTINGS):
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(_MMAP_THRESHOLD, LARGE_BYTES)
