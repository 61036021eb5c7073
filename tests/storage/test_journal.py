import errno
from datetime import UTC, datetime
from decimal import Decimal
from random import Random

import pytest
from xxhash import xxh3_64_digest

from tests.storage.support import (
    FORMAT,
    Waiter,
    commit,
    commit_durably,
    contents,
    maintain,
    message,
    new_disk,
    open_journal,
)
from waybill.model.errors import StoreFailed, UnsupportedStoreVersion
from waybill.model.message import Address, Message
from waybill.storage.journal import Journal
from waybill.storage.log import FILE_HEADER_SIZE
from waybill.testing.simulated_disk import SimulatedDisk


def segments(disk: SimulatedDisk) -> list[str]:
    return disk.list_directory("messages")


def test_messages_come_back_in_order_without_those_settled() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    locations = [int(journal.messages.put(1, sequence, message(b"%d" % sequence))) for sequence in range(10)]
    journal.messages.settle(1, 3, locations[3])
    commit_durably(journal)
    journal.messages.settle(1, 0, locations[0])
    commit_durably(journal)
    disk.lose_power()
    again = open_journal(disk)
    assert not again.report.is_clean
    assert again.report.messages == 8
    stored = list(again.recovered(1))
    assert [item.sequence for item in stored] == [1, 2, 4, 5, 6, 7, 8, 9]
    assert [item.message.content for item in stored] == [b"1", b"2", b"4", b"5", b"6", b"7", b"8", b"9"]
    assert again.next_sequence(1) == 10
    assert list(again.recovered(1)) == []


def test_a_commit_without_a_waiter_syncs_nothing() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    durable = journal.messages.durable_batch
    journal.messages.put(1, 1, message(b"a"))
    work = journal.begin_commit()
    assert work is not None
    assert not work.is_synced
    work.execute()
    journal.end_commit(work)
    assert journal.messages.written_batch == durable + 1
    assert journal.messages.durable_batch == durable


def test_redelivered_is_told_of_queues_that_were_delivered_from() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"a"))
    journal.messages.put(2, 1, message(b"b"))
    journal.messages.mark_delivering(1, 9)
    commit_durably(journal)
    disk.kill()
    journal = open_journal(disk)
    assert [item.redelivered for item in journal.recovered(1)] == [True]
    assert [item.redelivered for item in journal.recovered(2)] == [False]
    # Consumers may know sequences up to 9.
    assert journal.next_sequence(1) == 10
    journal.messages.put(1, journal.next_sequence(1), message(b"c"))
    commit_durably(journal)
    disk.kill()
    # It stays so for those messages, and is not so for what came after the restart.
    journal = open_journal(disk)
    assert [item.redelivered for item in journal.recovered(1)] == [True, False]


@pytest.mark.parametrize("is_clean", [True, False])
def test_sequences_that_consumers_may_know_are_not_given_again(is_clean: bool) -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"x"))
    journal.messages.mark_delivering(1, 9)
    journal.messages.settle(1, 1, journal.messages.put(1, 2, message(b"x")))
    commit_durably(journal)
    for _ in range(3):
        if is_clean:
            journal.close()
        disk.kill()
        journal = open_journal(disk)
        assert journal.next_sequence(1) == 10
    journal.messages.remove_queue(1)
    commit_durably(journal)
    disk.kill()
    assert open_journal(disk).next_sequence(1) <= 3


def test_after_a_clean_stop_exactly_what_was_delivered_is_redelivered() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    for sequence in range(3):
        journal.messages.put(1, sequence, message(b"x"))
    journal.messages.mark_delivering(1, 9)
    journal.close(redelivered={1: [1]})
    disk.lose_power()
    journal = open_journal(disk)
    assert journal.report.is_clean
    assert [item.redelivered for item in journal.recovered(1)] == [False, True, False]


def test_after_a_clean_stop_without_details_all_of_a_queue_delivered_from_is_redelivered() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"x"))
    journal.messages.put(2, 1, message(b"x"))
    journal.messages.mark_delivering(1, 9)
    journal.close()
    journal = open_journal(disk)
    assert [item.redelivered for item in journal.recovered(1)] == [True]
    assert [item.redelivered for item in journal.recovered(2)] == [False]


