"""Divides the prefetch count of a worker over its queues by weight (weighted max-min fairness)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from waybill.client.ranges import check_whole
from waybill.ojs.spec.envelope import check_queue

MAX_WEIGHT: Final = 1_000_000


def weights_of(queues: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Return the weights of queues, 1 by default. Raises InvalidJob, ValueError."""
    weights = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    for queue, weight in weights.items():
        check_queue(queue)
        check_whole(f"the weight of queue {queue}", weight, 1, MAX_WEIGHT)
    return weights


def divide(
    budget: int, weights: Mapping[str, int], demands: Mapping[str, int], caps: Mapping[str, int]
) -> dict[str, int]:
    """Return each queue's share of `budget`, at least 1.

    The whole budget is used, as far as the caps allow. A queue that needs less than its share gets what it needs, and
    the others get the rest by weight. What no queue needs is divided by weight among all, so that it is available
    immediately.
    """
    allocation = dict.fromkeys(weights, 1)
    for appetite in ({queue: min(demand, caps[queue]) for queue, demand in demands.items()}, caps):
        rest = budget - sum(allocation.values())
        hungry = [(share / weights[queue], queue) for queue, share in allocation.items() if share < appetite[queue]]
        heapq.heapify(hungry)
        while hungry and rest > 0:
            _, queue = heapq.heappop(hungry)
            allocation[queue] += 1
            rest -= 1
            if allocation[queue] < appetite[queue]:
                heapq.heappush(hungry, (allocation[queue] / weights[queue], queue))
    return allocation


def step(limits: Mapping[str, int], held: Mapping[str, int], wanted: Mapping[str, int], budget: int) -> dict[str, int]:
    """Return the next limits on the way to `wanted` under which no more than `budget` can ever be held.

    Lowering a limit takes back neither held deliveries nor those in transit. So other limits are raised only by what a
    later step finds to be free.
    """
    lowered = {queue: min(limit, wanted[queue]) for queue, limit in limits.items()}
    free = budget - sum(max(limit, held[queue]) for queue, limit in limits.items())
    for queue, limit in lowered.items():
        # What it holds above its limit is counted already.
        raised = min(wanted[queue], max(limit, held[queue]) + max(0, free))
        if raised > limit:
            free -= max(0, raised - max(limit, held[queue]))
            lowered[queue] = raised
    return lowered
