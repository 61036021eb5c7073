"""`waybill worker` as those see it who run it: probes, signals, reload."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGCONT, SIGTERM, SIGTSTP

import pytest
from click.testing import CliRunner

from tests.program_environment import program_environment
from waybill.cli.worker import command, read_queues

WAIT_SECONDS = 30.0

MOST_MODULES = 420
"""A worker that has done a job has loaded 393 with Python 3.11, which takes less than 0.15 s of CPU."""
SLOW_TO_LOAD = {
    *("http.client", "http.server", "multiprocessing", "opentelemetry", "prometheus_client", "rich", "sqlalchemy"),
    *("pickle", "secrets", "sqlite3", "waybill.broker", "waybill.cli.job", "waybill.node", "waybill.storage"),
    *("waybill.ojs.control.reservations", "waybill.ojs.coordinator.coordinator", "waybill.ojs.topology.doctor"),
    *("waybill.ojs.middleware.enqueue_batch", "waybill.ojs.middleware.json_log"),
    *("waybill.ojs.worker.process_messages", "waybill.ojs.worker.process_pool"),
    "waybill.wire.sasl.scram",
}

PROGRAM = """
import asyncio
import pathlib
import sys
import time
from waybill import Jobs

jobs = Jobs({uri!r})

@jobs.handler("process.write", queue={queue!r})
async def write() -> None:
    pathlib.Path("seen").write_text({text!r})

@jobs.handler("process.modules", queue={queue!r})
async def modules() -> None:
    pathlib.Path("modules").write_text(" ".join(sys.modules))
    pathlib.Path("seen").write_text("modules")

@jobs.handler("process.block", queue={queue!r})
async def block() -> None:
    pathlib.Path("seen").write_text("blocked")
    while pathlib.Path("seen").exists():
        time.sleep(0.01)

@jobs.handler("process.deaf", queue={queue!r})
async def deaf() -> None:
    pathlib.Path("seen").write_text("deaf")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def push(repository: Path, uri: str, job_type: str, queue: str) -> None:
    arguments = [sys.executable, "-m", "waybill", "job", "push", "--create", job_type, "--queue", queue, "--uri", uri]
    subprocess.run(arguments, env=program_environment(), check=True, stdout=subprocess.DEVNULL)


@contextmanager
def working(repository: Path, directory: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "waybill", "worker", "program:jobs", *options],
        cwd=directory,
        env=program_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
            process.send_signal(SIGTERM)
            output, errors = process.communicate(timeout=WAIT_SECONDS)
            assert process.returncode == 0, output + errors
        finally:
            process.kill()


def probe(port: int, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        body = error.read()
        return error.code, json.loads(body) if body.startswith(b"{") else {}
    except urllib.error.URLError:
        return 0, {}


def test_the_probes_tell_alive_from_consuming(
    waybill_uri: str, tmp_path: Path, repository: Path, free_port: int
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=waybill_uri, queue="probe", text="x"), encoding="utf-8")
    with working(repository, tmp_path, "--health-port", str(free_port)) as process:
        wait_for(lambda: probe(free_port, "/ready")[0] == 200)
        assert probe(free_port, "/live")[1]["queues"] == ["probe"]
        assert probe(free_port, "/other")[0] == 404
        process.send_signal(SIGTSTP)
        wait_for(lambda: probe(free_port, "/ready")[0] == 503)
        status, state = probe(free_port, "/live")
        assert (status, state["consuming"], state["connected"]) == (200, False, True)
        process.send_signal(SIGCONT)
        wait_for(lambda: probe(free_port, "/ready")[0] == 200)
        push(repository, waybill_uri, "process.block", "probe")
        wait_for((tmp_path / "seen").exists)
        assert probe(free_port, "/live")[0] == 503
        (tmp_path / "seen").unlink()
        wait_for(lambda: probe(free_port, "/live")[0] == 200)


def test_a_worker_loads_little_before_its_first_job(waybill_uri: str, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=waybill_uri, queue="light", text="x"), encoding="utf-8")
    push(repository, waybill_uri, "process.modules", "light")
    with working(repository, tmp_path):
        wait_for((tmp_path / "seen").exists)
    loaded = set((tmp_path / "modules").read_text(encoding="utf-8").split())
    assert "waybill.ojs.worker.worker" in loaded
    assert loaded & SLOW_TO_LOAD == set()
    assert len(loaded) <= MOST_MODULES


def test_changed_code_is_run_at_once(waybill_uri: str, tmp_path: Path, repository: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(uri=waybill_uri, queue="reload", text="first"), encoding="utf-8")
    seen = tmp_path / "seen"

    def shows(text: str) -> bool:
        return seen.exists() and seen.read_text(encoding="utf-8") == text

    with working(repository, tmp_path, "--reload", "--grace-period", "5"):
        push(repository, waybill_uri, "process.write", "reload")
        wait_for(lambda: shows("first"))
        program.write_text("a mistake", encoding="utf-8")
        program.write_text(PROGRAM.format(uri=waybill_uri, queue="reload", text="second"), encoding="utf-8")
        while not shows("second"):
            push(repository, waybill_uri, "process.write", "reload")
    assert shows("second")


def test_a_coroutine_that_never_ends_does_not_keep_the_worker_from_ending(
    waybill_uri: str, tmp_path: Path, repository: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=waybill_uri, queue="deaf", text="x"), encoding="utf-8")
    with working(repository, tmp_path, "--grace-period", "0.1"):
        push(repository, waybill_uri, "process.deaf", "deaf")
        wait_for((tmp_path / "seen").exists)


def test_queues_may_have_weights() -> None:
    assert read_queues(None) is None
    assert read_queues("critical=6, default") == {"critical": 6, "default": 1}


@pytest.mark.parametrize("weight", ["0", "x", "-1", "1.5"])
def test_a_bad_weight_is_a_usage_error(weight: str) -> None:
    result = CliRunner().invoke(command, ["program:jobs", "--queues", f"critical={weight}"])
    assert result.exit_code == 2
    assert "the weight of critical" in result.output


def test_a_broker_that_is_not_there_is_an_error_without_a_traceback(
    tmp_path: Path, repository: Path, free_port: int
) -> None:
    uri = f"amqp://guest:guest@127.0.0.1:{free_port}/%2Fojs"
    (tmp_path / "program.py").write_text(PROGRAM.format(uri=uri, queue="probe", text="x"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "waybill", "worker", "program:jobs"],
        cwd=tmp_path, env=program_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(free_port) in done.stderr
