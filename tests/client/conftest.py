"""Both brokers: what the client promises holds on RabbitMQ and on ours."""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from waybill.client import Channel, Connection, ReconnectPolicy, connect

QUICK = ReconnectPolicy(first_delay_s=0.02, max_delay_s=0.2)

_numbers = count(1)


@pytest.fixture(scope="session", params=["rabbitmq", "waybill"])
def broker_uri(request: pytest.FixtureRequest) -> str:
    """The virtual host / of each broker in turn."""
    uri: str = request.getfixturevalue(f"{request.param}_uri")
    return uri.removesuffix("%2Fojs")


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
