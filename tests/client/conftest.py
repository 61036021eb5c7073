"""Both brokers: what the client promises holds on RabbitMQ and on ours."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.program_environment import program_environment
from tests.rabbitmq import RabbitMQ, rabbitmq
from waybill.client import Channel, Connection, ReconnectPolicy, connect

__all__ = ["rabbitmq"]

QUICK = ReconnectPolicy(first_delay_s=0.02, max_delay_s=0.2)

_numbers = count(1)


@pytest.fixture(scope="session")
def waybill_uri(repository: Path) -> Iterator[str]:
    """Our broker as a process of its own, in memory."""
    command = [sys.executable, "-m", "waybill", "broker", "--port", "0", "--memory"]
    environment = program_environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready amqp://"), line
        yield "amqp://guest:guest@" + line.removeprefix("ready amqp://").strip().rpartition("@")[2]
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="session", params=["rabbitmq", "waybill"])
def broker_uri(request: pytest.FixtureRequest) -> str:
    """The virtual host / of each broker in turn."""
    if request.param == "rabbitmq":
        broker: RabbitMQ = request.getfixturevalue("rabbitmq")
        return broker.uri("/")
    uri: str = request.getfixturevalue("waybill_uri")
    return uri


@pytest.fixture
async def connection(broker_uri: str) -> AsyncIterator[Connection]:
    async with connect(broker_uri, name="test", reconnect=QUICK) as connection:
        yield connection


@pytest.fixture
async def channel(connection: Connection) -> Channel:
    return await connection.channel(confirms=True, prefetch_count=50)


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"client-test-{next(_numbers)}"