def test_a_message_settled_after_its_queue_was_removed_and_its_segment_compacted() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=2000)
    locations = []
    for sequence in range(200):
        locations.append(int(journal.messages.put(1 + sequence % 2, sequence, message(b"x" * 100))))
        commit(journal)
    # Queue 1 is deleted while two of its messages are with consumers; little of queue 2 is left.
    journal.messages.remove_queue(1)
    for sequence in range(0, 200, 2):
        if sequence not in (20, 40):
            journal.messages.forget(locations[sequence])
    for sequence in range(1, 200, 2):
        if sequence % 25:
            journal.messages.settle(2, sequence, locations[sequence])
    maintain(journal)
    for sequence in (20, 40):
        journal.messages.settle(1, sequence, locations[sequence])
    maintain(journal)
    disk.lose_power()
    journal = open_journal(disk, segment_bytes=2000)
    assert contents(journal, 1) == []
    assert [item.sequence for item in journal.recovered(2)] == [25, 75, 125, 175]


def test_a_removed_queue_lets_go_of_nothing_that_others_hold() -> None:
    """Its deliveries are settled after compaction has copied their messages for the others only."""
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=2000)
    locations = []
    for sequence in range(200):
        locations.append(int(journal.messages.put(1, sequence, message(b"x" * 100))))
        journal.messages.put_reference(2, sequence, locations[sequence])
        commit(journal)
    journal.messages.remove_queue(1)
    delivered = range(0, 200, 25)
    for sequence in range(200):
        if sequence not in delivered:
            journal.messages.forget(locations[sequence])
            journal.messages.settle(2, sequence, locations[sequence])
    maintain(journal)
    for sequence in delivered:
        journal.messages.settle(1, sequence, locations[sequence])
    maintain(journal)
    assert all(journal.messages.read(locations[sequence]).content == b"x" * 100 for sequence in delivered)
    for sequence in list(delivered)[:4]:
        journal.messages.settle(2, sequence, locations[sequence])
    maintain(journal)
    disk.lose_power()
    journal = open_journal(disk, segment_bytes=2000)
    assert contents(journal, 1) == []
    assert [item.sequence for item in journal.recovered(2)] == list(delivered)[4:]


def test_marks_larger_than_a_segment_do_not_begin_one_segment_after_the_other() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=1024)
    for sequence in range(200):
        journal.messages.put(1, sequence, message(b"x"))
    journal.close(redelivered={1: list(range(200))})
    journal = open_journal(disk, segment_bytes=1024)
    assert len(list(journal.recovered(1))) == 200
    journal.messages.put(1, 200, message(bytes(2000)))
    assert [commit(journal) for _ in range(5)][-1] is False
    assert len(segments(disk)) < 10


def test_delivery_counts_come_back() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    location = journal.messages.put(1, 1, message(b"a"))
    journal.messages.requeue(1, 1, location, 1, b"")
    commit_durably(journal)
    journal.messages.requeue(1, 1, location, 2, b"")
    commit_durably(journal)
    disk.lose_power()
    assert [item.delivery_count for item in open_journal(disk).recovered(1)] == [2]


def test_messages_of_a_removed_queue_do_not_come_back() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    location = journal.messages.put(1, 1, message(b"a"))
    commit_durably(journal)
    journal.messages.remove_queue(1)
    journal.messages.forget(location)
    commit_durably(journal)
    disk.lose_power()
    assert open_journal(disk).report.messages == 0


def test_messages_that_no_queue_claims_are_removed_if_their_queue_was_deleted() -> None:
    """Those of the others are kept: it may be the definition that is lost."""
    disk = new_disk()
    journal = open_journal(disk)
    for queue_id in (1, 2, 3):
        journal.define("queue", str(queue_id), {"id": queue_id})
        journal.messages.put(queue_id, 1, message(b"a"))
        journal.messages.put(queue_id, 2, message(b"b"))
    # A crash has come before the queue's messages were purged.
    journal.undefine("queue", "2")
    commit_durably(journal)
    disk.kill()
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"a", b"b"]
    assert journal.remove_unclaimed() == 2
    assert journal.unclaimed() == ({3: 2}, [])
    commit_durably(journal)
    disk.kill()
    journal = open_journal(disk)
    assert journal.report.messages == 4
    assert contents(journal, 3) == [b"a", b"b"]


def test_ids_are_not_given_again_after_a_crash() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    used = [int(journal.new_id()) for _ in range(3)]
    journal.define("queue", "q", {"id": used[0]})
    journal.messages.put(used[1], 1, message(b"a"))
    journal.stream(used[2], 1000).append(message(b"b"), 1)
    commit_durably(journal)
    disk.lose_power()
    assert open_journal(disk).new_id() > max(used)


