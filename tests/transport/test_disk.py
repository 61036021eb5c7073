import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program_environment import program_environment
from waybill.transport.disk import CommitThread, DataDirectoryInUse, DirectoryLock, DiskFilesystem


def test_files_are_appended_to_and_read_anywhere(tmp_path: Path) -> None:
    disk = DiskFilesystem(tmp_path)
    disk.make_directory("logs")
    disk.make_directory("logs")
    file = disk.create("logs/a")
    file.append(b"hello ")
    file.append(b"world")
    file.sync()
    disk.sync_directory("logs")
    assert file.size() == 11
    assert file.read(6, 100) == b"world"
    assert file.read(0, 5) == b"hello"
    assert file.read(11, 5) == b""
    file.truncate(5)
    file.append(b"!")
    file.close()
    again = disk.open("logs/a")
    assert again.read(0, 100) == b"hello!"
    again.append(b"?")
    assert again.read(0, 100) == b"hello!?"
    again.close()
    emptied = disk.create("logs/a")
    assert emptied.size() == 0
    emptied.close()


def test_pieces_are_appended_in_order_however_little_the_kernel_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskFilesystem(tmp_path)
    file = disk.create("a")
    pieces = [b"%d," % number for number in range(5_000)]
    file.append(*pieces)
    whole, one = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, some, at: whole(fd, [some[0], some[1][:1]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: one(fd, data[:100], at))
    file.append(b"some", b"more", *pieces)
    assert file.read(0, 100_000) == b"".join([*pieces, b"some", b"more", *pieces])
    file.close()


def test_what_is_reserved_is_not_there_until_it_is_written(tmp_path: Path) -> None:
    disk = DiskFilesystem(tmp_path)
    file = disk.create("a")
    file.append(b"hello ")
    file.reserve(1000)
    assert (tmp_path / "a").stat().st_size == 1006
    assert file.size() == 6
    assert file.read(0, 100) == b"hello "
    file.append(b"world")
    assert file.read(0, 100) == b"hello world"
    assert (tmp_path / "a").stat().st_size == 1006
    left_behind = disk.open("a")
    assert left_behind.size() == 1006
    left_behind.close()
    file.close()
    assert (tmp_path / "a").read_bytes() == b"hello world"


def test_names_are_listed_renamed_and_removed(tmp_path: Path) -> None:
    disk = DiskFilesystem(tmp_path)
    assert disk.list_directory("none") == []
    for name in ("b", "a"):
        disk.create(name).close()
    disk.make_directory("c")
    assert disk.list_directory("") == ["a", "b", "c"]
    disk.rename("b", "a")
    assert disk.list_directory("") == ["a", "c"]
    disk.remove("a")
    disk.remove("c")
    disk.sync_directory("")
    assert disk.list_directory("") == []
    assert disk.free_space() > 0
    with pytest.raises(FileNotFoundError):
        disk.open("a")
    with pytest.raises(FileNotFoundError):
        disk.remove("a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_an_error() -> None:
    file = DiskFilesystem(Path("/dev")).open("full")
    with pytest.raises(OSError, match="space") as caught:
        file.append(b"x")
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    disk = DiskFilesystem(tmp_path)
    disk.make_directory("d")
    disk.create("d/f").close()
    assert (tmp_path / "d").stat().st_mode & 0o077 == 0
    assert (tmp_path / "d/f").stat().st_mode & 0o077 == 0


def test_a_data_directory_has_one_user_and_the_error_names_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    program = "import pathlib, sys, waybill.transport.disk as disk; disk.DirectoryLock(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    second = subprocess.run(command, env=program_environment(), capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"in use by process {os.getpid()}" in second.stderr
    with pytest.raises(DataDirectoryInUse, match=str(os.getpid())):
        DirectoryLock(tmp_path)
    lock.release()
    lock.release()
    assert subprocess.run(command, env=program_environment(), check=False).returncode == 0


async def test_jobs_run_in_order_and_report_on_the_loop() -> None:
    loop = asyncio.get_running_loop()
    thread = CommitThread(loop)
    log: list[str] = []
    finished = asyncio.Event()

    def fail() -> None:
        raise OSError(errno.EIO, "broken")

    def failed(error: BaseException | None) -> None:
        assert asyncio.get_running_loop() is loop
        log.append(f"told of {error}")
        finished.set()

    thread.submit(lambda: log.append("first"), lambda error: log.append(f"told of {error}"))
    thread.submit(fail, failed)
    await finished.wait()
    thread.close()
    assert log == ["first", "told of None", "told of [Errno 5] broken"]
