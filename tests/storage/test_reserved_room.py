"""What a stream reserves behind small batches: as much as it has written, and nothing that anybody would read."""

from __future__ import annotations

from tests.storage.support import commit_durably, message, new_disk, open_journal
from waybill.model.store import StoredStream
from waybill.storage.journal import Journal
from waybill.testing.simulated_disk import SimulatedDisk

FILE = "streams/1/00000000000000000000.log"
NOTHING = bytes(100)


def fill(journal: Journal, count: int, *, size: int = 1000, segment_bytes: int = 1 << 20) -> StoredStream:
    """Append messages, each in a commit of its own."""
    stream = journal.stream(1, segment_bytes)
    for _ in range(count):
        stream.append(message(b"a" * size), 1)
        commit_durably(journal)
    return stream


def reserved(disk: SimulatedDisk) -> int:
    """Return how many zeros there are behind what was written."""
    found = disk.content(FILE)
    return len(found) - len(found.rstrip(b"\0"))


def test_a_small_stream_reserves_as_much_as_it_has_written() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    fill(journal, 1)
    assert 1000 < reserved(disk) < 1200
    fill(journal, 600)
    assert 100_000 < reserved(disk) <= 256 << 10


def test_what_a_crash_leaves_reserved_is_no_torn_end() -> None:
    disk = new_disk()
    stream = fill(open_journal(disk), 20)
    assert reserved(disk) > 1000
    assert len(stream.read(0, 100, 1 << 20)) == 20
    disk.kill()
    journal = open_journal(disk)
    stream = journal.stream(1, 1 << 20)
    assert len(stream.read(0, 100, 1 << 20)) == 20
    assert journal.report.torn_bytes == 0
    assert journal.report.damage == []
    assert not disk.content(FILE).endswith(NOTHING)
    assert fill(journal, 1).read(20, 100, 1 << 20)[0].offset == 20


def test_a_torn_end_is_counted_without_what_is_reserved_behind_it() -> None:
    disk = new_disk()
    fill(open_journal(disk), 3)
    disk.kill()
    end = len(disk.content(FILE).rstrip(b"\0"))
    disk.overwrite(FILE, end, b"\1" * 70)
    journal = open_journal(disk)
    assert len(journal.stream(1, 1 << 20).read(0, 100, 1 << 20)) == 3
    assert journal.report.torn_bytes == 70
    assert journal.report.damage == []


def test_a_clean_stop_leaves_nothing_reserved() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    fill(journal, 3)
    journal.close()
    assert not disk.content(FILE).endswith(NOTHING)


def test_a_full_file_has_nothing_reserved() -> None:
    disk = new_disk()
    fill(open_journal(disk), 8, size=900, segment_bytes=4000)
    disk.kill()
    assert len(disk.content(FILE)) >= 4000
    assert not disk.content(FILE).endswith(NOTHING)


def test_nothing_is_reserved_behind_a_large_batch() -> None:
    disk = new_disk()
    fill(open_journal(disk), 1, size=20_000)
    assert reserved(disk) == 0


def test_nothing_is_reserved_while_the_disk_is_nearly_full() -> None:
    disk = new_disk()
    journal = open_journal(disk)
    journal.save_space(is_needed=True)
    fill(journal, 3)
    assert reserved(disk) == 0
