"""Finds the partitions that exist at a broker.

A move must not leave one behind because nobody named it, nor send jobs to the placeholder of a queue with partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from waybill.client import Connection, Inspector
from waybill.client.super_streams import partition_name
from waybill.ojs.topology.topology import MAX_EVENT_PARTITIONS, MAX_PARTITIONS, Topology


async def with_event_partitions(connection: Connection, topology: Topology) -> Topology:
    """Return the topology with as many partitions of the event stream as exist, or as it says if that is more."""
    stream = topology.event_stream
    count = await _count(
        connection, lambda number: partition_name(stream, number), topology.event_partitions, MAX_EVENT_PARTITIONS
    )
    return topology if count == topology.event_partitions else replace(topology, event_partitions=count)


async def with_job_partitions(connection: Connection, topology: Topology, queues: Iterable[str]) -> Topology:
    """Return the topology with as many partitions of job queues as exist, or as it says if that is more."""
    partitions = dict(topology.partitions)
    for queue in queues:
        names = replace(topology, partitions={queue: MAX_PARTITIONS}).job_queues(queue)
        known = partitions.get(queue, 1)
        count = await _count(connection, names.__getitem__, 0 if known == 1 else known, MAX_PARTITIONS)
        if count > 1:
            partitions[queue] = count
    return topology if partitions == topology.partitions else replace(topology, partitions=partitions)


async def _count(connection: Connection, name: Callable[[int], str], known: int, most: int) -> int:
    """Return the number of the first queue, from `known` on, that does not exist."""
    inspector = Inspector(connection)
    count = known
    while count < most and await inspector.queue(name(count)) is not None:
        count += 1
    return count
