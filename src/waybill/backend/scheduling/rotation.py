"""The order in which one fetch looks into its queues, by strategy (ojs-fair-scheduling section 7).

A fetch of several jobs follows a plan of steps: a queue, and the maximum number of jobs from it. The first steps give
each queue its share of the fetch. The last ones let every queue use what the others left, so an empty queue never makes
a fetch smaller.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from waybill.ojs.bounded_dict import BoundedDict

Step = tuple[str, int]

MAX_ROTATIONS: Final = 1000


class Rotation:
    """Weighted turns of some queues, continued from fetch to fetch (start-time fair queuing).

    Each queue has a virtual time, which each job increases by 1 / weight. The queue with the lowest time is next, so
    with weights 3 and 1 the order is A B A A A B A A. A queue that was empty gets no credit: it joins the others.
    """

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._now = 0.0

    def plan(self, weights: Mapping[str, float], count: int) -> list[Step]:
        """Return the share of each queue in `count` jobs, the queue with the lowest virtual time first."""
        candidates = [(self._times.get(queue, self._now), index, queue) for index, queue in enumerate(weights)]
        heapq.heapify(candidates)
        due: dict[str, int] = {}
        for _ in range(count):
            time, index, queue = candidates[0]
            due[queue] = due.get(queue, 0) + 1
            heapq.heapreplace(candidates, (time + 1 / weights[queue], index, queue))
        # Queues without a share are last: they are the first to use what others leave.
        return [*due.items(), *((queue, 0) for _, _, queue in sorted(candidates) if queue not in due)]

    def advance(self, weights: Mapping[str, float], due: Sequence[Step], found: Mapping[str, int], count: int) -> None:
        """Advance the queues by the jobs that a fetch of `count` has found in each."""
        if not found:
            return
        is_full = sum(found.values()) >= count
        times = {queue: self._times.get(queue, self._now) + found.get(queue, 0) / weights[queue] for queue in weights}
        empty = {queue for queue, share in due if found.get(queue, 0) < share or not is_full}
        self._now = max(self._now, min(times[queue] for queue in found))
        self._times |= {queue: max(time, self._now) if queue in empty else time for queue, time in times.items()}


class Rotations:
    """The rotations of one server by key: the name of a pool, or a worker's request. Unused ones are removed."""

    def __init__(self) -> None:
        self._rotations: BoundedDict[object, Rotation] = BoundedDict(MAX_ROTATIONS)

    def get(self, key: object) -> Rotation:
        """Return the rotation of a key; it is created if missing."""
        found = self._rotations.pop(key, None) or Rotation()
        # Move the last used one to the end.
        self._rotations[key] = found
        return found


def in_order(queues: Iterable[str], count: int) -> list[Step]:
    """Return the steps of the strategy `strict`: each queue only if the ones before it are empty."""
    return [(queue, count) for queue in queues]


def with_rest(due: Sequence[Step], count: int) -> list[Step]:
    """Return the steps of `round-robin` and `weighted`: the shares, then what others leave, in the same order."""
    return [step for step in due if step[1]] + in_order((queue for queue, _ in due), count)


def deepest_first(queues: Sequence[str], available: Mapping[str, int], count: int) -> list[Step]:
    """Return the steps of `least-loaded`: the queue with the most available jobs first."""
    return in_order(sorted(queues, key=lambda queue: -available.get(queue, 0)), count)


def guaranteed_steps(queues: Sequence[str], counts: Mapping[str, int], ratio: float, count: int) -> list[Step]:
    """Return the steps that give each queue its guaranteed `ratio` of all dispatches including this fetch.

    `counts` are the jobs of each queue within the interval. The queue with the largest deficit is first.
    """
    least = ratio * (sum(counts.values()) + count)
    behind = {queue: math.ceil(least - counts.get(queue, 0)) for queue in queues if counts.get(queue, 0) < least}
    return [(queue, min(behind[queue], count)) for queue in sorted(behind, key=lambda queue: counts.get(queue, 0))]
