"""The brokers that serve all tests of a process, ours and RabbitMQ: each starts when the first test wants it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pika
import pytest

from tests.program_environment import program_environment
from tests.rabbitmq import RabbitMQ
from waybill.ojs import Topology

_uris: set[str] = set()


@pytest.fixture(scope="session")
def waybill_uri(repository: Path) -> Iterator[str]:
    """The virtual host /ojs of our broker, a process of its own: a blocking client of the test's thread can use it."""
    command = [sys.executable, "-m", "waybill", "broker", "--port", "0", "--memory"]
    environment = program_environment()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready amqp://"), line
        address = urlsplit(line.removeprefix("ready ").strip())
        yield from _noted(f"amqp://guest:guest@{address.hostname}:{address.port}/%2Fojs")
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="session")
def rabbitmq_uri(rabbitmq: RabbitMQ) -> Iterator[str]:
    """The virtual host /ojs of RabbitMQ."""
    yield from _noted(rabbitmq.uri("/ojs"))


@pytest.fixture(scope="module", autouse=True)
def events_of_one_module() -> Iterator[None]:
    """Leave no events of jobs to the next module: each of its coordinators would fold them first."""
    yield
    for uri in _uris:
        with pika.BlockingConnection(pika.URLParameters(uri)) as connection:
            connection.channel().queue_delete(Topology().event_stream)


def _noted(uri: str) -> Iterator[str]:
    _uris.add(uri)
    yield uri
    _uris.remove(uri)
