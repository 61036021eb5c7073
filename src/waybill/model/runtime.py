"""What all entities of one node share: the time, the store, the deadlines, and the list of queues with work to do."""

from typing import Final

from mypy_extensions import i64

from waybill.model.operator_log import OperatorLog
from waybill.model.store import Store
from waybill.model.timers import Timers

STREAMS_MAX: Final = 65_536


class Drainable:
    """A queue that may have messages for consumers with credit."""

    is_dirty: bool

    def __init__(self) -> None:
        self.is_dirty = False

    def drain(self) -> None:
        """Hand messages to consumers until one or the other runs out."""
        raise NotImplementedError


class Runtime:
    """`now` is in seconds of the node's clock (Unix time, never going back); whoever feeds the node keeps it current.

    `memory_bytes` counts message content held in memory; above `memory_limit_bytes` queues keep only a small head.
    `streams_max` streams may be declared: each has a file open.
    """

    def __init__(self, store: Store, memory_limit_bytes: i64) -> None:
        self.now: float = 0.0
        self.store = store
        self.operator_log = OperatorLog()
        self.timers = Timers()
        self.dirty: list[Drainable] = []
        self.memory_bytes: i64 = 0
        self.memory_limit_bytes: i64 = memory_limit_bytes
        self.stream_count: i64 = 0
        self.streams_max: i64 = STREAMS_MAX
        # Why nothing new may be kept on the disk; empty while there is room.
        self.disk_alarm = ""

    def mark_dirty(self, queue: Drainable) -> None:
        if not queue.is_dirty:
            queue.is_dirty = True
            self.dirty.append(queue)

    def drain(self) -> None:
        """Drain every dirty queue once, and those that this makes dirty in turn (dead letters)."""
        while self.dirty:
            queues = self.dirty
            self.dirty = []
            done = 0
            try:
                for queue in queues:
                    done += 1
                    queue.is_dirty = False
                    queue.drain()
            finally:
                # An exception that ends a drain must not make the queues behind it wait for ever.
                if done < len(queues):
                    self.dirty = queues[done:] + self.dirty
