"""When the first of a lane expires, whatever of it is in memory."""

from waybill.engine.amqp091.message_format import AMQP091
from waybill.model.entry import Entry, EntryQueue
from waybill.model.lane import Lane, _Chunk
from waybill.model.message import NO_TTL, Address, Message
from waybill.model.runtime import Runtime
from waybill.storage.memory import MemoryStore


def entry(queue: EntryQueue, sequence: int, expires_at: float) -> Entry:
    message = Message(AMQP091, b"", Address("", "q"), True, 0, NO_TTL, 0.0)
    made = Entry(queue, message, sequence)
    made.expires_at = expires_at
    return made


def test_what_came_back_before_the_backlog_says_when_the_first_expires() -> None:
    queue = EntryQueue()
    lane = Lane(queue, Runtime(MemoryStore(), 1 << 20))
    lane.backlog.append(_Chunk([entry(queue, 2, 1.0)]))
    lane.count = 1
    lane.push_front(entry(queue, 1, 3600.0))
    assert lane.first_expiry() == 3600.0
    first = lane.pop()
    assert first is not None
    assert first.sequence == 1
    assert lane.first_expiry() == 1.0
