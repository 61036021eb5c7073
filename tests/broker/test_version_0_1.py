"""Data directories that the first broker of version 0.1 wrote: one was stopped, the other killed.

`broker_0_1.zip` keeps them as bytes. A broker of now finds users, rights, policies, queues, messages and streams.
"""

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from waybill.broker import Broker
from waybill.client import AccessRefused, AuthenticationFailed, connect


@pytest.fixture(params=["stopped", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(Path(__file__).with_name("broker_0_1.zip")) as archive:
        archive.extractall(tmp_path)
    found: Path = tmp_path / request.param
    return found


async def check(directory: Path, *, was_killed: bool) -> None:
    async with Broker(port=0, data_dir=directory) as broker:
        with pytest.raises(AuthenticationFailed):
            async with connect(broker.uri("shop", "ada", "wrong")):
                pass
        async with connect(broker.uri("shop", "ada", "analytical")) as connection:
            channel = await connection.channel()
            bodies = []
            redelivered = []
            while (message := await channel.get("orders")) is not None:
                bodies.append(bytes(message.body))
                redelivered += [message.body] if message.redelivered else []
                assert message.properties.headers == {"n": int(message.body.split()[1])}
            # By priority, of which there are three; two are gone, and one was handed back.
            order = [f"order {n}".encode() for priority in (2, 1, 0) for n in range(priority, 12, 3)]
            assert bodies == [body for body in order if body not in {b"order 2", b"order 5"}]
            assert (b"order 8" in redelivered) or was_killed
            dead = await channel.get("graves")
            assert dead is not None
            assert dead.body == b"order 5"
        document: dict[str, Any] = broker.export_definitions()
        assert [(one["name"], one["definition"]) for one in document["policies"]] == [("short", {"max-length": 100})]
        assert [one["arguments"] for one in document["queues"] if one["name"] == "log"] == [{"x-queue-type": "stream"}]
        async with connect(broker.uri("shop", "bob", "worker")) as connection:
            channel = await connection.channel(confirms=True)
            with pytest.raises(AccessRefused):
                await channel.declare_queue("mine", durable=True)


async def test_a_broker_of_now_goes_on_with_it(directory: Path) -> None:
    await check(directory, was_killed=directory.name == "killed")


async def test_it_starts_again_after_that(directory: Path, tmp_path: Path) -> None:
    async with Broker(port=0, data_dir=directory):
        pass
    shutil.copytree(directory, tmp_path / "again")
    await check(tmp_path / "again", was_killed=directory.name == "killed")
