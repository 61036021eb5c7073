"""What every store must do, whether it keeps anything or not."""

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tests.storage.support import Waiter, commit, end_commit, message, new_disk, open_journal
from waybill.storage.commit import CommittingStore
from waybill.storage.memory import MemoryStore


def new_journal() -> CommittingStore:
    return open_journal(new_disk())


@pytest.fixture(params=[new_journal, MemoryStore], ids=["journal", "memory"])
def store(request: pytest.FixtureRequest) -> CommittingStore:
    make: Callable[[], CommittingStore] = request.param
    return make()


def test_a_waiter_is_told_at_the_end_of_the_commit_and_not_before(store: CommittingStore) -> None:
    waiter = Waiter()
    store.messages.put(1, 1, message(b"a"))
    store.wait(waiter, 5)
    store.wait(waiter, 6)
    work = store.begin_commit()
    assert work is not None
    work.execute()
    assert waiter.marks == []
    end_commit(store, work)
    assert waiter.marks == [5, 6]


def test_a_waiter_with_nothing_to_wait_for_is_told_by_the_next_commit(store: CommittingStore) -> None:
    waiter = Waiter()
    store.wait(waiter, 1)
    assert commit(store)
    assert waiter.marks == [1]


def test_there_is_no_commit_without_anything_to_commit(store: CommittingStore) -> None:
    assert not commit(store)


def test_one_commit_runs_at_a_time_and_the_rest_is_the_next_batch(store: CommittingStore) -> None:
    waiter = Waiter()
    store.messages.put(1, 1, message(b"a"))
    first_batch = store.messages.batch
    work = store.begin_commit()
    assert work is not None
    store.messages.put(1, 2, message(b"b"))
    store.wait(waiter, 1)
    assert store.messages.batch == first_batch + 1
    assert store.begin_commit() is None
    work.execute()
    end_commit(store, work)
    assert waiter.marks == []
    assert store.messages.written_batch == first_batch
    assert commit(store)
    assert waiter.marks == [1]
    assert store.messages.durable_batch == first_batch + 1


def test_a_message_is_read_back_as_it_was_put(store: CommittingStore) -> None:
    put = message(b"content" * 100, priority=7, ttl_ms=60_000, published_at=1234.5)
    location = store.messages.put(1, 1, put)
    spilled = store.messages.spill(message(b"spilled"))
    commit(store)
    found = store.messages.read(location)
    assert found.content == put.content
    assert (found.address.exchange, found.address.routing_key) == ("amq.direct", "key")
    assert (found.priority, found.ttl_ms, found.published_at, found.durable) == (7, 60_000, 1234.5, True)
    assert found.format.code == 1
    assert store.messages.read(spilled).content == b"spilled"
    store.messages.forget(spilled)


def test_a_shared_message_is_readable_until_its_last_queue_has_settled_it(store: CommittingStore) -> None:
    location = store.messages.put(1, 1, message(b"shared"))
    store.messages.put_reference(2, 1, location)
    commit(store)
    store.messages.settle(1, 1, location)
    assert store.messages.read(location).content == b"shared"
    store.messages.settle(2, 1, location)


def test_only_a_message_of_this_batch_can_be_put_for_another_queue(store: CommittingStore) -> None:
    location = store.messages.put(1, 1, message(b"a"))
    commit(store)
    store.messages.settle(1, 1, location)
    commit(store)
    with pytest.raises(ValueError, match="current batch"):
        store.messages.put_reference(2, 1, location)


def test_definitions_keep_the_order_in_which_they_were_first_made(store: CommittingStore) -> None:
    store.define("queue", "b", {"n": 1})
    store.define("queue", "a", {"n": 2})
    store.define("exchange", "x", {})
    store.define("queue", "b", {"n": 3})
    store.undefine("exchange", "x")
    store.undefine("exchange", "not there")
    assert list(store.definitions("queue")) == [("b", {"n": 3}), ("a", {"n": 2})]
    assert list(store.definitions("exchange")) == []


