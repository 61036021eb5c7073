"""Runs the programs of examples/orchestration for real, with Airflow, Dagster and OpenLineage in their own environment.

    make orchestrators

A broker with the events of some jobs is read three times, each time into a directory of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from tests.pipeline.histories import Event, history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.streams import Stream
from tests.program_environment import program_environment

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = ROOT / "build" / "orchestrators" / "bin" / "python"
PROGRAMS: Final = ROOT / "examples" / "orchestration"
JOBS: Final = 30


def run(name: str, *words: str, **environment: str) -> str:
    """The output of a program."""
    # The programs have an environment without Waybill, and find the command on the path.
    clean = {key: value for key, value in program_environment().items() if key != "PYTHONPATH"}
    clean |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}
    done = subprocess.run([PYTHON, *words], env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{name}: {done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    print(f"{name}: done", flush=True)
    return done.stdout


def check_tables(data: Path, events: list[Event]) -> None:
    jobs = pq.read_table(data / "silver" / "jobs").num_rows
    assert jobs == len({event["subject"] for event in events}), jobs


def airflow(place: Path, shared: dict[str, str], events: list[Event]) -> None:
    data = place / "airflow-data"
    own = shared | {"WAYBILL_DATA": str(data), "AIRFLOW_HOME": str(place / "airflow")}
    own |= {"AIRFLOW__CORE__LOAD_EXAMPLES": "false", "AIRFLOW__CORE__DAGS_FOLDER": str(PROGRAMS)}
    run("airflow db migrate", "-m", "airflow", "db", "migrate", **own)
    run("airflow", str(PROGRAMS / "airflow_dag.py"), **own)
    check_tables(data, events)
    assert "Jobs report" in (data / "report.html").read_text()


def dagster(place: Path, shared: dict[str, str], events: list[Event]) -> None:
    data = place / "dagster-data"
    told = run("dagster", str(PROGRAMS / "dagster_assets.py"), **shared, WAYBILL_DATA=str(data))
    check_tables(data, events)
    assert "gold/activity" in told, told


def lineage(place: Path, shared: dict[str, str], events: list[Event]) -> None:
    data, log = place / "lineage-data", place / "lineage.jsonl"
    transport = {"type": "file", "log_file_path": str(log), "append": True}
    own = shared | {"OPENLINEAGE__TRANSPORT": json.dumps(transport), "WAYBILL_DATA": str(data)}
    run("openlineage", str(PROGRAMS / "lineage.py"), **own)
    check_tables(data, events)
    told: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    assert [one["eventType"] for one in told] == ["START", "COMPLETE"], told
    (source,) = told[1]["inputs"]
    assert source["name"] == "/ojs/ojs.events", source
    assert "guest" not in log.read_text()
    bronze = told[1]["outputs"][0]
    assert bronze["outputFacets"]["outputStatistics"]["rowCount"] == len(events), bronze


def main() -> None:
    events = history(7, JOBS)
    with tempfile.TemporaryDirectory(prefix="waybill-orchestrators-") as name:
        place = Path(name)
        with OwnBroker(place / "broker") as broker, Stream(broker.uri, "ojs.events") as stream:
            stream.publish_events(events)
            shared = {"WAYBILL_URI": broker.uri}
            for program in (lineage, dagster, airflow):
                program(place, shared, events)


if __name__ == "__main__":
    main()
