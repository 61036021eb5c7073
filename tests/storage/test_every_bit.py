"""One wrong bit, a cut or a lost file in a stopped data directory: the check finds it, and a start loses no more."""

import os
import zipfile
from contextlib import nullcontext
from errno import EIO
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.storage.support import commit_durably, contents, message, new_disk, open_journal
from waybill.model.errors import DefinitionsLost
from waybill.storage.check import check, repair
from waybill.storage.journal import Journal
from waybill.storage.manifest import NAME as MANIFEST
from waybill.testing.simulated_disk import SimulatedDisk

CASES: Final = int(os.environ.get("DAMAGE_CASES", "40"))
QUEUES: Final = 3
STREAM: Final = 50
SEGMENT_BYTES: Final = 3000


def content_of(number: int) -> bytes:
    return b"<%d>" % number * 12


class Kept:
    """What was put into the directory: messages by queue, with their sequences, and how many entries the stream has."""

    def __init__(self) -> None:
        self.messages: dict[int, dict[int, bytes]] = {queue: {} for queue in range(1, QUEUES + 1)}
        self.entries = 0


def fill(disk: SimulatedDisk, *, is_stopped: bool = True, segment_bytes: int = SEGMENT_BYTES) -> Kept:
    """Several segments of messages and of a stream, transactions, spilled messages, settled ones, definitions."""
    kept = Kept()
    journal = open_journal(disk, segment_bytes)
    for queue in kept.messages:
        journal.define("queue", str(queue), {"id": queue})
    journal.define("stream", "s", {"id": STREAM})
    stream = journal.stream(STREAM, 1500)
    number = 0
    for batch in range(30):
        locations: list[tuple[int, int, int]] = []
        journal.messages.spill(message(b"spilled" * 5))
        with journal.messages.atomic() if batch % 3 == 0 else nullcontext():
            for queue in kept.messages:
                number += 1
                locations.append((queue, number, int(journal.messages.put(queue, number, message(content_of(number))))))
                kept.messages[queue][number] = content_of(number)
        stream.append(message(content_of(batch)), batch)
        kept.entries += 1
        commit_durably(journal)
        if batch % 4 == 0:
            queue, sequence, location = locations[0]
            journal.messages.settle(queue, sequence, location)
            del kept.messages[queue][sequence]
        journal.define("binding", str(batch % 7), {"batch": batch})
    if is_stopped:
        journal.close()
    else:
        # Nothing happens for a while.
        for now in (1.0, 2.0, 3.0):
            journal.maintain(now)
            work = journal.begin_commit()
            if work is not None:
                work.execute()
                journal.end_commit(work)
    disk.kill()
    return kept


def damage(disk: SimulatedDisk, random: Random) -> str:
    """Flip a bit, cut a file, or take it away. Returns what was done."""
    names = disk.file_names()
    name = random.choice(names)
    size = len(disk.content(name).rstrip(b"\0")) if name.startswith("messages") else len(disk.content(name))
    kind = random.choice(("flip", "flip", "cut", "loss"))
    if kind == "flip":
        at = random.randrange(size)
        disk.flip_bit(name, at)
        return f"flip {name} at {at}"
    if kind == "cut":
        end = random.randrange(size)
        disk.cut(name, end)
        return f"cut {name} at {end}"
    disk.lose(name)
    return f"loss of {name}"


def read_stream(journal: Journal) -> dict[int, bytes]:
    stream = journal.stream(STREAM, 1500)
    found: dict[int, bytes] = {}
    offset = 0
    while records := stream.read(offset, 100, 1 << 20):
        found.update({int(record.offset): record.message.content for record in records})
        offset = int(records[-1].offset) + 1
    return found


def check_start(disk: SimulatedDisk, kept: Kept, what: str) -> tuple[dict[int, dict[int, bytes]], dict[int, bytes]]:
    """Start on the directory, look at everything, stop. Returns what was found."""
    journal = open_journal(disk, SEGMENT_BYTES)
    stream = journal.stream(STREAM, 1500)
    assert stream.next_offset >= kept.entries, what
    found = {
        queue: {int(stored.sequence): stored.message.content for stored in journal.recovered(queue)}
        for queue in kept.messages
    }
    entries = read_stream(journal)
    journal.close()
    disk.kill()
    for queue, messages in kept.messages.items():
        for sequence, content in found[queue].items():
            # What was settled may come back, nothing else may appear.
            assert messages.get(sequence, content_of(sequence)) == content, what
    assert all(content == content_of(offset) for offset, content in entries.items()), what
    return found, entries


