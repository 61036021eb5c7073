"""Exactly once, under kill -9. `make soak-pipeline` kills twenty times on each broker."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.kills import Place, check, check_lost_commit, kill_often
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream


# Two starts of Java, one of them in the killed process: more than the usual time on a machine with other work.
@pytest.mark.timeout(300)
def test_a_kill_of_the_driver_loses_and_doubles_nothing(
    spark: SparkSession, own_broker: OwnBroker, tmp_path: Path
) -> None:
    place = Place(str(tmp_path / "tables"), str(tmp_path / "driver.log"))
    with Stream(own_broker.uri, "kills") as stream:
        published = kill_often(stream, place, kills=1, jobs=12, chance=random.Random(7))
        assert check(spark, stream, place, published) == len(published.events)
        check_lost_commit(spark, stream, place)
