"""Streams and group commit: a reader hears of every message once it is durable, without another one to wake it."""

from tests.storage.support import end_commit
from waybill.model.message import Address, Message, MessageFormat
from waybill.model.queue import QueueHost
from waybill.model.runtime import Runtime
from waybill.model.stream import Stream
from waybill.storage.memory import MemoryStore


def message(content: bytes) -> Message:
    return Message(MessageFormat(1, "test"), content, Address("", "events"), True, 0, -1, 0.0)


def test_what_is_published_while_a_commit_runs_is_announced_by_the_next_one() -> None:
    store = MemoryStore()
    stream = Stream(QueueHost(), Runtime(store, 2**30), "events", 1, {"x-queue-type": "stream"})
    stream.publish(message(b"first"), 0)
    running = store.begin_commit()
    assert running is not None
    stream.publish(message(b"second"), 0)
    end_commit(store, running)
    assert stream.message_count == 1
    following = store.begin_commit()
    assert following is not None
    assert stream._waiter in following.waiters
    end_commit(store, following)
    assert stream.message_count == 2
    assert store.begin_commit() is None


def test_a_stream_that_is_deleted_waits_for_no_commit() -> None:
    """What it had appended is in none: it waited for the next one again and again, and the broker for it."""
    store = MemoryStore()
    runtime = Runtime(store, 2**30)
    stream = Stream(QueueHost(), runtime, "events", 1, {"x-queue-type": "stream"})
    stream.publish(message(b"first"), 0)
    stream.discard()
    before = runtime.memory_bytes
    commit = store.begin_commit()
    assert commit is not None
    end_commit(store, commit)
    assert store.begin_commit() is None
    assert runtime.memory_bytes == before
