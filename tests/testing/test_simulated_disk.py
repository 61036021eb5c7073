import errno
from random import Random

import pytest

from waybill.testing.simulated_disk import Crash, SimulatedDisk


def outcomes(seeds: int, *, sync: bool = False, sync_directory: bool = False) -> set[bytes | None]:
    """What can be left of a file with one write after the power was lost."""
    found: set[bytes | None] = set()
    for seed in range(seeds):
        disk = SimulatedDisk(Random(seed))
        file = disk.create("a")
        file.append(b"data")
        if sync:
            file.sync()
        if sync_directory:
            disk.sync_directory("")
        disk.lose_power()
        found.add(disk.content("a") if disk.list_directory("") else None)
    return found


def test_what_is_synced_with_its_directory_stays() -> None:
    assert outcomes(50, sync=True, sync_directory=True) == {b"data"}


def test_without_a_sync_anything_can_be_left() -> None:
    found = outcomes(500, sync_directory=True)
    assert {b"data", b"", b"d", b"da", b"\0\0\0\0"} <= found
    assert any(content not in (b"data", b"\0\0\0\0") and content and len(content) == 4 for content in found)


def test_without_a_sync_of_the_directory_a_file_may_be_missing() -> None:
    assert outcomes(50, sync=True) == {b"data", None}


def test_a_later_write_may_survive_an_earlier_one() -> None:
    found = set()
    for seed in range(200):
        disk = SimulatedDisk(Random(seed))
        file = disk.create("a")
        disk.sync_directory("")
        file.append(b"one")
        file.append(b"two")
        disk.lose_power()
        found.add(disk.content("a"))
    assert b"\0\0\0two" in found
    assert b"one" in found


def test_the_death_of_the_process_loses_nothing_and_closes_its_files() -> None:
    disk = SimulatedDisk(Random(1))
    file = disk.create("a")
    file.append(b"data")
    disk.kill()
    assert disk.content("a") == b"data"
    with pytest.raises(OSError, match="closed"):
        file.append(b"more")


def test_a_crash_comes_at_the_operation_asked_for() -> None:
    disk = SimulatedDisk(Random(1))
    file = disk.create("a")
    disk.crash_at = 3
    file.append(b"first")
    with pytest.raises(Crash):
        file.append(b"second")
    with pytest.raises(OSError, match="dead"):
        disk.create("b")
    disk.kill()
    assert b"firstsecond".startswith(disk.content("a"))
    disk.create("b")


def test_a_failed_sync_loses_data_and_the_next_one_succeeds() -> None:
    lost = 0
    for seed in range(50):
        disk = SimulatedDisk(Random(seed))
        file = disk.create("a")
        disk.sync_directory("")
        file.append(b"data")
        disk.fail_next["sync"] = errno.EIO
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        disk.lose_power()
        lost += disk.content("a") != b"data"
    assert 0 < lost < 50


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(Random(1), capacity=6)
    file = disk.create("a")
    file.append(b"data")
    with pytest.raises(OSError, match="space"):
        file.append(b"more")
    assert disk.content("a") == b"datamo"
    assert disk.free_space() == 0


def test_a_rename_happens_whole_or_not_at_all() -> None:
    found = set()
    for seed in range(100):
        disk = SimulatedDisk(Random(seed))
        for name in ("old", "new"):
            file = disk.create(name)
            file.append(name.encode())
            file.sync()
        disk.sync_directory("")
        disk.rename("new", "old")
        disk.lose_power()
        found.add((disk.content("old"), tuple(disk.list_directory(""))))
    assert found == {(b"old", ("new", "old")), (b"new", ("old",))}


def test_the_same_seed_gives_the_same_disk() -> None:
    contents = set()
    for _ in range(2):
        disk = SimulatedDisk(Random(7))
        file = disk.create("a")
        disk.sync_directory("")
        for number in range(20):
            file.append(b"%d" % number * 10)
        disk.lose_power()
        contents.add(disk.content("a"))
    assert len(contents) == 1
