"""Bytes that the disk has changed: reported, never delivered, and no reason to lose anything else."""

from contextlib import suppress
from random import Random

import pytest
from xxhash import xxh3_64_digest, xxh3_64_intdigest

from tests.storage.support import commit_durably, contents, message, new_disk, open_journal
from waybill.model.errors import DamagedMessage
from waybill.storage.check import check, repair
from waybill.storage.journal import Journal
from waybill.storage.log import BATCH_HEADER_SIZE
from waybill.storage.record import content_index, record_length
from waybill.testing.simulated_disk import Crash, SimulatedDisk

FIRST_SEGMENT = "messages/00000001.log"
BATCHES = 10
BATCH_LENGTH = 5


def content_of(sequence: int) -> bytes:
    return b"<%d>" % sequence * 20


def filled_disk(seed: int = 1) -> SimulatedDisk:
    """50 messages in 10 batches, a stream and definitions with the same, all of it known to be durable."""
    disk = new_disk(seed)
    journal = open_journal(disk)
    stream = journal.stream(9, 1 << 20)
    for batch in range(BATCHES):
        for index in range(BATCH_LENGTH):
            sequence = batch * BATCH_LENGTH + index
            journal.messages.put(1, sequence, message(content_of(sequence)))
            stream.append(message(content_of(sequence)), sequence)
            journal.define("queue", f"{sequence:02d}", {"content": content_of(sequence)})
        commit_durably(journal)
    # The header of a further batch tells that those before are durable.
    journal.messages.put(2, 0, message(b"last"))
    stream.append(message(content_of(50)), 50)
    journal.define("last", "one", {})
    commit_durably(journal)
    disk.kill()
    return disk


def place_of(disk: SimulatedDisk, content: bytes, name: str = FIRST_SEGMENT) -> int:
    return disk.content(name).index(content)


def sequences_found(journal: Journal) -> list[int]:
    found = []
    for stored in journal.recovered(1):
        assert stored.message.content == content_of(int(stored.sequence))
        found.append(int(stored.sequence))
    return found


def test_one_damaged_message_is_reported_and_nothing_else_is_lost() -> None:
    disk = filled_disk()
    disk.flip_bit(FIRST_SEGMENT, place_of(disk, content_of(22)) + 3)
    journal = open_journal(disk)
    assert [damage.name for damage in journal.report.damage] == [FIRST_SEGMENT]
    assert journal.report.torn_bytes == 0
    assert sequences_found(journal) == [number for number in range(50) if number != 22]
    assert contents(journal, 2) == [b"last"]


def test_a_damaged_batch_header_costs_no_message() -> None:
    disk = filled_disk()
    start = place_of(disk, content_of(20)) - 52 - len("amq.directkey") - BATCH_HEADER_SIZE
    disk.overwrite(FIRST_SEGMENT, start, bytes(BATCH_HEADER_SIZE))
    journal = open_journal(disk)
    assert len(journal.report.damage) == 1
    assert sequences_found(journal) == list(range(50))


def test_damage_in_a_file_header_costs_no_message() -> None:
    disk = filled_disk()
    disk.overwrite(FIRST_SEGMENT, 0, b"rubbish")
    journal = open_journal(disk)
    assert len(journal.report.damage) == 1
    assert sequences_found(journal) == list(range(50))


def test_a_message_damaged_after_the_start_is_not_delivered_either() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    location = journal.messages.put(1, 1, message(b"precious" * 10))
    commit_durably(journal)
    disk.flip_bit(FIRST_SEGMENT, place_of(disk, b"precious") + 5)
    with pytest.raises(DamagedMessage):
        journal.messages.read(location)


