"""Giving a message to its queues: to a few at once, to a great many in several turns."""

from typing import Final

from mypy_extensions import i64

from waybill.model.entry import NO_LOCATION
from waybill.model.message import Message
from waybill.model.queue import REFUSED, Queue
from waybill.model.runtime import Chore, Runtime

FAN_OUT_MAX: Final = 1024
"""So many queues are given a message at once."""


def publish_to(queues: list[Queue], message: Message) -> bool:
    """Give a message to each of `queues`. False if one of them refused it (full, and set to refuse)."""
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
    """Gives a message to so many queues that it takes several turns. `is_accepted`: none of them has refused it."""

    def __init__(self, runtime: Runtime, queues: list[Queue], message: Message) -> None:
        self.is_accepted = True
        self._runtime = runtime
        self._queues = queues
        self._message = message
        self._next: i64 = 0

    def work(self) -> bool:
        runtime = self._runtime
        queues = self._queues
        # What was stored in an earlier turn may be written already: each turn stores it again, for all of its queues.
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
