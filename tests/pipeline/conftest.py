"""One Spark session for all tests of the pipeline: starting it costs more than most of them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from waybill.pipeline.java import JavaNotFoundError, java_home
from waybill.pipeline.session import local_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        java_home(os.environ)
    except JavaNotFoundError as problem:
        pytest.skip(str(problem))
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = local_session("waybill-tests", cores=2, log_file=Path(log))
    yield session
    session.stop()