def test_any_flipped_bit_is_noticed() -> None:
    for seed in range(400):
        disk = filled_disk(seed)
        random = Random(seed)
        name = random.choice([FIRST_SEGMENT, "definitions.log", "streams/9/00000000000000000000.log"])
        end = len(disk.content(name))
        at = random.randrange(end)
        disk.flip_bit(name, at)
        journal = open_journal(disk)
        stream = journal.stream(9, 1 << 20)
        found = sequences_found(journal)
        entries: list[bytes] = []
        offset = 0
        while records := stream.read(offset, 100, 1 << 20):
            entries.extend(record.message.content for record in records)
            offset = int(records[-1].offset) + 1
        defined = list(journal.definitions("queue"))
        assert set(entries) <= {content_of(number) for number in range(51)}
        assert all(value == {"content": content_of(int(key))} for key, value in defined)
        # At worst one batch, if a length is not to be trusted any more.
        for survivors in (found, entries, defined):
            assert len(survivors) >= 45, f"seed {seed}: a bit of {name} at {at} costs too much"
        report = journal.report
        assert report.damage or report.torn_bytes, f"seed {seed}: a bit of {name} at {at} went unnoticed"


def test_of_a_group_with_a_damaged_record_nothing_else_is_lost() -> None:
    """Not even what it settles: the record that is lost may be what was to take its place."""
    disk = new_disk()
    journal = open_journal(disk)
    original = journal.messages.put(1, 1, message(b"original"))
    commit_durably(journal)
    journal.messages.put(1, 2, message(b"before"))
    with journal.messages.atomic():
        journal.messages.put(1, 3, message(b"first of group"))
        journal.messages.put(1, 4, message(b"second of group"))
        journal.messages.settle(1, 1, original)
    journal.messages.put(1, 5, message(b"after"))
    commit_durably(journal)
    journal.messages.put(2, 1, message(b"last"))
    commit_durably(journal)
    disk.kill()
    disk.flip_bit(FIRST_SEGMENT, place_of(disk, b"second of group"))
    for _ in range(2):
        journal = open_journal(disk)
        assert contents(journal, 1) == [b"original", b"before", b"first of group", b"after"]
        commit_durably(journal)
        disk.kill()
        repair(disk)
        assert check(disk).damage == []


def test_check_and_repair() -> None:
    disk = filled_disk()
    assert check(disk).damage == []
    disk.flip_bit(FIRST_SEGMENT, place_of(disk, content_of(22)) + 3)
    stream_name = "streams/9/00000000000000000000.log"
    disk.flip_bit(stream_name, place_of(disk, content_of(7), stream_name))
    disk.flip_bit("definitions.log", place_of(disk, content_of(3), "definitions.log"))
    found = check(disk)
    assert sorted(damage.name for damage in found.damage) == ["definitions.log", FIRST_SEGMENT, stream_name]
    assert found.files == 4
    assert found.records > 150
    assert len(repair(disk).damage) == 3
    assert check(disk).damage == []
    disk.lose_power()
    journal = open_journal(disk)
    assert journal.report.damage == []
    assert sequences_found(journal) == [number for number in range(50) if number != 22]
    # One bit of a definition is found by trying.
    assert len(list(journal.definitions("queue"))) == 50
    assert len(journal.stream(9, 1 << 20).read(0, 100, 1 << 20)) == 50


def test_checking_changes_nothing() -> None:
    disk = filled_disk()
    disk.flip_bit(FIRST_SEGMENT, place_of(disk, content_of(22)))
    operations = disk.operations
    check(disk)
    assert disk.operations == operations


def test_repair_of_a_crashed_repair() -> None:
    for crash_at in range(1, 12):
        disk = filled_disk()
        disk.flip_bit(FIRST_SEGMENT, place_of(disk, content_of(22)))
        disk.crash_at = disk.operations + crash_at
        with suppress(Crash):
            repair(disk)
        disk.lose_power()
        repair(disk)
        assert check(disk).damage == []
        assert sequences_found(open_journal(disk)) == [number for number in range(50) if number != 22]


