"""Checks of the queues at both ends, before a shovel moves anything."""

from __future__ import annotations

from typing import Final

from waybill.client import Connection, Inspector
from waybill.move.errors import MoveFailed
from waybill.ojs.topology.names import SPEC
from waybill.ojs.topology.topology import Topology

_JOB_QUEUE: Final = SPEC.job_queue.format(queue="")


async def waiting_messages(source: Connection, queue: str) -> int:
    """Return the number of messages in a queue to move. Raises MoveFailed if it is missing, or has partitions."""
    found = await Inspector(source).queue(queue)
    if found is None:
        raise MoveFailed(f"the source has no queue {queue}")
    if (divided := await _divided(source, queue)) is not None:
        partition = divided[0].job_queues(divided[1])[0]
        raise MoveFailed(f"the source's {queue} has partitions: move each ({partition}, ...), or use `waybill move`")
    return found.message_count


async def check_target(target: Connection, queue: str) -> None:
    """Raise MoveFailed if a queue is missing, or has partitions: it would drop what is sent to itself."""
    if await Inspector(target).queue(queue) is None:
        raise MoveFailed(f"the target has no queue {queue}: declare it, or name another with --to-queue")
    if (divided := await _divided(target, queue)) is not None:
        exchange = divided[0].partitions_exchange(divided[1])
        way = f"--to-exchange {exchange} --to-key {divided[1]}"
        raise MoveFailed(f"the target's {queue} has partitions, and keeps nothing itself: use {way}")


async def _divided(connection: Connection, name: str) -> tuple[Topology, str] | None:
    """Return the OJS queue with partitions whose placeholder a queue is, in its topology."""
    prefix, marker, queue = name.partition(_JOB_QUEUE)
    if not marker or not queue:
        return None
    topology = Topology(prefix=prefix, partitions={queue: 2})
    first = await Inspector(connection).queue(topology.job_queues(queue)[0])
    return None if first is None else (topology, queue)
