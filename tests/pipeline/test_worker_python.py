import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from waybill.pipeline.worker_python import worker_python


def test_only_sparks_archives_leave_the_path(tmp_path: Path) -> None:
    kept = [str(tmp_path / "a b"), str(tmp_path / "*"), str(tmp_path / "pyspark.zip.d")]
    archives = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    given = os.environ | {"PYTHONPATH": os.pathsep.join([archives[0], kept[0], archives[1], *kept[1:]])}
    program = "import json, os, sys; print(json.dumps([sys.executable, os.environ['PYTHONPATH'], sys.argv[1:]]))"
    words = ["x y", "", "$HOME", "*"]
    done = subprocess.run(
        [worker_python(tmp_path), "-c", program, *words], capture_output=True, text=True, check=True, env=given
    )
    assert json.loads(done.stdout) == [sys.executable, os.pathsep.join(kept), words]


def test_where_no_script_can_be_put_it_is_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python(tmp_path / "file") == sys.executable


def test_workers_of_spark_take_the_installed_pyspark(spark: SparkSession) -> None:
    def place(_: int) -> str:
        import pyspark

        return pyspark.__file__

    (found,) = spark.sparkContext.parallelize([0], 1).map(place).collect()
    assert ".zip" not in found
