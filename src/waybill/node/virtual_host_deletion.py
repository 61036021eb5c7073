"""Deletes a virtual host with everything in it, over several turns.

From the first turn on it refuses connections. The store marks it as being deleted until nothing is left: a node that
starts before then continues.
"""

from collections.abc import Callable
from typing import Final

from waybill.engine.amqp10.termini import Terminus
from waybill.engine.server_engine import ServerEngine
from waybill.model.deletion import Deletion
from waybill.model.exchange import Exchange
from waybill.model.queue import Queue
from waybill.model.runtime import Chore
from waybill.model.virtual_host import VirtualHost

UNITS: Final = 4


class VirtualHostDeletion(Chore):
    """Closes the connections, removes the links, and deletes queues and exchanges. Calls `done` in the end."""

    def __init__(
        self,
        host: VirtualHost,
        connections: list[ServerEngine],
        links: list[Terminus],
        done: Callable[[VirtualHost], None],
    ) -> None:
        self._host = host
        self._done = done
        self._connections = connections
        self._links = links
        self._queues: list[Queue] = []
        self._exchanges: list[Exchange] = []
        self._deletion: Deletion | None = None
        self._is_over = False

    def work(self) -> bool:
        runtime = self._host.runtime
        while not self._is_over:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= UNITS
            if self._connections:
                self._connections.pop().shut_down(f"vhost '{self._host.name}' is deleted")
            elif self._links:
                self._links.pop().remove()
            else:
                deletion = self._deletion or self._next()
                # If it raises, another deletion is made for what is left.
                self._deletion = None
                if deletion is None:
                    self._is_over = True
                    self._done(self._host)
                elif not deletion.work():
                    self._deletion = deletion
        return True

    def _next(self) -> Deletion | None:
        """Deletes the next queue or exchange; None if there is none."""
        host = self._host
        if not self._queues and not self._exchanges:
            self._queues = list(host.queues.values())
            self._exchanges = [each for each in host.exchanges.values() if not _is_predeclared(each) or each.bindings]
        if self._queues:
            return Deletion(host, self._queues.pop(), [])
        return Deletion(host, None, [self._exchanges.pop()]) if self._exchanges else None


def _is_predeclared(exchange: Exchange) -> bool:
    return exchange.name == "" or exchange.name.startswith("amq.")