def test_retention_leaves_a_stream_whose_last_file_was_lost_its_offsets() -> None:
    """Found by a simulated run, seed 10004668: the stream began at 0 again."""
    disk = new_disk()
    journal = open_journal(disk)
    stream_id = journal.new_id()
    stream = journal.stream(stream_id, 100)
    for number in range(2):
        stream.append(message(b"x" * 100), number)
        commit_durably(journal)
    stream.append(message(b"never synced"), 2)
    work = journal.begin_commit()
    assert work is not None
    disk.fail_next["append"] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        work.execute()
    disk.kill()
    journal = open_journal(disk)
    stream = journal.stream(stream_id, 100)
    assert stream.next_offset == 2
    stream.retain(0, -1, 0)
    commit_durably(journal)
    disk.kill()
    assert open_journal(disk).stream(stream_id, 100).next_offset == 2


def test_definitions_come_back_and_history_is_dropped() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    for number in range(5000):
        journal.define("queue", f"q{number % 3}", {"number": number})
        if number % 100 == 0:
            commit_durably(journal)
    journal.undefine("queue", "q1")
    commit_durably(journal)
    assert len(disk.content("definitions.log")) < 100_000
    disk.lose_power()
    assert list(open_journal(disk).definitions("queue")) == [("q0", {"number": 4998}), ("q2", {"number": 4997})]


def test_a_segment_without_live_messages_goes() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=2000)
    locations = []
    for sequence in range(100):
        locations.append(int(journal.messages.put(1, sequence, message(b"x" * 100))))
        commit(journal)
    assert len(segments(disk)) > 5
    for sequence, location in enumerate(locations):
        journal.messages.settle(1, sequence, location)
    maintain(journal)
    assert len(segments(disk)) == 1


def test_settles_of_an_old_message_do_not_keep_segments_for_ever() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=5000)
    backlog = [int(journal.messages.put(1, sequence, message(b"old" * 30))) for sequence in range(400)]
    commit(journal)
    for sequence in range(400):
        location = journal.messages.put(2, sequence, message(b"x" * 300))
        commit(journal)
        journal.messages.settle(2, sequence, location)
        if sequence % 20 == 0:
            journal.messages.settle(1, sequence, backlog[sequence])
        commit(journal)
        maintain(journal)
    assert len(segments(disk)) < 20
    disk.lose_power()
    journal = open_journal(disk, segment_bytes=5000)
    assert contents(journal, 2) == []
    assert len(contents(journal, 1)) == 380


def test_compaction_makes_room_and_locations_stay_valid() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=3000)
    locations = {}
    for sequence in range(500):
        locations[sequence] = int(journal.messages.put(1, sequence, message(b"%d" % sequence * 30)))
        if sequence % 7 == 0:
            journal.messages.put_reference(2, sequence, locations[sequence])
        commit(journal)
    for sequence in range(500):
        if sequence % 10:
            journal.messages.settle(1, sequence, locations[sequence])
    before = len(segments(disk))
    commit_durably(journal)
    maintain(journal)
    assert len(segments(disk)) < before / 2
    kept = [sequence for sequence in range(500) if sequence % 10 == 0]
    assert all(journal.messages.read(locations[sequence]).content == b"%d" % sequence * 30 for sequence in kept)
    for sequence in kept[:25]:
        journal.messages.settle(1, sequence, locations[sequence])
    commit_durably(journal)
    maintain(journal)
    disk.lose_power()
    journal = open_journal(disk, segment_bytes=3000)
    assert [item.sequence for item in journal.recovered(1)] == kept[25:]
    assert [item.sequence for item in journal.recovered(2)] == list(range(0, 500, 7))


def test_spilled_messages_are_read_back_after_compaction_and_gone_after_a_restart() -> None:
    disk = new_disk()
    journal = open_journal(disk, segment_bytes=2000)
    spilled = []
    for number in range(200):
        spilled.append(int(journal.messages.spill(message(b"%d" % number * 20))))
        commit(journal)
    for number in range(200):
        if number % 10:
            journal.messages.forget(spilled[number])
    maintain(journal)
    assert len(segments(disk)) < 60
    assert all(journal.messages.read(spilled[number]).content == b"%d" % number * 20 for number in range(0, 200, 10))
    disk.kill()
    assert open_journal(disk).report.messages == 0


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_after_an_error_of_the_disk_the_store_takes_no_more_work(operation: str) -> None:
    disk = new_disk()
    journal = open_journal(disk)
    waiter = Waiter()
    journal.messages.put(1, 1, message(b"a"))
    journal.wait(waiter, 1)
    work = journal.begin_commit()
    assert work is not None
    disk.fail_next[operation] = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        work.execute()
    with pytest.raises(StoreFailed):
        journal.end_commit(work)
    with pytest.raises(StoreFailed):
        journal.begin_commit()
    assert waiter.marks == []


