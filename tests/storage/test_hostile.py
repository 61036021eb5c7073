"""A data directory with files that no store has written: refused or stepped over, and nothing huge is allocated."""

from collections.abc import Callable

import msgspec
import pytest

from tests.storage.support import commit_durably, contents, message, new_disk, open_journal
from waybill.model.errors import DefinitionsLost
from waybill.storage.check import check
from waybill.storage.log import DEFINITIONS, JOURNAL, batch_header, file_header
from waybill.storage.manifest import Extent, encode_manifest, read_manifest
from waybill.storage.record import (
    DEFINE,
    GIVEN,
    MARK,
    PURGE,
    PUT,
    REFERENCE,
    REQUEUE,
    SETTLE,
    integers,
    small_record,
    with_holder,
)
from waybill.testing.simulated_disk import SimulatedDisk

HUGE = (1 << 63) - 1
SEGMENT = "messages/00000001.log"


def put(disk: SimulatedDisk, name: str, data: bytes) -> None:
    file = disk.create(name)
    file.append(data)
    file.sync()
    file.close()
    disk.sync_directory(name.rpartition("/")[0])


def filled(disk: SimulatedDisk) -> bytes:
    """Three messages in a clean directory. Returns the record of one."""
    journal = open_journal(disk)
    journal.define("queue", "q", {"id": 1})
    for sequence in range(3):
        journal.messages.put(1, sequence, message(b"%d" % sequence))
    commit_durably(journal)
    content = disk.content(SEGMENT)
    journal.close()
    start = content.index(b"amq.directkey0") - 52
    return content[start : start + 52 + len(b"amq.directkey0")]


def log_file(purpose: int, number: int, *records: bytes) -> bytes:
    """A file of one batch that the next one says was durable."""
    body = b"".join(records)
    position = number << 32 | 32
    following = position + 40 + len(body)
    return (
        file_header(purpose, number)
        + batch_header(position, 0, len(body))
        + body
        + batch_header(following, following, 0)
    )


RECORDS = {
    "a settle that ends early": small_record(SETTLE, bytes(9)),
    "a reference that is too short": small_record(REFERENCE, bytes(8)),
    "a reference to what is before the file": small_record(REFERENCE, integers([1, 9, HUGE])),
    "a reference to what follows": small_record(REFERENCE, integers([1, 9, -100])),
    "a requeue without a count": small_record(REQUEUE, integers([1, 1])),
    "a purge of nothing": small_record(PURGE, b""),
    "a purge beyond all sequences": small_record(PURGE, integers([1, HUGE])),
    "a mark without sequences": small_record(MARK, integers([1])),
    "a mark beyond all sequences": small_record(MARK, integers([1, HUGE, -1])),
    "a gift of three": small_record(GIVEN, integers([1, 2, 3])),
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_record_of_the_wrong_form_counts_as_damage(what: str) -> None:
    disk = new_disk()
    good = filled(disk)
    put(disk, "messages/00000002.log", log_file(JOURNAL, 2, good, RECORDS[what], with_holder(good, 1, 4)))
    assert any("records of a batch are bad" in damage.detail for damage in check(disk).damage)
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"0", b"1", b"2", b"0"]
    journal.close()


@pytest.mark.parametrize(("queue_id", "sequence"), [(1, HUGE), (1, -5), (-1, 4), (HUGE, 4)])
def test_a_message_with_impossible_numbers_counts_as_damage(queue_id: int, sequence: int) -> None:
    disk = new_disk()
    good = filled(disk)
    put(disk, "messages/00000002.log", log_file(JOURNAL, 2, with_holder(good, queue_id, sequence)))
    journal = open_journal(disk)
    assert [damage.name for damage in journal.report.damage] == ["messages/00000002.log"]
    assert contents(journal, 1) == [b"0", b"1", b"2"]
    journal.messages.put(1, int(journal.next_sequence(1)), message(b"more"))
    commit_durably(journal)
    journal.close()


@pytest.mark.parametrize("size", [HUGE, HUGE - 100, -1, -(1 << 63), 1 << 50])
def test_a_batch_that_claims_more_than_the_file_has_is_no_batch(size: int) -> None:
    disk = new_disk()
    filled(disk)
    put(disk, "messages/00000002.log", file_header(JOURNAL, 2) + batch_header(2 << 32 | 32, 0, size) + b"rubbish")
    check(disk)
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"0", b"1", b"2"]
    journal.close()


@pytest.mark.parametrize(
    "name",
    [
        "messages/1.log",
        "messages/²²²²²²²².log",
        "messages/00000000000000000000000000000000009.log",
        "messages/99999999999.log",
        "messages/notes.txt",
        "streams/7/1.log",
        "streams/7/99999999999999999999.log",
        "streams/007/00000000000000000000.log",
        "streams/²/00000000000000000000.log",
        "notes.txt",
    ],
)
def test_foreign_files_are_left_alone(name: str) -> None:
    disk = new_disk()
    filled(disk)
    directory = name.rpartition("/")[0]
    if directory:
        disk.make_directory(directory)
    put(disk, name, b"not ours")
    assert check(disk).damage == []
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"0", b"1", b"2"]
    journal.close()
    assert disk.content(name) == b"not ours"


