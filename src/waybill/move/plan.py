"""The queues of a job system to move, and their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from waybill.client import BasicProperties, Connection, Inspector
from waybill.move.stamp import InTransit
from waybill.ojs.spec.envelope import check_queue
from waybill.ojs.spec.retry import RETRY_BUCKETS_MS
from waybill.ojs.topology.delay_ladder import LEVELS
from waybill.ojs.topology.migration import ladder_destination
from waybill.ojs.topology.topology import Topology

Address = tuple[str, str]
"""Exchange and routing key."""
Way = Callable[[InTransit, Mapping[str, object]], Address]
"""Returns the target of a message."""


@dataclass(frozen=True)
class PlannedQueue:
    """A queue of the source, or a stream, and the queue that it goes to. `message_count` is None if it is missing."""

    source: str
    target: str
    kind: str
    message_count: int | None


@dataclass(frozen=True)
class QueueWay:
    """A queue that is moved. `kind` is one of jobs, dead letters, retries and scheduled."""

    source: str
    target: str
    kind: str
    way: Way


def queue_ways(old: Topology, new: Topology, queues: Sequence[str]) -> list[QueueWay]:
    """Return all queues that hold jobs of these OJS queues. Raises InvalidJob for a bad name."""
    ways: list[QueueWay] = []
    for queue in dict.fromkeys(queues):
        check_queue(queue)
        ways += [
            # Beside partitions, the queue itself may have jobs that were there before.
            *(
                _to_jobs(name, new, queue, "jobs")
                for name in dict.fromkeys((old.job_queue(queue), *old.job_queues(queue)))
            ),
            _to_queue(old.dead_letter_queue(queue), new.dead_letter_queue(queue), "dead letters"),
            *(
                _to_queue(old.retry_queue(queue, delay_ms), new.retry_queue(queue, delay_ms), "retries")
                for delay_ms in RETRY_BUCKETS_MS
            ),
            # Jobs from the ladder that are due go to their job queue.
            _to_jobs(old.release_queue(queue), new, queue, "scheduled"),
        ]
    ways += [
        QueueWay(old.delay_level(level), new.delay_level(level), "scheduled", partial(_to_ladder, new, level))
        for level in reversed(range(LEVELS))
    ]
    return ways


def stream_names(old: Topology, new: Topology) -> list[tuple[str, str]]:
    """Return the streams that are copied, and their names on the target: events by partition, and cancellations.

    Where the target has fewer partitions of events, the first takes the others: it may have events of any job.
    """
    targets = new.event_streams
    events = [
        (name, targets[number] if number < len(targets) else targets[0])
        for number, name in enumerate(old.event_streams)
    ]
    return [*events, (old.relay_stream, new.relay_stream)]


async def counted(connection: Connection, ways: Sequence[QueueWay]) -> list[PlannedQueue]:
    """Return the queues with their current message counts."""
    inspector = Inspector(connection)
    planned = []
    for way in ways:
        found = await inspector.queue(way.source)
        planned.append(PlannedQueue(way.source, way.target, way.kind, None if found is None else found.message_count))
    return planned


def headers_of(properties: bytes) -> Mapping[str, object]:
    """Return the headers of a message, none if they are malformed."""
    try:
        return BasicProperties.decode(properties).headers or {}
    except ValueError:
        return {}


def _to_queue(source: str, target: str, kind: str) -> QueueWay:
    return QueueWay(source, target, kind, lambda _message, _headers: ("", target))


def _to_jobs(source: str, new: Topology, queue: str, kind: str) -> QueueWay:
    """To the job queue; where it has partitions, to the exchange that chooses one."""
    if not new.is_partitioned(queue):
        return _to_queue(source, new.job_queue(queue), kind)
    exchange = new.partitions_exchange(queue)
    return QueueWay(source, exchange, kind, lambda _message, _headers: (exchange, queue))


def _to_ladder(topology: Topology, level: int, message: InTransit, headers: Mapping[str, object]) -> Address:
    return ladder_destination(topology, level, message.stamp.routing_key, headers)
