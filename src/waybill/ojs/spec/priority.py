"""Job priorities (-100..100, ojs-core section 5.2) on queues that know fewer levels.

A queue declared with `x-max-priority` of 200 or more orders every value exactly. On the 10 levels of the binding
(section 7.2) the mapping is monotonic and spends its levels around zero, where nearly all jobs are; the named
priorities LOW (-10), NORMAL (0) and HIGH (10) stay apart from their neighbours.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

LOWEST: Final = -100
HIGHEST: Final = 100
EXACT_LEVELS: Final = HIGHEST - LOWEST
"""The `x-max-priority` from which on the order is exact: levels 0..200."""

# The greatest job priority of each level 0..8; what is above the last of them is level 9.
_LEVEL_CEILINGS: Final = (-51, -11, -6, -1, 0, 5, 9, 10, 50)


def message_priority(job_priority: int, max_priority: int) -> int:
    """Return the AMQP priority, 0..`max_priority`, for a job priority; values beyond -100..100 count as the end."""
    if max_priority >= EXACT_LEVELS:
        return min(max(job_priority, LOWEST), HIGHEST) - LOWEST
    level = bisect_left(_LEVEL_CEILINGS, job_priority)
    # A queue of fewer than ten levels folds them together; the order stays monotonic.
    return level if max_priority >= len(_LEVEL_CEILINGS) else level * max_priority // len(_LEVEL_CEILINGS)
