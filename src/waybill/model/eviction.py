"""Moves the heads of queues from memory to disk when memory is short, before and during an alarm.

A queue keeps its head in memory for its next consumer. The heads of many unconsumed queues may fill the memory and,
together with declarations and unread output, block the publishers of all other queues forever. A pass has two steps:
messages that are not on disk are written, and once they are durable, the heads become chunks of the backlog.
"""

from collections import deque
from typing import Final

from mypy_extensions import i64

from waybill.model.backlog import chunks_of
from waybill.model.entry import NO_LOCATION, Entry
from waybill.model.leveled_queue import LeveledQueue
from waybill.model.priority_level import NO_BACKLOG, PriorityLevel
from waybill.model.queue import Queue
from waybill.model.runtime import BYTES_PER_UNIT, Chore, Runtime
from waybill.model.store import CommitWaiter
from waybill.model.virtual_host import VirtualHost

PAUSE_S: Final = 1.0
"""Between two passes."""
STEP_BYTES: Final = 8 << 20
"""Bytes that one step writes to disk, unless a head is larger: confirms of others wait for it."""
ENTRIES_PER_UNIT_BITS: Final = 3
MAX_SEQUENCE: Final = (1 << 62) - 1


class Head:
    """The entries of a level that were in memory when it was written to disk: all up to the sequence `last`."""

    def __init__(self, level: PriorityLevel, last: i64) -> None:
        self.level = level
        self.last: i64 = last


class Eviction(CommitWaiter):
    """Passes over the queues of a node, in steps, as long as memory is short."""

    def __init__(self, runtime: Runtime, hosts: dict[str, VirtualHost]) -> None:
        self.queues: list[Queue] = []
        self.heads: list[Head] = []
        self._runtime = runtime
        self._hosts = hosts
        self._is_running = False
        self._is_wanted = False
        self._next_at = 0.0

    def begin(self) -> None:
        """Begin a pass, or continue the current one. A pass that found nothing to do is not repeated immediately."""
        runtime = self._runtime
        self._is_wanted = True
        if self._is_running or runtime.now < self._next_at or not runtime.messages.frees_memory:
            return
        self._is_running = True
        self.queues = [queue for host in self._hosts.values() for queue in host.queues.values()]
        runtime.work_left -= len(self.queues) >> 4
        runtime.go_on_with(Storing(self, runtime))

    def stored(self) -> None:
        self._runtime.store.wait(self, 0)

    def committed(self, mark: i64) -> None:
        self._runtime.go_on_with(Freeing(self, self._runtime))

    def freed(self) -> None:
        runtime = self._runtime
        is_wanted = self._is_wanted or runtime.memory_bytes > runtime.memory_limit_bytes
        self._is_wanted = False
        if is_wanted and self.queues:
            runtime.go_on_with(Storing(self, runtime))
            return
        self._is_running = False
        if not self.queues:
            self._next_at = runtime.now + PAUSE_S
        self.queues = []


class Storing(Chore):
    """Writes heads of queues to disk, as many as needed in one step."""

    def __init__(self, eviction: Eviction, runtime: Runtime) -> None:
        self._eviction = eviction
        self._runtime = runtime
        self._size: i64 = 0

    def work(self) -> bool:
        runtime = self._runtime
        queues = self._eviction.queues
        while queues and self._size < STEP_BYTES:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            queue = queues.pop()
            # Streams have no heads.
            if isinstance(queue, LeveledQueue) and not queue.is_deleted:
                for level in queue.priority_levels():
                    self._store(level)
                    self._size += level.list_tail()
        self._eviction.stored()
        return True

    def _store(self, level: PriorityLevel) -> None:
        entries = in_front(level)
        if not entries:
            return
        runtime = self._runtime
        size: i64 = 0
        for entry in entries:
            if entry.location == NO_LOCATION:
                entry.location = runtime.messages.spill(entry.message)
                size += entry.message.size
        self._size += size
        runtime.work_left -= (len(entries) >> ENTRIES_PER_UNIT_BITS) + size // BYTES_PER_UNIT
        # Messages that arrive from now on come after it.
        level.is_spilling = True
        self._eviction.heads.append(Head(level, entries[-1].sequence))


class Freeing(Chore):
    """Frees the memory of messages that are on the disk by now."""

    def __init__(self, eviction: Eviction, runtime: Runtime) -> None:
        self._eviction = eviction
        self._runtime = runtime

    def work(self) -> bool:
        heads = self._eviction.heads
        while heads:
            if self._runtime.work_left <= 0:
                return False
            self._free(heads.pop())
        self._eviction.freed()
        return True

    def _free(self, head: Head) -> None:
        level = head.level
        entries = in_front(level)
        self._runtime.work_left -= 1 + (len(entries) >> ENTRIES_PER_UNIT_BITS)
        if not entries or entries[-1].sequence > min(head.last, _behind(level)):
            return
        size: i64 = 0
        for entry in entries:
            # One that was put back meanwhile may have been delivered from memory only.
            if entry.location == NO_LOCATION:
                return
            size += entry.message.size
        level.loaded = []
        level.head = deque()
        if level.backlog is NO_BACKLOG:
            level.backlog = deque()
        level.backlog.extendleft(reversed(chunks_of(entries)))
        level.head_bytes -= size
        self._runtime.memory_bytes -= size


def in_front(level: PriorityLevel) -> list[Entry]:
    """The entries in memory before the backlog, except returned ones."""
    return [*reversed(level.loaded), *level.head]


def _behind(level: PriorityLevel) -> i64:
    """The highest sequence that may come before the backlog and the tail."""
    if level.backlog:
        return level.backlog[0].sequences[0] - 1
    entries = level.sealed or level.tail
    return entries[0].sequence - 1 if entries else MAX_SEQUENCE
