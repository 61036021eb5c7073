"""Both brokers: RabbitMQ and ours. Every integration test of jobs runs on each."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from string import ascii_lowercase
from urllib.parse import urlsplit

import pytest

from tests.ojs.databases import database, make_database, postgresql
from tests.ojs.eye import Eye
from tests.program_environment import program_environment
from tests.rabbitmq import RabbitMQ, rabbitmq

__all__ = ["database", "postgresql", "rabbitmq"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def waybill_uri(repository: Path) -> Iterator[str]:
    """Our broker as a process of its own, so that a blocking client of the test's thread can talk to it."""
    command = [sys.executable, "-m", "waybill", "broker", "--port", "0", "--memory"]
    environment = program_environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready amqp://"), line
        address = urlsplit(line.removeprefix("ready ").strip())
        yield f"amqp://guest:guest@{address.hostname}:{address.port}/%2Fojs"
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="session", params=["rabbitmq", "waybill"])
def broker_uri(request: pytest.FixtureRequest) -> str:
    """The virtual host /ojs of each broker in turn."""
    if request.param == "rabbitmq":
        broker: RabbitMQ = request.getfixturevalue("rabbitmq")
        return broker.uri("/ojs")
    uri: str = request.getfixturevalue("waybill_uri")
    return uri


@pytest.fixture
def state(request: pytest.FixtureRequest, broker_uri: str) -> str:
    """Where a coordinator keeps its state: in PostgreSQL beside RabbitMQ, in memory beside our broker."""
    if request.node.callspec.params["broker_uri"] == "rabbitmq":
        return make_database(request.getfixturevalue("postgresql"))
    return ":memory:"


@pytest.fixture
def eye(broker_uri: str) -> Iterator[Eye]:
    eye = Eye(broker_uri)
    yield eye
    eye.close()


def _queue_name() -> str:
    """A name like no other: one that is like another is refused as a typo."""
    digest = hashlib.sha256(str(next(_numbers)).encode()).digest()
    return "".join(ascii_lowercase[octet % 26] for octet in digest[:12])


@pytest.fixture
def queue_name() -> str:
    """An OJS queue that no other test uses."""
    return _queue_name()


@pytest.fixture
def queue_names() -> Callable[[], str]:
    return _queue_name
