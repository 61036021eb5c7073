"""The demo on a small directory, with the crash, and with Spark where there is a Java."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pip install waybill-amqp[spark]")

from waybill.pipeline.java import JavaNotFoundError, java_home

SECONDS = 300
# pyspark announces for itself what it will change one day.
PYTHON = [sys.executable, "-m", "examples.demo"]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Twelve files: good ones, and one for each way to fail."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number in range(8):
        (directory / f"good{number}.py").write_text("def f():\n    return 1\n" * (number + 1))
    (directory / "old.py").write_text("print 'of another age'\n")
    (directory / "binary.dat").write_bytes(b"\x00\x01")
    (directory / "latin.py").write_bytes(b"\n\n\nx = '\xe9'\n")
    (directory / "data.json").write_text("{}")
    (directory / ".hidden").mkdir()
    (directory / ".hidden" / "not_taken.py").write_text("")
    return directory


@pytest.fixture
def java() -> None:
    try:
        java_home(os.environ)
    except JavaNotFoundError as error:
        pytest.skip(str(error))


def living_processes(data: Path) -> list[str]:
    """The command lines of processes that name the demo's own directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(data).encode() in word for word in words) and str(os.getpid()) != path.parent.name:
            found.append(b" ".join(words).decode())
    return found


@pytest.mark.spark
@pytest.mark.timeout(SECONDS)
def test_every_job_is_accounted_for_through_the_crash(
    files: Path, tmp_path: Path, repository: Path, java: None
) -> None:
    data = tmp_path / "data"
    done = subprocess.run(
        [*PYTHON, "--directory", str(files), "--data", str(data)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    words = " ".join(done.stdout.split())
    for said in (
        "one job for each of 12 files",
        "broker killed with SIGKILL",
        "12 pushed",
        "8 completed",
        "4 discarded",
        "0 lost",
        "the report's totals are those of the workers and queues",
        "No job was lost.",
    ):
        assert said in words
    for error in ("SyntaxError", "NotText", "UnicodeDecodeError", "NotPython"):
        assert error in words
    assert "<html" in (data / "report.html").read_text(encoding="utf-8")
    assert list((data / "tables" / "silver").iterdir())
    assert living_processes(data) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes by way of /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_a_signal_ends_the_demo_and_all_that_it_started(
    files: Path, tmp_path: Path, repository: Path, number: signal.Signals, code: int
) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [*PYTHON, "--directory", str(files), "--data", str(data)], cwd=repository, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "workers take jobs" in line)
        assert line
        assert len(living_processes(data)) > 1
        second = subprocess.run(
            [*PYTHON, "--data", str(data)], cwd=repository, capture_output=True, text=True, check=False, timeout=60
        )
        assert (second.returncode, "another demo is at work" in second.stderr) == (2, True)
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(60) == code
    assert "stopped, and all processes with it" in rest
    deadline = time.monotonic() + 10
    while living_processes(data):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_directory_that_no_demo_has_made_is_left_alone(files: Path, tmp_path: Path, repository: Path) -> None:
    done = subprocess.run(
        [*PYTHON, "--directory", str(files), "--data", str(files)],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "no demo has made it" in done.stderr
    assert (files / "old.py").exists()
