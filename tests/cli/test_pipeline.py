"""`waybill pipeline`: run and report, as a user starts them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.histories import history
from tests.pipeline.own_broker import OwnBroker
from tests.pipeline.reference_fold import fold
from tests.pipeline.streams import Stream
from tests.program_environment import program_environment

EVENTS = history(31, 20)


def waybill(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = program_environment()
    command = [sys.executable, "-m", "waybill", "pipeline", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180, check=False)


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    with OwnBroker(tmp_path / "broker") as broker, Stream(broker.uri, "ojs.events") as stream:
        stream.publish_events(EVENTS, batch=10)
        yield broker.uri


@pytest.mark.timeout(400)
def test_run_once_then_report(uri: str, tmp_path: Path) -> None:
    data, page = tmp_path / "data", tmp_path / "pages" / "report.html"
    ran = waybill("run", "--once", "--json", "--uri", uri, "--data", data)
    assert ran.returncode == 0, ran.stderr
    done = json.loads(ran.stdout)
    assert (done["batches"], done["events"], done["malformed"], done["behind"]) == (1, len(EVENTS), 0, 0)
    assert "gold/activity" in done["tables"]
    assert f"{len(EVENTS):,} events read, 0 to quarantine." in ran.stderr
    assert "guest" not in ran.stderr
    told = waybill("report", "--data", data, "--html", page, "--json")
    assert told.returncode == 0, told.stderr
    jobs = fold(EVENTS).values()
    assert json.loads(told.stdout)["totals"]["completed"] == sum(job.state == "completed" for job in jobs)
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_report_of_nothing_says_what_to_do(tmp_path: Path) -> None:
    told = waybill("report", "--data", tmp_path / "nothing")
    assert told.returncode == 1
    assert "waybill pipeline run" in told.stderr
