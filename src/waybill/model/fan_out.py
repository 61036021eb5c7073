"""Publishes a message to its queues: immediately to a few, over several turns to very many."""

from typing import Final

from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION
from waybill.model.message import Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.runtime import Chore, Runtime

FAN_OUT_MAX: Final = 1024
"""A message for more queues than this is published over several turns."""


def publish_to(queues: list[Queue], message: Message) -> bool:
    """Publish a message to each of `queues`. False if a full queue refused it."""
    location: i64 = NO_LOCATION
    accepted = True
    for queue in queues:
        result = queue.publish(message, location)
        if result == REFUSED:
            accepted = False
        else:
            location = result
    return accepted


class FanOut(Chore):
    """Publishes a message to very many queues over several turns. `is_accepted`: no queue has refused it."""

    def __init__(self, runtime: Runtime, queues: list[Queue], message: Message) -> None:
        self.is_accepted = True
        self._runtime = runtime
        self._queues = queues
        self._message = message
        self._next: i64 = 0

    def work(self) -> bool:
        runtime = self._runtime
        queues = self._queues
        # Queues share a stored message only within a batch, and each turn may be in another: store it once per turn.
        location: i64 = NO_LOCATION
        while self._next < len(queues) and runtime.work_left > 0:
            queue = queues[self._next]
            self._next += 1
            runtime.work_left -= 1
            if queue.is_deleted:
                continue
            result = queue.publish(self._message, location)
            if result == REFUSED:
                self.is_accepted = False
            else:
                location = result
        return self._next >= len(queues)
