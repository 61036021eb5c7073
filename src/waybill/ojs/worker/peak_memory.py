"""The peak memory use of this process."""

from __future__ import annotations

import resource
import sys


def peak_memory_mb() -> float:
    """Return the greatest resident size of this process so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)
