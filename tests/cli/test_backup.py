"""`waybill backup` and `restore`: what was confirmed before is in the copy, while the broker goes on or not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.broker.process import BrokerProcess
from waybill.broker import Broker
from waybill.broker.control import DIRECTORY_NAME, SOCKET_NAME, socket_path
from waybill.cli.main import main
from waybill.client import BasicProperties, connect
from waybill.model.errors import DefinitionsLost
from waybill.storage.check import check
from waybill.transport.disk import DiskFilesystem

PERSISTENT = BasicProperties(delivery_mode=2)


@pytest.fixture(autouse=True)
def no_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


async def fill(broker: Broker, first: int, count: int) -> None:
    async with connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        for number in range(first, first + count):
            await channel.publish(b"%d" % number, routing_key="q", properties=PERSISTENT)


async def numbers(directory: Path) -> list[int]:
    async with Broker(port=0, data_dir=directory) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel()
        found = []
        while (message := await channel.get("q")) is not None:
            found.append(int(message.body))
        return found


def ok(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


async def test_what_was_confirmed_before_is_in_the_copy_of_a_broker_at_work(tmp_path: Path) -> None:
    data, copy, again = tmp_path / "data", tmp_path / "copy", tmp_path / "again"
    async with Broker(port=0, data_dir=data) as broker:
        await fill(broker, 0, 200)
        stopping = asyncio.Event()

        async def go_on() -> int:
            number = 200
            while not stopping.is_set():
                await fill(broker, number, 10)
                number += 10
            return number

        working = asyncio.create_task(go_on())
        told = ok(await asyncio.to_thread(run, "backup", copy, "--data-dir", data, "--json"))
        stopping.set()
        last = await working
        async with asyncio.timeout(20):
            while list((data / DIRECTORY_NAME).iterdir()):
                await asyncio.sleep(0)
    assert told["directory"] == str(copy)
    assert check(DiskFilesystem(copy)).damage == []
    ok(run("restore", copy, again, "--json"))
    found = await numbers(again)
    assert found == list(range(len(found)))
    assert 200 <= len(found) <= last
    assert len(await numbers(data)) == last


async def test_a_broker_that_is_stopped(tmp_path: Path) -> None:
    data, copy, again = tmp_path / "data", tmp_path / "copy", tmp_path / "again"
    async with Broker(port=0, data_dir=data) as broker:
        await fill(broker, 0, 3)
    ok(run("backup", copy, "--data-dir", data, "--json"))
    assert (copy.stat().st_mode & 0o777, (copy / "lock").exists()) == (0o700, False)
    ok(run("restore", copy, again, "--json"))
    assert await numbers(again) == [0, 1, 2]


async def test_the_state_of_jobs_comes_along(tmp_path: Path) -> None:
    data, copy, again = tmp_path / "data", tmp_path / "copy", tmp_path / "again"
    async with Broker(port=0, data_dir=data):
        database = sqlite3.connect(data / "jobs.db")
        database.execute("pragma journal_mode = wal")
        database.execute("create table jobs (id text)")
        database.execute("insert into jobs values ('a')")
        database.commit()
        result = await asyncio.to_thread(run, "backup", copy, "--data-dir", data)
        assert "jobs.db" in result.output
        database.close()
    assert run("restore", copy, again).exit_code == 0
    restored = sqlite3.connect(again / "jobs.db")
    assert restored.execute("select id from jobs").fetchall() == [("a",)]
    restored.close()


def test_nothing_is_written_where_something_is(tmp_path: Path) -> None:
    data, full = tmp_path / "data", tmp_path / "full"
    with BrokerProcess(tmp_path):
        pass
    full.mkdir()
    (full / "file").touch()
    for arguments in (("backup", full, "--data-dir", data), ("restore", data, full)):
        result = run(*arguments)
        assert (result.exit_code, "is not empty" in result.output) == (1, True), result.output
    assert run("backup", data / "copy", "--data-dir", data).exit_code == 2
    assert [path.name for path in full.iterdir()] == ["file"]


def test_what_is_no_backup_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("restore", tmp_path / "empty", tmp_path / "new")
    assert (result.exit_code, "is not a complete backup" in result.output) == (1, True)
    assert not (tmp_path / "new").exists()
    assert run("backup", tmp_path / "copy", "--data-dir", tmp_path / "empty").exit_code == 1
    assert run("backup", tmp_path / "copy2", "--data-dir", tmp_path / "nowhere").exit_code == 2


async def test_a_backup_that_is_cut_is_not_restored(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with Broker(port=0, data_dir=data) as broker:
        await fill(broker, 0, 3)
    ok(run("backup", copy, "--data-dir", data, "--json"))
    segment = copy / "messages" / "00000001.log"
    segment.write_bytes(segment.read_bytes()[:-1])
    result = run("restore", copy, tmp_path / "new")
    assert (result.exit_code, "00000001.log has" in result.output) == (1, True)


async def test_a_broker_takes_no_part_of_a_restore_for_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore that was killed between the definitions and the messages left a directory with empty queues."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with Broker(port=0, data_dir=data) as broker:
        await fill(broker, 0, 3)
    ok(run("backup", copy, "--data-dir", data, "--json"))
    is_refused: list[bool] = []
    fsync = os.fsync
    for step in itertools.count(1):
        new, steps = tmp_path / f"new{step}", itertools.count(1)

        def fail_later(descriptor: int, steps: Iterator[int] = steps, step: int = step) -> None:
            if next(steps) == step:
                raise OSError("killed")
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail_later)
        is_whole = run("restore", copy, new).exit_code == 0
        monkeypatch.setattr(os, "fsync", fsync)
        try:
            assert await numbers(new) == [0, 1, 2]
            is_refused.append(False)
        except DefinitionsLost:
            is_refused.append(True)
        if is_whole:
            break
    assert is_refused[:2] == [True, True]
    assert not is_refused[-1]


async def test_held_files_stay_until_the_connection_ends(tmp_path: Path) -> None:
    """Also in a directory whose name is too long for a socket."""
    data = tmp_path / ("long" * 30) / "data"
    async with Broker(port=0, data_dir=data) as broker:
        await fill(broker, 0, 3)
        with socket_path(data) as path:
            reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b'{"do": "hold"}\n')
        held = Path(json.loads(await reader.readline())["directory"])
        kept = (held / "messages" / "00000001.log").read_bytes()
        await fill(broker, 3, 3)
        (data / "messages" / "00000001.log").rename(data / "messages" / "gone")
        assert (held / "messages" / "00000001.log").read_bytes().startswith(kept.rstrip(b"\0"))
        (data / "messages" / "gone").rename(data / "messages" / "00000001.log")
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(20):
            while await asyncio.to_thread(held.exists):
                await asyncio.sleep(0)


@pytest.mark.parametrize("request_line", [b"\n", b"[]\n", b'{"do": "other"}\n', b"\xff\n", b"x" * 100_000])
async def test_a_request_that_is_none_is_refused(tmp_path: Path, request_line: bytes) -> None:
    async with Broker(port=0, data_dir=tmp_path / "data"):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "data" / SOCKET_NAME))
        writer.write(request_line)
        assert b"error" in await reader.read()
        writer.close()
        mode = (tmp_path / "data" / SOCKET_NAME).stat().st_mode & 0o777
        assert mode == 0o600


async def test_what_a_killed_broker_has_left_is_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / DIRECTORY_NAME / "old").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(data / SOCKET_NAME))
    async with Broker(port=0, data_dir=data):
        assert not (data / DIRECTORY_NAME / "old").exists()
        ok(await asyncio.to_thread(run, "backup", tmp_path / "copy", "--data-dir", data, "--json"))
    assert not (data / SOCKET_NAME).exists()


def test_a_copy_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    asyncio.run(filled(data))
    told: list[int] = []
    totals: list[int] = []

    @contextlib.contextmanager
    def bar(_verb: str, total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield told.append

    monkeypatch.setattr("waybill.cli.copying.byte_progress", bar)
    found = ok(run("backup", copy, "--data-dir", data, "--json"))
    assert sum(told) == found["bytes"] == totals[0] + (copy / "manifest").stat().st_size


async def filled(directory: Path) -> None:
    async with Broker(port=0, data_dir=directory) as broker:
        await fill(broker, 0, 20)
