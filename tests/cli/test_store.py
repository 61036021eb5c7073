"""`waybill store` and `waybill definitions`: what they say and how they end, over a directory that a broker left."""

import asyncio
import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from xxhash import xxh3_64_digest

from waybill.broker import Broker
from waybill.cli.main import main
from waybill.client import BasicProperties, connect


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


async def fill(directory: Path) -> None:
    async with Broker(port=0, data_dir=directory) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel(confirms=True)
        await channel.declare_queue("q", durable=True)
        for number in range(20):
            await channel.publish(b"%04d" % number * 100, routing_key="q", properties=BasicProperties(delivery_mode=2))


async def count(directory: Path) -> int:
    async with Broker(port=0, data_dir=directory) as broker, connect(broker.uri()) as connection:
        channel = await connection.channel()
        taken = 0
        while await channel.get("q", no_ack=True) is not None:
            taken += 1
        return taken


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory with twenty messages in a queue."""
    asyncio.run(fill(tmp_path / "data"))
    return tmp_path / "data"


def damage(directory: Path) -> None:
    """Flip one bit of the content of the tenth message, which later batches say is durable."""
    [log] = (directory / "messages").glob("*.log")
    octets = bytearray(log.read_bytes())
    octets[octets.index(b"0009" * 100)] ^= 1
    log.write_bytes(octets)


def test_a_whole_store(directory: Path) -> None:
    result = run("store", "check", str(directory))
    assert (result.exit_code, "no damage" in result.output) == (0, True)
    report = json.loads(run("store", "check", "--json", str(directory)).output)
    assert (report["damage"], report["repaired"]) == ([], False)
    assert report["records"] > 20


def test_damage_is_found_and_repaired_and_costs_one_message(directory: Path) -> None:
    damage(directory)
    found = run("store", "check", str(directory))
    assert (found.exit_code, "damaged: messages/" in found.output) == (1, True)
    report = json.loads(run("store", "repair", "--json", str(directory)).output)
    assert len(report["damage"]) == 1
    assert report["repaired"]
    assert run("store", "check", str(directory)).exit_code == 0
    assert asyncio.run(count(directory)) == 19


def test_repairing_what_is_whole_changes_nothing(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.rglob("*.log")}
    result = run("store", "repair", str(directory))
    assert (result.exit_code, "no damage" in result.output) == (0, True)
    assert {path: path.read_bytes() for path in directory.rglob("*.log")} == before


def test_what_cannot_be_examined(tmp_path: Path) -> None:
    assert run("store", "check", str(tmp_path / "nowhere")).exit_code == 2

    async def examine() -> Result:
        async with Broker(port=0, data_dir=tmp_path):
            return run("store", "check", str(tmp_path))

    result = asyncio.run(examine())
    assert (result.exit_code, "in use by process" in result.output) == (2, True)


def test_definitions_out_and_in(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "definitions.json"
    assert run("definitions", "export", "--data-dir", str(directory), str(target)).exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    document = json.loads(target.read_text())
    assert [queue["name"] for queue in document["queues"]] == ["q"]
    document["queues"].append({"name": "r", "vhost": "/", "durable": True})
    target.write_text(json.dumps(document))
    assert run("definitions", "import", "--data-dir", str(directory), str(target)).exit_code == 0
    shown = run("definitions", "export", "--data-dir", str(directory))
    assert [queue["name"] for queue in json.loads(shown.stdout)["queues"]] == ["q", "r"]
    assert asyncio.run(count(directory)) == 20


@pytest.mark.parametrize("text", ["", "[]", "{", '{"queues": 1}', '{"queues": [{}]}'])
def test_definitions_that_are_none(directory: Path, tmp_path: Path, text: str) -> None:
    target = tmp_path / "definitions.json"
    target.write_text(text)
    assert run("definitions", "import", "--data-dir", str(directory), str(target)).exit_code == 1


def odd(directory: Path, what: str) -> None:
    """Make a data directory into one that cannot be examined."""
    match what:
        case "empty":
            for path in sorted(directory.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        case "foreign":
            odd(directory, "empty")
            (directory / "notes.txt").write_text("mine")
        case "a link":
            (directory / "definitions.log").rename(directory.parent / "elsewhere")
            (directory / "definitions.log").symlink_to(directory.parent / "elsewhere")
        case "a linked lock":
            (directory.parent / "precious").write_text("precious")
            (directory / "lock").symlink_to(directory.parent / "precious")
        case "a pipe":
            (directory / "definitions.log").unlink()
            os.mkfifo(directory / "definitions.log")
        case "a file for a directory":
            shutil.rmtree(directory / "messages")
            (directory / "messages").write_text("no directory")
        case "a directory for a file":
            [log] = (directory / "messages").glob("*.log")
            log.unlink()
            log.mkdir()
        case "a newer version":
            [log] = (directory / "messages").glob("*.log")
            octets = bytearray(log.read_bytes())
            octets[8:10] = b"\0\2"
            octets[24:32] = xxh3_64_digest(bytes(octets[:24]))
            log.write_bytes(octets)


SAID = {
    "empty": "this is not the data directory of a broker",
    "foreign": "this is not the data directory of a broker",
    "a link": "it is a symbolic link",
    "a linked lock": "it is a symbolic link",
    "a pipe": "it is not a regular file",
    "a file for a directory": "Not a directory",
    "a directory for a file": "01.log: ",
    "a newer version": "use the version that wrote it",
}


@pytest.mark.parametrize("verb", ["check", "repair", "rebuild"])
@pytest.mark.parametrize("what", SAID)
def test_what_cannot_be_examined_is_refused_and_left_as_it_is(directory: Path, what: str, verb: str) -> None:
    odd(directory, what)
    before = sorted(path for path in directory.parent.rglob("*"))
    result = run("store", verb, str(directory), *(["--yes"] if verb == "rebuild" else []))
    assert result.exit_code == 2, result.output
    assert SAID[what] in result.output
    assert "Errno" not in result.output
    assert "Traceback" not in result.output
    assert sorted(path for path in directory.parent.rglob("*")) == before
    if what == "a linked lock":
        assert (directory.parent / "precious").read_text() == "precious"


def test_what_can_only_be_read_can_be_checked(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def read_only(path: os.PathLike[str], flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return real(path, flags, mode)

    monkeypatch.setattr("os.open", read_only)
    result = run("store", "check", str(directory))
    assert (result.exit_code, "no damage" in result.output) == (0, True)
    result = run("store", "repair", str(directory))
    assert result.exit_code == 2
    assert f"{directory / 'lock'}: Read-only file system" in result.output


def test_rebuilding_twice_keeps_the_first_definitions(directory: Path) -> None:
    first = (directory / "definitions.log").read_bytes()
    for _ in range(2):
        assert run("store", "rebuild", "--yes", str(directory)).exit_code == 0
    assert (directory / "definitions.log.lost").read_bytes() == first
    assert (directory / "definitions.log.lost.2").exists()
    assert run("store", "check", str(directory)).exit_code == 0


async def test_what_a_broker_uses_is_left_alone(directory: Path) -> None:
    async with Broker(port=0, data_dir=directory):
        for verb in (["check"], ["repair"], ["rebuild", "--yes"]):
            result = run("store", *verb, str(directory))
            assert result.exit_code == 2
            assert f"is in use by process {os.getpid()}: stop it first" in result.output
