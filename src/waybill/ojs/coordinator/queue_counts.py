"""Counts of the broker's queues, including jobs without events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from waybill.client import ClientError, Inspector
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.topology.job_queues import job_queue_counts

POLL_SECONDS: Final = 5.0


@dataclass(frozen=True)
class QueueCounts:
    """The ready messages and the consumers of a queue."""

    ready: int
    consumers: int


async def watch_queues(broker: BrokerConnection, queues: Sequence[str], found: dict[str, QueueCounts]) -> None:
    """Read the queues periodically until cancelled; a missing queue has no counts."""
    inspector = Inspector(broker.connection)
    while True:
        for queue in queues:
            try:
                counts = await job_queue_counts(inspector, broker.declarer.topology, queue)
            except ClientError:
                counts = None
            if counts is None:
                found.pop(queue, None)
            else:
                found[queue] = QueueCounts(counts.message_count, counts.consumer_count)
        await asyncio.sleep(POLL_SECONDS)
