"""Both brokers: RabbitMQ and ours. Every integration test of jobs runs on each."""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from string import ascii_lowercase

import pytest

from tests.ojs.databases import database, make_database, postgresql
from tests.ojs.eye import Eye

__all__ = ["database", "postgresql"]

_numbers = itertools.count(1)


@pytest.fixture(scope="session", params=["rabbitmq", "waybill"])
def broker_uri(request: pytest.FixtureRequest) -> str:
    """The virtual host /ojs of each broker in turn."""
    uri: str = request.getfixturevalue(f"{request.param}_uri")
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
