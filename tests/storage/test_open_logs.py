"""However many segments there are, few of them are open."""

from collections.abc import Callable
from random import Random

import pytest

from tests.storage.support import commit, commit_durably, contents, maintain, message, new_disk, open_journal
from waybill.storage.journal import Journal
from waybill.testing.simulated_disk import SimulatedDisk

LIMIT = 4
ALWAYS_OPEN = 3  # definitions, the head of the messages, the last file of the stream
SEGMENT_BYTES = 2000
MESSAGES = 400


def text(number: int) -> bytes:
    return b"%d " % number * 50


def filled(disk: SimulatedDisk) -> tuple[Journal, list[int]]:
    """A journal with as many messages as segments, nearly."""
    journal = open_journal(disk, SEGMENT_BYTES, LIMIT)
    locations = []
    for number in range(MESSAGES):
        locations.append(int(journal.messages.put(1, number, message(text(number)))))
        if number % 10 == 9:
            commit_durably(journal)
            assert disk.open_files <= LIMIT + ALWAYS_OPEN
    assert len(disk.list_directory("messages")) > 5 * LIMIT
    return journal, locations


def test_messages_are_read_from_anywhere() -> None:
    disk = new_disk()
    journal, locations = filled(disk)
    for number in Random(1).sample(range(MESSAGES), MESSAGES):
        assert journal.messages.read(locations[number]).content == text(number)
        assert disk.open_files <= LIMIT + ALWAYS_OPEN


@pytest.mark.parametrize("stop", [SimulatedDisk.kill, SimulatedDisk.lose_power])
def test_recovery_opens_few(stop: Callable[[SimulatedDisk], None]) -> None:
    disk = new_disk()
    filled(disk)
    stop(disk)
    journal = open_journal(disk, SEGMENT_BYTES, LIMIT)
    assert disk.open_files <= LIMIT + ALWAYS_OPEN
    assert contents(journal, 1) == [text(number) for number in range(MESSAGES)]
    assert disk.open_files <= LIMIT + ALWAYS_OPEN


def test_a_torn_end_is_found_behind_many_segments() -> None:
    disk = new_disk()
    journal, _ = filled(disk)
    journal.messages.put(1, MESSAGES, message(text(MESSAGES)))
    commit(journal)
    disk.kill()
    last = f"messages/{disk.list_directory('messages')[-1]}"
    disk.overwrite(last, len(disk.content(last).rstrip(b"\0")) - 20, b"torn")
    again = open_journal(disk, SEGMENT_BYTES, LIMIT)
    assert again.report.torn_bytes > 0
    assert contents(again, 1) == [text(number) for number in range(MESSAGES)]


def test_damage_in_the_first_of_many_segments_is_skipped() -> None:
    disk = new_disk()
    filled(disk)
    disk.kill()
    first = f"messages/{disk.list_directory('messages')[0]}"
    disk.flip_bit(first, 300)
    again = open_journal(disk, SEGMENT_BYTES, LIMIT)
    assert [damage.name for damage in again.report.damage] == [first]
    assert len(contents(again, 1)) >= MESSAGES - 10


def test_compaction_opens_few_and_leaves_few() -> None:
    disk = new_disk()
    journal, locations = filled(disk)
    for number in range(MESSAGES):
        if number % 20:
            journal.messages.settle(1, number, locations[number])
    commit_durably(journal)
    maintain(journal)
    assert disk.open_files <= LIMIT + ALWAYS_OPEN
    kept = range(0, MESSAGES, 20)
    assert [journal.messages.read(locations[number]).content for number in kept] == [text(number) for number in kept]
    journal.close()
    assert disk.open_files == 0


def test_streams_share_the_limit() -> None:
    disk = new_disk()
    journal = open_journal(disk, SEGMENT_BYTES, LIMIT)
    stream = journal.stream(7, SEGMENT_BYTES)
    for number in range(MESSAGES):
        stream.append(message(text(number)), number)
        if number % 10 == 9:
            commit_durably(journal)
    assert len(disk.list_directory("streams/7")) > 5 * LIMIT
    disk.kill()
    journal = open_journal(disk, SEGMENT_BYTES, LIMIT)
    stream = journal.stream(7, SEGMENT_BYTES)
    for number in Random(1).sample(range(MESSAGES), MESSAGES):
        assert [record.message.content for record in stream.read(number, 1, 10_000)] == [text(number)]
        assert disk.open_files <= LIMIT + ALWAYS_OPEN
    stream.retain(10 * SEGMENT_BYTES, -1, MESSAGES)
    commit_durably(journal)
    assert len(disk.list_directory("streams/7")) <= 12
    journal.close()
    assert disk.open_files == 0
