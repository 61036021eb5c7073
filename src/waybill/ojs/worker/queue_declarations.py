"""The queues of a worker that its broker refuses to declare: the worker says why, and tries again."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from waybill.client import AccessRefused, ClientError
from waybill.ojs.connection.broker_connection import BrokerConnection
from waybill.ojs.errors import DeclarationRefused, TopologyConflict, UnknownQueue
from waybill.ojs.topology.queue_guard import QueueGuard

AGAIN_SECONDS: Final = 60.0

_log = logging.getLogger("waybill.ojs.worker")


class QueueDeclarations:
    """Declares queues. With one of several, a worker goes on without those that are refused."""

    def __init__(self, guard: QueueGuard, worker_id: str) -> None:
        self.refused: dict[str, str] = {}
        """Why the broker has refused queues."""
        self._guard = guard
        self._worker_id = worker_id
        self._again_at = 0.0

    async def declare(self, broker: BrokerConnection, queues: list[str]) -> None:
        """Declare queues. Raises the error of the first one if all are refused, and errors that are about no queue."""
        self.refused.clear()
        errors = []
        for queue in queues:
            try:
                await self._declare(broker, queue)
            except (TopologyConflict, AccessRefused) as error:
                errors.append(error)
                self.refused[queue] = f"{error}; {_way_out(error)}"
        if len(errors) == len(queues):
            raise errors[0]
        for queue, reason in self.refused.items():
            text = "worker %s does not consume queue %s, and tries again every %g s: %s"
            _log.error(text, self._worker_id, queue, AGAIN_SECONDS, reason)
        self._put_off()

    async def declare_again(self, broker: BrokerConnection) -> bool:
        """Try refused queues again, if it is time; returns whether one is declared now."""
        if not self.refused or asyncio.get_running_loop().time() < self._again_at:
            return False
        self._put_off()
        before = len(self.refused)
        for queue in list(self.refused):
            try:
                await self._declare(broker, queue)
            except (TopologyConflict, AccessRefused, UnknownQueue) as error:
                self.refused[queue] = f"{error}; {_way_out(error)}"
            except ClientError as error:
                _log.debug("queue %s could not be declared: %s", queue, error)
            else:
                del self.refused[queue]
                _log.info("worker %s consumes queue %s, which was refused before", self._worker_id, queue)
        return len(self.refused) < before

    async def _declare(self, broker: BrokerConnection, queue: str) -> None:
        await self._guard.check(queue, broker.connection, broker.declarer.topology)
        await broker.declarer.ensure_queue(queue)

    def _put_off(self) -> None:
        self._again_at = asyncio.get_running_loop().time() + AGAIN_SECONDS


def _way_out(error: TopologyConflict | AccessRefused | UnknownQueue) -> str:
    if isinstance(error, AccessRefused):
        return "give the user this permission, or declare the queue for it (`waybill topology declare`)"
    if isinstance(error, DeclarationRefused):
        return "delete queues that nobody needs, or raise the limit"
    return "`waybill topology check` shows the difference, `waybill topology migrate` moves the jobs"
