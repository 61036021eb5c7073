"""When the first of a level expires, whatever of it is in memory."""

from collections import deque

from waybill.engine.amqp091.message_format import AMQP091
from waybill.model.backlog import Chunk
from waybill.model.entry import Entry, EntryQueue
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.priority_level import PriorityLevel
from waybill.model.runtime import Runtime
from waybill.storage.memory import MemoryStore


def entry(queue: EntryQueue, sequence: int, expires_at: float) -> Entry:
    message = Message(AMQP091, b"", Address("", "q"), True, 0, NO_TTL, 0.0)
    made = Entry(queue, message, sequence)
    made.expires_at = expires_at
    return made


def test_what_came_back_before_the_backlog_says_when_the_first_expires() -> None:
    queue = EntryQueue()
    level = PriorityLevel(queue, Runtime(MemoryStore(), 1 << 20))
    level.backlog = deque([Chunk([entry(queue, 2, 1.0)])])
    level.count = 1
    level.push_front(entry(queue, 1, 3600.0))
    assert level.first_expiry() == 3600.0
    first = level.pop()
    assert first is not None
    assert first.sequence == 1
    assert level.first_expiry() == 1.0


def test_what_came_back_before_what_goes_to_the_disk_is_taken_first() -> None:
    queue = EntryQueue()
    level = PriorityLevel(queue, Runtime(MemoryStore(), 1 << 20))
    level.is_spilling = True
    level.tail = [entry(queue, 2, 1.0)]
    level.count = 1
    level.push_front(entry(queue, 1, 0.0))
    assert level.first_expiry() == 0.0
    first = level.pop()
    assert first is not None
    assert first.sequence == 1