@pytest.mark.parametrize(
    "extent",
    [
        Extent("messages/../../elsewhere/00000001.log", 1, 32, 0),
        Extent("streams/../../x/00000000000000000000.log", 0, 32, 5),
        Extent("streams/x/00000000000000000000.log", 0, 32, 5),
        Extent("streams/7/00000000000000000000.log", 0, 32, HUGE),
        Extent("messages/00000001.log", 1 << 40, 32, 0),
        Extent("messages/00000001.log", 1, -1, 0),
        Extent("/etc/passwd", 1, 1, 0),
    ],
)
def test_a_manifest_with_impossible_files_is_bad(extent: Extent) -> None:
    disk = new_disk()
    filled(disk)
    put(disk, "manifest", encode_manifest(1, [extent.encoded()], is_clean=False))
    manifest = read_manifest(disk)
    assert manifest.is_bad
    assert manifest.extents == {}
    assert [damage.detail for damage in check(disk).damage] == ["the manifest is bad"]
    journal = open_journal(disk)
    assert contents(journal, 1) == [b"0", b"1", b"2"]
    journal.close()


@pytest.mark.parametrize("tail", [b"\0", b"\0\x0fdefinitions.log", b"\xff\xffx", b"\0\x02\xff\xfe" + bytes(24)])
def test_a_manifest_that_ends_in_an_entry_is_bad(tail: bytes) -> None:
    disk = new_disk()
    filled(disk)
    put(disk, "manifest", encode_manifest(1, [tail], is_clean=True))
    assert read_manifest(disk).is_bad


def nested(depth: int) -> bytes:
    """A definition with arrays within arrays."""
    return b"\x94\xa1q\xa1q\x81\xa1x" + b"\x91" * depth + b"\xc0\x01"


DEFINED: dict[str, Callable[[], bytes]] = {
    "no list": lambda: msgspec.msgpack.encode(5),
    "too few": lambda: msgspec.msgpack.encode(["queue", "q"]),
    "a number for a kind": lambda: msgspec.msgpack.encode([5, "q", {}, 1]),
    "a list for a value": lambda: msgspec.msgpack.encode(["queue", "q", [1], 1]),
    "an id beyond all": lambda: msgspec.msgpack.encode(["queue", "q", {}, HUGE]),
    "text for an id": lambda: msgspec.msgpack.encode(["queue", "q", {}, "1"]),
    "no deleted ids": lambda: msgspec.msgpack.encode(["deleted", "deleted", {}, 1]),
    "deleted text": lambda: msgspec.msgpack.encode(["deleted", "deleted", {"ids": ["x"]}, 1]),
    "an unknown extension": lambda: msgspec.msgpack.encode(["queue", "q", {"x": msgspec.msgpack.Ext(9, b"")}, 1]),
    "a decimal that is none": lambda: msgspec.msgpack.encode(["queue", "q", {"x": msgspec.msgpack.Ext(1, b"?")}, 1]),
    "no MessagePack": lambda: b"\xc1",
    "a list that claims four billion": lambda: b"\xdd\xff\xff\xff\xff",
    "arrays within arrays": lambda: nested(100_000),
}


@pytest.mark.parametrize("what", DEFINED)
def test_definitions_that_make_no_sense_are_refused(what: str) -> None:
    disk = new_disk()
    filled(disk)
    disk.remove("manifest")
    put(disk, "definitions.log", log_file(DEFINITIONS, 1, small_record(DEFINE, DEFINED[what]())))
    with pytest.raises(DefinitionsLost, match=r"invalid definition.*waybill store rebuild"):
        open_journal(disk)
    assert disk.open_files == 0


@pytest.mark.parametrize("has_manifest", [True, False])
@pytest.mark.parametrize("other", ["manifest", "messages/00000001.log"])
def test_another_file_in_the_place_of_the_definitions_is_refused(other: str, *, has_manifest: bool) -> None:
    disk = new_disk()
    filled(disk)
    put(disk, "definitions.log", disk.content(other))
    if not has_manifest:
        disk.remove("manifest")
    with pytest.raises(DefinitionsLost, match="waybill store rebuild"):
        open_journal(disk)
    assert disk.open_files == 0


@pytest.mark.parametrize("number", [0, -1, HUGE, 1 << 40])
def test_definitions_with_an_impossible_number_have_a_bad_header(number: int) -> None:
    disk = new_disk()
    filled(disk)
    content = disk.content("definitions.log")
    put(disk, "definitions.log", file_header(DEFINITIONS, number) + content[32:])
    assert check(disk).damage[0].detail == "the file header is bad"
    journal = open_journal(disk)
    assert list(journal.definitions("queue")) == [("q", {"id": 1})]
    journal.close()


def test_a_put_is_what_the_tests_say() -> None:
    assert filled(new_disk())[12] == PUT