def test_a_full_disk_is_an_error_of_the_disk() -> None:
    disk = SimulatedDisk(Random(1), capacity=300_000)
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"a" * 300_000))
    work = journal.begin_commit()
    assert work is not None
    with pytest.raises(OSError, match="space"):
        work.execute()
    disk.kill()
    disk.capacity = 1 << 20
    # The torn batch is cut off, and nobody was told that it is safe.
    journal = open_journal(disk)
    assert journal.report.torn_bytes > 0
    assert journal.report.damage == []


def test_what_a_crash_leaves_reserved_is_no_torn_end() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    for number in range(3):
        journal.messages.put(1, number, message(b"%d" % number))
        commit_durably(journal)
    assert disk.content("messages/00000001.log").endswith(bytes(200_000))
    disk.kill()
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"0", b"1", b"2"]
    assert journal.report.torn_bytes == 0
    assert not disk.content("messages/00000001.log").endswith(bytes(100))


def test_a_clean_stop_leaves_nothing_reserved() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"a"))
    commit_durably(journal)
    journal.close()
    assert not disk.content("messages/00000001.log").endswith(bytes(100))


def test_a_full_segment_has_nothing_reserved() -> None:
    disk = new_disk()
    journal = open_journal(disk, 4000)
    for number in range(8):
        journal.messages.put(1, number, message(b"a" * 900))
        commit_durably(journal)
    disk.kill()
    sealed = disk.content("messages/00000001.log")
    assert len(sealed) >= 4000
    assert not sealed.endswith(bytes(100))


def test_a_newer_format_is_refused() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 1, message(b"a"))
    journal.close()
    name = f"messages/{segments(disk)[0]}"
    header = bytearray(disk.content(name)[:FILE_HEADER_SIZE])
    header[9] = 2
    header[24:32] = xxh3_64_digest(bytes(header[:24]))
    disk.overwrite(name, 0, bytes(header))
    disk.kill()
    with pytest.raises(UnsupportedStoreVersion, match="format version 2"):
        open_journal(disk)


def test_names_and_contents_of_any_size_are_kept() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    address = Address("é" * 100, "\udcff" + "k" * 1000)
    sizes = [0, 1, 8191, 8192, 262_144, 2_000_000]
    locations = [
        int(journal.messages.put(1, sequence, Message(FORMAT, b"x" * size, address, True, 255, 0, 0.0)))
        for sequence, size in enumerate(sizes)
    ]
    commit_durably(journal)
    for location, size in reversed(list(zip(locations, sizes, strict=True))):
        assert len(journal.messages.read(location).content) == size
    disk.lose_power()
    stored = list(open_journal(disk).recovered(1))
    assert [len(item.message.content) for item in stored] == sizes
    assert {item.message.address.routing_key for item in stored} == {address.routing_key}
    assert {item.message.address.exchange for item in stored} == {address.exchange}
    with pytest.raises(ValueError, match="65535"):
        journal.messages.put(1, 9, Message(FORMAT, b"", Address("x" * 70_000, ""), True, 0, -1, 0.0))


def test_a_group_is_not_committed_by_halves() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    with journal.messages.atomic():
        journal.messages.put(1, 1, message(b"a"))
        assert journal.begin_commit() is None
        with journal.messages.atomic():
            journal.messages.put(1, 2, message(b"b"))
        assert journal.begin_commit() is None
    commit_durably(journal)
    disk.lose_power()
    assert contents(open_journal(disk), 1) == [b"a", b"b"]


def settle_and_fail(journal: Journal, location: int) -> None:
    with journal.messages.atomic():
        journal.messages.put(1, 2, message(b"in it"))
        with journal.messages.atomic():
            journal.messages.settle(1, 1, location)
            raise KeyError


def test_an_exception_ends_a_group_and_what_was_put_before_it_stays() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    before = journal.messages.put(1, 1, message(b"before"))
    with pytest.raises(KeyError):
        settle_and_fail(journal, before)
    assert not journal.messages.is_in_atomic_section
    commit_durably(journal)
    disk.lose_power()
    assert contents(open_journal(disk), 1) == [b"in it"]


def test_idle_stores_do_no_work() -> None:
    disk = new_disk()
    journal: Journal = open_journal(disk)
    maintain(journal)
    operations = disk.operations
    for _ in range(5):
        assert not journal.maintain(0.0)
        assert journal.begin_commit() is None
    assert disk.operations == operations


def test_argument_tables_come_back_as_they_were() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    value: dict[str, object] = {
        "table": {"list": [1, -(2**63), 2**63 - 1, 1.5, None, True]},
        "bytes": b"\x00\xff",
        "decimal": Decimal("12.50"),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "not utf-8 \udcff": "\udcfe",
    }
    journal.define("queue", "name \udcff", value)
    commit_durably(journal)
    disk.lose_power()
    assert list(open_journal(disk).definitions("queue")) == [("name \udcff", value)]
