"""Which queues have changed since somebody looked: of thousands, most have not, and their figures need not be read."""

from mypy_extensions import i64

from waybill.model.queue import Queue

Trace = tuple[int, int, int, int]
"""What happened to messages of a queue, all in one number; ready and unsettled messages; consumers."""


def changed_queues(queues: list[Queue], known: dict[Queue, Trace]) -> list[Queue]:
    """Return the queues of which a count, or the number of consumers, is another than `known`; takes note of it."""
    found: list[Queue] = []
    for queue in queues:
        trace = trace_of(queue)
        if known.get(queue) != trace:
            known[queue] = trace
            found.append(queue)
    return found


def trace_of(queue: Queue) -> Trace:
    """Return what differs after anything that `Queue.counts` counts. None of what is summed up ever shrinks."""
    events: i64 = queue.published_count() + queue.delivered + queue.delivered_no_ack + queue.polled
    events += queue.polled_no_ack + queue.redelivered + queue.returned + queue.rejected
    return int(events), queue.message_count, int(queue.unsettled_count), len(queue.consumers)