def test_the_check_would_notice_missing_checksums() -> None:
    """A planted bug: without a checksum, another content would be delivered. `sequences_found` sees that it is."""
    disk = filled_disk()
    data = bytearray(disk.content(FIRST_SEGMENT))
    at = data.index(content_of(22))
    start = at - 52 - len("amq.directkey")
    length = record_length(bytes(data), start, len(data))
    data[at] ^= 1
    body = bytes(data)
    head_end = content_index(body, start)
    seed = xxh3_64_intdigest(body[start + 8 : head_end])
    digest = xxh3_64_digest(body[head_end : start + length], seed)
    disk.overwrite(FIRST_SEGMENT, start, digest + body[start + 8 : start + length])
    with pytest.raises(AssertionError):
        sequences_found(open_journal(disk))


def test_a_torn_end_is_cut_off_silently_once() -> None:
    disk = filled_disk()
    end = len(disk.content(FIRST_SEGMENT).rstrip(b"\0"))
    disk.overwrite(FIRST_SEGMENT, end, b"\1" * 100)
    journal = open_journal(disk)
    assert journal.report.torn_bytes == 100
    assert journal.report.damage == []
    disk.kill()
    assert open_journal(disk).report.torn_bytes == 0


def test_a_message_of_an_unknown_format_is_reported() -> None:
    disk = filled_disk()
    journal = Journal.open(disk, [])
    assert list(journal.recovered(1)) == []
    assert len(journal.report.damage) == 50


def killed_disk() -> tuple[SimulatedDisk, int]:
    """A directory whose last batch was synced, and nothing says so. Returns where that batch begins, too."""
    disk = new_disk()
    journal = open_journal(disk)
    journal.define("queue", "q", {"id": 1})
    commit_durably(journal)
    start = len(disk.content(FIRST_SEGMENT).rstrip(b"\0")) if FIRST_SEGMENT in disk.file_names() else 32
    stream = journal.stream(9, 1 << 20)
    for sequence in range(3):
        journal.messages.put(1, sequence, message(content_of(sequence)))
        stream.append(message(content_of(sequence)), sequence)
        journal.define("queue", str(sequence), {"id": sequence})
    commit_durably(journal)
    disk.kill()
    return disk, start


def test_a_flipped_bit_in_the_last_batch_is_no_torn_end() -> None:
    _, start = killed_disk()
    for place in range(start, start + 400, 7):
        disk, _ = killed_disk()
        content = disk.content(FIRST_SEGMENT).rstrip(b"\0")
        if place >= len(content):
            break
        disk.flip_bit(FIRST_SEGMENT, place)
        assert [damage.name for damage in check(disk).damage], place
        journal = open_journal(disk)
        assert [damage.name for damage in journal.report.damage] == [FIRST_SEGMENT] * len(journal.report.damage), place
        assert journal.report.damage, place
        found = sequences_found(journal)
        assert len(found) >= 2, place
        journal.close()
        repair(disk)
        assert check(disk).damage == []
        journal = open_journal(disk)
        assert sequences_found(journal) == found, place
        journal.close()


@pytest.mark.parametrize("name", ["definitions.log", "streams/9/00000000000000000000.log"])
def test_a_flipped_bit_in_the_last_batch_of_another_file_is_no_torn_end(name: str) -> None:
    size = len(killed_disk()[0].content(name))
    for place in range(0, size, 11):
        disk, _ = killed_disk()
        disk.flip_bit(name, place)
        assert name in {damage.name for damage in check(disk).damage}, place
        journal = open_journal(disk)
        stream = journal.stream(9, 1 << 20)
        entries = stream.read(0, 10, 1 << 20)
        assert len(entries) >= 2, place
        assert len(list(journal.definitions("queue"))) == 4, place
        assert name in {damage.name for damage in journal.report.damage}, place
        journal.close()


def test_a_sector_that_was_never_written_is_a_torn_end() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.messages.put(1, 0, message(b"x" * 2000))
    commit_durably(journal)
    disk.kill()
    disk.overwrite(FIRST_SEGMENT, 1024, bytes(512))
    assert check(disk).damage == []
    journal = open_journal(disk)
    assert journal.report.damage == []
    assert journal.report.torn_bytes > 0
    journal.close()