def is_costly(what: str) -> bool:
    """Whether it may cost more than the record that it hits."""
    return not what.startswith("flip")


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "killed when idle"])
def test_every_flip_cut_and_loss_is_found_and_costs_no_more_than_it_hits(is_stopped: bool) -> None:
    pristine = new_disk(1)
    kept = fill(pristine, is_stopped=is_stopped)
    assert check(pristine).damage == []
    total = sum(len(messages) for messages in kept.messages.values())
    for seed in range(CASES):
        disk = pristine.copy()
        what = damage(disk, Random(seed))
        before = {name: disk.content(name) for name in disk.file_names()}
        assert check(disk).damage, f"seed {seed}: {what} is not found"
        assert before == {name: disk.content(name) for name in disk.file_names()}
        if "definitions.log" in what and is_costly(what):
            with pytest.raises(DefinitionsLost, match="backup"):
                open_journal(disk, SEGMENT_BYTES)
            disk.kill()
            assert before == {name: disk.content(name) for name in disk.file_names() if name in before}, what
            continue
        found, entries = check_start(disk, kept, f"seed {seed}: {what}")
        missing = sum(
            1 for queue, messages in kept.messages.items() for sequence in messages if sequence not in found[queue]
        )
        lost_entries = kept.entries - len(entries)
        if MANIFEST in what:
            assert missing + lost_entries == 0, what
        elif is_costly(what):
            assert missing < total, what
        else:
            # A bit costs the record that it hits; a bad record of settles costs nothing.
            assert missing + lost_entries <= 1, f"seed {seed}: {what} costs {missing} messages, {lost_entries} entries"
            # What is left can be read at the next start as well, and still is damage.
            assert check_start(disk, kept, what) == (found, entries), f"seed {seed}: {what}"
            assert check(disk).damage, what
        repair(disk)
        assert check(disk).damage == [], f"seed {seed}: {what} is not repaired"
        assert check_start(disk, kept, f"repaired, seed {seed}: {what}") == (found, entries), f"seed {seed}: {what}"


def test_a_bit_in_what_is_only_reserved_costs_nothing() -> None:
    disk = new_disk(1)
    kept = fill(disk, is_stopped=False, segment_bytes=1 << 20)
    [head] = [name for name in disk.file_names() if disk.content(name).endswith(bytes(5000))]
    disk.flip_bit(head, len(disk.content(head)) - 1000)
    report = check(disk)
    assert (report.damage, report.torn_bytes > 0) == ([], True)
    found, _ = check_start(disk, kept, "reserve")
    assert all(set(found[queue]) >= set(messages) for queue, messages in kept.messages.items())


def test_a_damaged_file_stays_until_it_is_repaired() -> None:
    """What cannot be read now may be read by somebody else: nothing settles it, and nothing removes it."""
    disk = new_disk(1)
    kept = fill(disk)
    name = "messages/00000001.log"
    disk.flip_bit(name, disk.content(name).index(content_of(2)))
    journal = open_journal(disk, SEGMENT_BYTES)
    for queue in kept.messages:
        for stored in list(journal.recovered(queue)):
            journal.messages.settle(queue, stored.sequence, stored.location)
    journal.remove_stream(STREAM)
    for now in range(50):
        journal.maintain(float(now))
        commit_durably(journal)
    journal.close()
    disk.kill()
    assert name in disk.file_names()
    repair(disk)
    journal = open_journal(disk, SEGMENT_BYTES)
    for now in range(50):
        journal.maintain(float(now))
        commit_durably(journal)
    assert name not in disk.file_names()


def test_a_page_that_cannot_be_read_is_damage_and_stops_no_start() -> None:
    disk = new_disk(1)
    kept = fill(disk)
    name = "messages/00000001.log"
    disk.bad_places[name] = (disk.content(name).index(content_of(2)), EIO)
    found, _ = check_start(disk, kept, "a bad page")
    assert sum(len(messages) for messages in found.values()) < sum(len(messages) for messages in kept.messages.values())
    disk.bad_places.clear()
    found, _ = check_start(disk, kept, "a good page")
    assert all(set(found[queue]) >= set(messages) for queue, messages in kept.messages.items())


def test_what_version_0_1_has_written_is_read(tmp_path: Path) -> None:
    """Its directories have no manifest: one that was stopped, and one whose broker was killed."""
    with zipfile.ZipFile(Path(__file__).with_name("version_0_1.zip")) as archive:
        archive.extractall(tmp_path)
    for name in ("stopped", "killed"):
        disk = new_disk(1)
        for path in sorted((tmp_path / name).rglob("*")):
            if path.is_file():
                disk.put_file(str(path.relative_to(tmp_path / name)), path.read_bytes())
        assert check(disk).damage == []
        for _ in range(2):
            journal = open_journal(disk)
            assert journal.report.damage == []
            assert [user for user, _ in journal.definitions("user")] == ["ada"]
            queues = dict(journal.definitions("queue"))
            [orders] = [int(str(value["id"])) for key, value in queues.items() if key.endswith("orders")]
            [log] = [int(str(value["id"])) for key, value in queues.items() if key.endswith("log")]
            bodies = contents(journal, orders)
            assert len(bodies) == 30
            assert all(b"<%d>" % (number + 10) * 40 in body for number, body in enumerate(bodies))
            assert len(journal.stream(log, 1 << 20).read(0, 100, 1 << 20)) == 20
            journal.close()
            disk.kill()
            assert check(disk).damage == []