def test_definitions_take_whatever_an_argument_table_can_hold(store: CommittingStore) -> None:
    value: dict[str, object] = {
        "table": {"list": [1, -(2**63), 2**63 - 1, 1.5, None, True]},
        "bytes": b"\x00\xff",
        "decimal": Decimal("12.50"),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "not utf-8 \udcff": "\udcfe",
    }
    store.define("queue", "name \udcff", value)
    assert list(store.definitions("queue")) == [("name \udcff", value)]


def test_ids_are_given_once(store: CommittingStore) -> None:
    assert len({int(store.new_id()) for _ in range(10)}) == 10


def test_stream_readers_see_what_is_committed(store: CommittingStore) -> None:
    stream = store.stream(1, 1 << 20)
    assert [stream.append(message(b"%d" % number), 100 + number) for number in range(5)] == [0, 1, 2, 3, 4]
    assert stream.next_offset == 5
    assert stream.committed_offset == 0
    assert stream.read(0, 10, 1000) == []
    commit(store)
    assert stream.committed_offset == 5
    records = stream.read(1, 2, 1000)
    assert [(record.offset, record.timestamp_ms, record.message.content) for record in records] == [
        (1, 101, b"1"),
        (2, 102, b"2"),
    ]
    assert stream.read(5, 10, 1000) == []
    assert len(stream.read(0, 10, 1)) == 1


def test_streams_are_searched_by_time(store: CommittingStore) -> None:
    stream = store.stream(1, 200)
    for number in range(50):
        stream.append(message(b"x" * 50), 1000 + 10 * number)
        commit(store)
    assert stream.offset_at(0) == 0
    assert stream.offset_at(1100) == 10
    assert stream.offset_at(1101) == 11
    assert stream.offset_at(1490) == 49
    assert stream.offset_at(1491) == 50


def test_a_search_by_time_does_not_pass_what_is_about_to_be_committed(store: CommittingStore) -> None:
    """Its reader would begin behind it (found by a simulated run, seed 10001151)."""
    stream = store.stream(1, 1 << 20)
    stream.append(message(b"first"), 1000)
    assert stream.offset_at(1000) == 0
    assert stream.offset_at(1001) == 1
    commit(store)
    stream.append(message(b"second"), 1010)
    assert stream.offset_at(1005) == 1


def test_retention_drops_whole_segments_and_never_the_last(store: CommittingStore) -> None:
    stream = store.stream(1, 500)
    for number in range(100):
        stream.append(message(b"x" * 100), 1000 + number)
        commit(store)
    size = stream.size()
    stream.retain(size // 2, -1, 0)
    assert stream.size() <= size // 2
    assert 0 < stream.first_offset < 100
    assert stream.read(0, 1, 1000)[0].offset == stream.first_offset
    commit(store)
    stream.retain(-1, 20, 1100)
    first = stream.read(stream.first_offset, 1, 1000)[0]
    assert 1070 < first.timestamp_ms <= 1080
    stream.retain(0, 0, 1 << 40)
    commit(store)
    assert stream.size() > 0
    assert stream.read(0, 1, 1000)[0].offset == stream.first_offset


def test_what_a_removed_stream_had_not_written_is_gone(store: CommittingStore) -> None:
    store.stream(1, 1000).append(message(b"a"), 1)
    store.remove_stream(1)
    commit(store)
    stream = store.stream(1, 1000)
    assert stream.next_offset == 0
    assert stream.read(0, 10, 1000) == []
    stream.append(message(b"b"), 1)
    commit(store)
    assert [record.message.content for record in stream.read(0, 10, 1000)] == [b"b"]


def test_a_removed_stream_begins_anew(store: CommittingStore) -> None:
    store.stream(1, 1000).append(message(b"a"), 1)
    commit(store)
    store.remove_stream(1)
    commit(store)
    stream = store.stream(1, 1000)
    assert stream.next_offset == 0
    assert stream.append(message(b"b"), 1) == 0
    commit(store)
    assert [record.message.content for record in stream.read(0, 10, 1000)] == [b"b"]
