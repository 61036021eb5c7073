"""One Spark session for all tests of the pipeline: starting it costs more than most of them."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.few_rows import FOR_FEW_ROWS, as_users_have_it
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from tests.pipeline.whole_run import WholeRun, run_whole
from tests.rabbitmq import RabbitMQ
from waybill.pipeline.java import JavaNotFoundError, java_home
from waybill.pipeline.session import local_session

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        java_home(os.environ)
    except JavaNotFoundError as problem:
        pytest.skip(str(problem))
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = local_session("waybill-tests", cores=2, log_file=Path(log), short=True, more=FOR_FEW_ROWS)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    with OwnBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="session")
def whole_run(spark: SparkSession, own_broker: OwnBroker, tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    """All tables and the report of one history."""
    with as_users_have_it(spark):
        return run_whole(spark, own_broker.uri, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session", params=["waybill", "rabbitmq"])
def broker_uri(request: pytest.FixtureRequest) -> str:
    """The virtual host /ojs of each broker in turn."""
    if request.param == "waybill":
        own: OwnBroker = request.getfixturevalue("own_broker")
        return own.uri
    other: RabbitMQ = request.getfixturevalue("rabbitmq")
    return other.uri("/ojs")


@pytest.fixture
def stream(broker_uri: str) -> Iterator[Stream]:
    """A stream queue of its own for each test, on each broker."""
    with Stream(broker_uri, f"events-{next(_numbers)}") as made:
        yield made
