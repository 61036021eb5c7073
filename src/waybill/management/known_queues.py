"""The last row of each queue, and the sums of all rows. Only changed queues are read again."""

from __future__ import annotations

from collections.abc import Mapping

from waybill.management.history import Row
from waybill.model.changed_queues import Trace
from waybill.model.queue import Queue
from waybill.model.virtual_host import VirtualHost

Key = tuple[str, str]
"""A virtual host and a queue in it."""


class KnownQueues:
    """The queues of one broker."""

    def __init__(self, size: int) -> None:
        """`size` is the length of a row."""
        self.traces: dict[Queue, Trace] = {}
        """The value of each queue that shows whether it has changed."""
        self.sums: dict[str, list[int]] = {}
        """The sums by virtual host."""
        self.consumers: dict[str, int] = {}
        """The number of consumers by virtual host."""
        self._zeros: Row = (0,) * size
        self._known: dict[Key, tuple[Queue, Row, int]] = {}

    def put(self, host: str, queue: Queue, row: Row) -> None:
        """Store the row and the number of consumers of a queue."""
        _, old, consumers = self._known.get((host, queue.name), (queue, self._zeros, 0))
        self._known[host, queue.name] = queue, row, len(queue.consumers)
        self._change(host, old, row, len(queue.consumers) - consumers)

    def forget_deleted(self, hosts: Mapping[str, VirtualHost]) -> None:
        """Forget the queues that no longer exist."""
        there = {queue for host in hosts.values() for queue in host.queues.values() if not queue.is_deleted}
        self.traces = {queue: trace for queue, trace in self.traces.items() if queue in there}
        for key, (queue, row, consumers) in list(self._known.items()):
            if queue not in there:
                del self._known[key]
                self._change(key[0], row, self._zeros, -consumers)
        for host in [host for host in self.sums if host not in hosts]:
            del self.sums[host], self.consumers[host]

    def _change(self, host: str, old: Row, new: Row, consumers: int) -> None:
        sums = self.sums.get(host, self._zeros)
        self.sums[host] = [total + after - before for total, before, after in zip(sums, old, new, strict=True)]
        self.consumers[host] = self.consumers.get(host, 0) + consumers
