"""What is declared is gone: no broker starts on what is left, no guest comes back, and nothing is removed."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from waybill.broker import Broker
from waybill.cli.main import main
from waybill.client import BasicProperties, connect
from waybill.model.errors import DefinitionsLost

DURABLE = BasicProperties(delivery_mode=2)


async def fill(directory: Path) -> None:
    async with Broker(port=0, data_dir=directory) as broker:
        broker.administration.put_user("ada", "secret")
        broker.administration.set_permission("ada", "/", ".*", ".*", ".*")
        broker.administration.delete_user("guest")
        async with connect(broker.uri().replace("guest:guest", "ada:secret")) as connection:
            channel = await connection.channel(confirms=True)
            await channel.declare_queue("q", durable=True)
            await channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
            for _ in range(20):
                await channel.publish(bytes(100), routing_key="q", properties=DURABLE)
                await channel.publish(bytes(100), routing_key="s", properties=DURABLE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "data"))
    return tmp_path / "data"


def files(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*.log")}


def take_away(directory: Path) -> None:
    (directory / "definitions.log").unlink()


def empty(directory: Path) -> None:
    (directory / "definitions.log").write_bytes(b"")


def cut(directory: Path) -> None:
    definitions = directory / "definitions.log"
    definitions.write_bytes(definitions.read_bytes()[:-1])


def keep_the_beginning(directory: Path) -> None:
    definitions = directory / "definitions.log"
    definitions.write_bytes(definitions.read_bytes()[:200])


def take_the_manifest_too(directory: Path) -> None:
    take_away(directory)
    (directory / "manifest").unlink()


def take_the_messages_too(directory: Path) -> None:
    take_away(directory)
    shutil.rmtree(directory / "messages")


@pytest.mark.parametrize(
    "lose", [take_away, empty, cut, keep_the_beginning, take_the_manifest_too, take_the_messages_too]
)
async def test_no_broker_starts_without_its_definitions(directory: Path, lose: object) -> None:
    lose(directory)  # type: ignore[operator]
    before = files(directory)
    for _ in range(2):
        with pytest.raises(DefinitionsLost, match="backup"):
            await Broker(port=0, data_dir=directory).start()
    assert files(directory) == before


async def test_a_wrong_bit_takes_no_user_away_and_gives_nobody_rights(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    definitions = directory / "definitions.log"
    octets = bytearray(definitions.read_bytes())
    for at in (octets.rindex(b"guest"), octets.index(b"ada")):
        damaged = bytearray(octets)
        damaged[at] ^= 4
        definitions.write_bytes(damaged)
        with caplog.at_level(logging.ERROR, "waybill.broker"):
            async with Broker(port=0, data_dir=directory) as broker:
                assert list(broker.administration.accounts.by_name) == ["ada"]
        assert "damage in the store: definitions.log" in caplog.text
        definitions.write_bytes(octets)


async def test_what_was_recovered_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "waybill.broker"):
        async with Broker(port=0, data_dir=directory):
            pass
    assert "20 messages in" in caplog.text


async def test_lost_definitions_are_made_anew_without_any_user(directory: Path) -> None:
    keep_the_beginning(directory)
    command = ["store", "rebuild", str(directory)]
    assert CliRunner().invoke(main, command).exit_code == 2
    result = CliRunner().invoke(main, [*command, "--yes"])
    assert result.exit_code == 0, result.output
    assert ": 20 messages" in result.output
    assert ": a stream" in result.output
    async with Broker(port=0, data_dir=directory) as broker:
        assert list(broker.administration.accounts.by_name) == []
        broker.administration.put_user("eve", "secret")
        broker.administration.set_permission("eve", "/", ".*", ".*", ".*")
        async with connect(broker.uri().replace("guest:guest", "eve:secret")) as connection:
            channel = await connection.channel(prefetch_count=10)
            queues = [line.split(":")[0] for line in result.output.splitlines() if line.startswith("recovered.")]
            for name in queues:
                consumer = await channel.consume(name, arguments={"x-stream-offset": "first"})
                for _ in range(20):
                    delivery = await anext(consumer)
                    assert bytes(delivery.body) == bytes(100)
                    delivery.ack()
