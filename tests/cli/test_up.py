"""`waybill up`: everything in one process, and a worker beside it."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.dashboard.conftest import PROGRAM, WAIT_SECONDS, Server, start, stop
from waybill.cli.main import main


def test_it_serves_a_worker_that_begins_again_when_a_file_changes(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(PROGRAM)
    process, url = start(["shop:jobs", "--memory"], tmp_path)
    server = Server(url)
    try:
        assert process.stdout is not None
        # A type that is in nobody's program would be a bad first step.
        steps = [line.split("     #")[0].strip() for line in islice(process.stdout, 9) if url in line]
        assert [one.partition("--json ")[2] for one in steps[-2:]] == ['\'{"type": "TYPE", "args": []}\'', ""]
        assert steps[-1] == f"{url}/ui/#/enqueue"
        first = server.push("mail.send", "ada@example.com", queue="mail")
        assert server.wait(first, "completed")["result"] == {"sent": True, "to": "ada@example.com"}
        program.write_text(PROGRAM.replace('"sent": True', '"sent": "again"'))
        deadline = time.monotonic() + 2 * WAIT_SECONDS
        while True:
            job = server.push("mail.send", "bob@example.com", queue="mail")
            if server.wait(job, "completed")["result"]["sent"] == "again":
                break
            assert time.monotonic() < deadline
    finally:
        assert stop(process) == 0


def test_what_was_pushed_is_there_after_a_restart(tmp_path: Path) -> None:
    process, url = start(["--data-dir", "data"], tmp_path)
    try:
        job = Server(url).push("mail.send", "ada@example.com", queue="mail")
    finally:
        assert stop(process) == 0
    process, url = start(["--data-dir", "data"], tmp_path)
    try:
        assert Server(url).wait(job, "available")["args"] == ["ada@example.com"]
    finally:
        assert stop(process) == 0


def test_a_kill_leaves_no_worker_behind(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    process, url = start(["shop:jobs", "--memory", "--no-reload", "--grace-period", "0"], tmp_path)
    try:
        server = Server(url)
        server.wait(server.push("mail.send", "ada@example.com", queue="mail"), "completed")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.kill()
        process.wait()
        deadline = time.monotonic() + WAIT_SECONDS
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        stop(process)


def test_a_program_that_is_not_there_ends_it(tmp_path: Path) -> None:
    process, _ = start(["nowhere:jobs", "--memory", "--no-reload"], tmp_path)
    try:
        assert process.wait(30) != 0
    finally:
        stop(process)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0", "--memory"], "--keys"),
        (["--memory", "--data-dir", "data"], "--data-dir"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["up", *arguments])
    assert (result.exit_code, text in result.output) == (2, True)
