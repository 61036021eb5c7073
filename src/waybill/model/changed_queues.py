"""Finds the queues that have changed since the last sample, so that the counts of the others need not be read."""

from mypy_extensions import i64

from waybill.model.queue import Queue

Trace = tuple[int, int, int, int]
"""One number for all events of a queue's messages; ready and unsettled messages; consumers."""


def changed_queues(queues: list[Queue], known: dict[Queue, Trace]) -> list[Queue]:
    """Return the queues whose counts or number of consumers differ from `known`, and update `known`."""
    found: list[Queue] = []
    for queue in queues:
        trace = trace_of(queue)
        if known.get(queue) != trace:
            known[queue] = trace
            found.append(queue)
    return found


def trace_of(queue: Queue) -> Trace:
    """Return a value that changes with everything in `Queue.counts`. Each term of the sum only grows."""
    events: i64 = queue.published_count() + queue.delivered + queue.delivered_no_ack + queue.polled
    events += queue.polled_no_ack + queue.redelivered + queue.returned + queue.rejected
    return int(events), queue.message_count, int(queue.unsettled_count), len(queue.consumers)
