"""Treats the job queue of an OJS queue as one, with or without partitions."""

from __future__ import annotations

from waybill.client import Inspector
from waybill.client.topology_methods import QueueDeclared
from waybill.ojs.topology.topology import Topology


async def job_queue_counts(inspector: Inspector, topology: Topology, queue: str) -> QueueDeclared | None:
    """Return the counts of an OJS queue, None if it does not exist. Raises the inspector's errors.

    The messages of partitions are added up. Every worker consumes all partitions, so the consumers are those of the
    partition that has the most.
    """
    if not topology.is_partitioned(queue):
        return await inspector.queue(topology.job_queue(queue))
    looked_at = [await inspector.queue(name) for name in topology.job_queues(queue)]
    found = [one for one in looked_at if one is not None]
    if not found:
        return None
    return QueueDeclared(
        topology.job_queue(queue),
        sum(one.message_count for one in found),
        max(one.consumer_count for one in found),
    )
