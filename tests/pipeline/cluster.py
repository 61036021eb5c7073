"""The whole pipeline on a cluster of processes: what only breaks across processes breaks here.

    python -m tests.pipeline.cluster

Events go through stream, bronze, silver and gold into the report; rows become jobs; a dead letter is read and put back;
the command runs under `spark-submit`.
Exits with 1 and says what is wrong if anything differs from a plain Python fold of the same events.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import waybill
from tests.pipeline.histories import history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from tests.pipeline.test_dead_letters import Morgue
from tests.pipeline.test_sink import Queue, write
from waybill.pipeline import tables
from waybill.pipeline.dead_letters import redrive
from waybill.pipeline.report.figures import collect
from waybill.pipeline.run import Settings, run_once
from waybill.pipeline.session import local_session
from waybill.pipeline.tables import Tables

EVENTS = history(13, 200)
PROCESSES = 2


def check_tables(spark: SparkSession, uri: str, directory: Path) -> None:
    with Stream(uri, "cluster") as stream:
        stream.publish_events(EVENTS, batch=5)
        run_once(spark, Settings(uri, directory, stream=stream.name, max_offsets_per_trigger=40), print)
    expected = {job_id: job.state for job_id, job in fold(EVENTS).items()}
    rows = Tables(directory).read(spark, tables.JOBS).collect()
    if {row["job_id"]: row["state"] for row in rows} != expected:
        raise AssertionError("silver differs from a plain fold")
    totals = collect(spark, Tables(directory)).totals
    if (totals.events, totals.jobs) != (len(EVENTS), len(expected)):
        raise AssertionError(f"the report has {totals.events} events and {totals.jobs} jobs")


def check_jobs(spark: SparkSession, uri: str) -> None:
    with Queue(uri) as queue:
        write(
            spark.range(0, 1000, numPartitions=4).toDF("number"), "ojs", uri=uri, type="cluster.try", queue=queue.name
        )
        args = sorted(str(job["args"]) for job in queue.jobs())
    if args != sorted(str([number]) for number in range(1000)):
        raise AssertionError(f"1,000 rows became {len(args)} jobs")


def check_dead_letters(spark: SparkSession, uri: str) -> None:
    morgue = Morgue(uri)
    try:
        morgue.fill(9)
        done = redrive(morgue.read(spark).where("job_type = 'report.make'"), uri)
        if (done.done, len(morgue.taken(morgue.alive))) != (3, 3):
            raise AssertionError(f"{done.done} of 3 dead letters went back")
    finally:
        morgue.close()


def check_submitted(uri: str, directory: Path) -> None:
    """The command itself under `spark-submit`, which brings the session."""
    with Stream(uri, "submitted") as stream:
        stream.publish_events(EVENTS, batch=5)
        words = ["run", "--once", "--json", "--uri", uri, "--stream", stream.name, "--data", str(directory)]
        done = submit(*words)
    if (done["events"], done["malformed"]) != (len(EVENTS), 0):
        raise AssertionError(f"under spark-submit, {done['events']} of {len(EVENTS)} events were read")


def submit(*words: str) -> dict[str, object]:
    """What `waybill pipeline WORDS` prints as JSON."""
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    master = f"local-cluster[{PROCESSES},1,1024]"
    command = [
        str(spark_submit),
        "--master",
        master,
        str(Path(waybill.__file__).parent / "__main__.py"),
        "pipeline",
        *words,
    ]
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise AssertionError(f"spark-submit ended with {ended.returncode}: {ended.stderr[-2000:]}")
    # spark-submit mixes both outputs of the program.
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise AssertionError(f"spark-submit printed no JSON: {ended.stdout[-2000:]}")
    told: dict[str, object] = json.loads(lines[-1])
    return told


def main() -> int:
    with tempfile.TemporaryDirectory() as name, OwnBroker(Path(name) / "broker") as broker:
        spark = local_session("waybill-cluster", processes=PROCESSES, log_file=Path(name) / "spark.log", short=True)
        try:
            check_tables(spark, broker.uri, Path(name) / "tables")
            check_jobs(spark, broker.uri)
            check_dead_letters(spark, broker.uri)
        except AssertionError as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
        finally:
            spark.stop()
        try:
            check_submitted(broker.uri, Path(name) / "submitted")
        except AssertionError as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
    print(
        f"{len(EVENTS):,} events, 1,000 jobs and 9 dead letters went through {PROCESSES} processes: all as it should be"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
