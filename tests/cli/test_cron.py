"""`waybill cron` against a coordinator of a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.program_environment import program_environment
from waybill.cli.cron import command

PROGRAM = """
import os
from waybill import Jobs

jobs = Jobs(os.environ["TEST_URI"])

@jobs.cron("0 9 31 * MON-FRI", tz="Europe/Berlin", name="{prefix}report", description="as the boss wants it")
@jobs.handler("report.daily", queue="cli-cron")
async def report() -> None: ...
"""


@pytest.fixture(scope="module")
def coordinated_uri(waybill_uri: str, repository: Path) -> Iterator[str]:
    """A broker with a coordinator."""
    environment = program_environment()
    arguments = [sys.executable, "-m", "waybill", "coordinator", "cli-cron", "--uri", waybill_uri]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield waybill_uri
        process.terminate()
        assert process.wait(30) == 0


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def sync(program: str, uri: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """Write a program, and register its cron jobs."""
    (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TEST_URI", uri)
    return invoke("sync", name, *options)


def test_a_cron_job_from_its_program_to_its_end(
    coordinated_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = ["--uri", coordinated_uri]
    program = PROGRAM.format(prefix="cli-")
    made = sync(program, coordinated_uri, "cron_program_a", tmp_path, monkeypatch)
    assert made.stdout == "created cli-report\n"
    assert made.stderr == "warning: cli-report: months without a day 31 are skipped\n"
    assert json.loads(invoke("sync", "cron_program_a", "--json").stdout) == {"cli-report": "unchanged"}
    (found,) = json.loads(invoke("list", "--json", *uri).stdout)
    assert (found["name"], found["cron"], found["timezone"]) == ("cli-report", "0 9 31 * MON-FRI", "Europe/Berlin")
    assert (found["status"], found["enabled"]) == ("active", True)
    assert "cli-report" in invoke("list", *uri).stdout
    runs = json.loads(invoke("next", "cli-report", "--count", "3", "--json", *uri).stdout)
    assert (len(runs), runs[0]) == (3, found["next_run_at"])
    job_id = invoke("run", "cli-report", *uri).stdout.strip()
    shown = json.loads(invoke("show", "cli-report", "--json", *uri).stdout)
    assert (shown["run_count"], shown["firings"][0]["job_id"], shown["firings"][0]["kind"]) == (1, job_id, "manual")
    assert "as the boss wants it" in invoke("show", "cli-report", *uri).stdout
    assert invoke("pause", "cli-report", "--by", "ada", *uri).stdout == "paused cli-report\n"
    assert json.loads(invoke("list", "--paused", "--json", *uri).stdout)[0].get("next_run_at") is None
    assert json.loads(invoke("list", "--enabled", "--json", *uri).stdout) == []
    assert invoke("next", "cli-report", *uri).stdout == "never: it is paused\n"
    # Whoever starts the program again does not resume it.
    assert json.loads(invoke("sync", "cron_program_a", "--json").stdout) == {"cli-report": "unchanged"}
    assert json.loads(invoke("resume", "cli-report", "--json", *uri).stdout) == {"resumed": ["cli-report"]}
    other = sync(
        program.replace("cli-", "cli-other-"), coordinated_uri, "cron_program_b", tmp_path, monkeypatch, "--prune"
    )
    assert sorted(other.stdout.splitlines()) == ["created cli-other-report", "removed cli-report"]
    assert invoke("remove", "cli-other-report", *uri).stdout == "removed cli-other-report\n"
    assert json.loads(invoke("list", "--json", *uri).stdout) == []


def test_what_is_not_there_is_an_error(coordinated_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in ("show", "next", "pause", "resume", "run", "remove"):
        missing = invoke(verb, "no-such", "--uri", coordinated_uri)
        assert (missing.exit_code, "there is no cron job no-such" in missing.output) == (1, True), missing.output
    assert sync("jobs = 1", coordinated_uri, "cron_program_c", tmp_path, monkeypatch).exit_code == 2
