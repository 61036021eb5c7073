"""The order in which one fetch looks into its queues, by strategy (ojs-fair-scheduling section 7).

A fetch of several jobs follows a plan of steps: a queue, and how many jobs may come from it at most. The first steps
give each queue its share of the fetch. The last ones let every queue fill what the others left, so a fetch never
returns less because a queue is empty.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from waybill.ojs.worker.bounded_dict import BoundedDict

Step = tuple[str, int]

MAX_ROTATIONS: Final = 1000


class Rotation:
    """Weighted turns of some queues, continued from fetch to fetch (start-time fair queuing).

    Each queue has a virtual time, which a job moves on by 1 / weight. The queue that is furthest behind is next, so
    with weights 3 and 1 the order is A B A A A B A A. A queue that was empty saves nothing up: it joins the others.
    """

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._now = 0.0

    def plan(self, weights: Mapping[str, float], count: int) -> list[Step]:
        """Return what each queue is due of `count` jobs, the one that is furthest behind first."""
        turns = [(self._times.get(queue, self._now), index, queue) for index, queue in enumerate(weights)]
        heapq.heapify(turns)
        due: dict[str, int] = {}
        for _ in range(count):
            time, index, queue = turns[0]
            due[queue] = due.get(queue, 0) + 1
            heapq.heapreplace(turns, (time + 1 / weights[queue], index, queue))
        # Those that are due nothing stand at the end: they are the next to fill what others leave.
        return [*due.items(), *((queue, 0) for _, _, queue in sorted(turns) if queue not in due)]

    def took(self, weights: Mapping[str, float], due: Sequence[Step], found: Mapping[str, int], count: int) -> None:
        """Move the queues on by the jobs that a fetch of `count` has found in each."""
        if not found:
            return
        is_full = sum(found.values()) >= count
        times = {queue: self._times.get(queue, self._now) + found.get(queue, 0) / weights[queue] for queue in weights}
        empty = {queue for queue, share in due if found.get(queue, 0) < share or not is_full}
        self._now = max(self._now, min(times[queue] for queue in found))
        self._times |= {queue: max(time, self._now) if queue in empty else time for queue, time in times.items()}


class Rotations:
    """Those of one server, by a key: the name of a pool, or what a worker asks for. The oldest unused ones go."""

    def __init__(self) -> None:
        self._rotations: BoundedDict[object, Rotation] = BoundedDict(MAX_ROTATIONS)

    def get(self, key: object) -> Rotation:
        """Return the rotation of a key, a new one if there is none."""
        found = self._rotations.pop(key, None) or Rotation()
        # The one that was used last goes last.
        self._rotations[key] = found
        return found


def in_order(queues: Iterable[str], count: int) -> list[Step]:
    """Return the steps of the strategy `strict`: each queue only if the ones before it are empty."""
    return [(queue, count) for queue in queues]


def with_rest(due: Sequence[Step], count: int) -> list[Step]:
    """Return the steps of `round-robin` and `weighted`: what is due, then what others leave, in the same order."""
    return [step for step in due if step[1]] + in_order((queue for queue, _ in due), count)


def deepest_first(queues: Sequence[str], available: Mapping[str, int], count: int) -> list[Step]:
    """Return the steps of `least-loaded`: the queue with the most available jobs first."""
    return in_order(sorted(queues, key=lambda queue: -available.get(queue, 0)), count)


def owed(queues: Sequence[str], had: Mapping[str, int], ratio: float, count: int) -> list[Step]:
    """Return the steps that give each queue its guaranteed `ratio` of what was dispatched, with this fetch.

    `had` counts the jobs of each queue within the interval. The queue that is furthest behind comes first.
    """
    least = ratio * (sum(had.values()) + count)
    behind = {queue: math.ceil(least - had.get(queue, 0)) for queue in queues if had.get(queue, 0) < least}
    return [(queue, min(behind[queue], count)) for queue in sorted(behind, key=lambda queue: had.get(queue, 0))]
