from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from waybill.cli.jobs_object import load_jobs
from waybill.cli.worker import command
from waybill.ojs import Jobs


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "program_of_the_worker_tests"
    text = 'from waybill import Jobs\njobs = Jobs("amqp://localhost")\nnumber = 5\n'
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return name


def test_the_name_of_the_jobs_may_be_left_out(module: str) -> None:
    assert isinstance(load_jobs(module), Jobs)
    assert load_jobs(f"{module}:jobs") is load_jobs(module)


@pytest.mark.parametrize("attribute", ["number", "missing", "jobs.missing"])
def test_what_is_no_jobs_is_refused(module: str, attribute: str) -> None:
    with pytest.raises(click.BadParameter):
        load_jobs(f"{module}:{attribute}")


def test_a_missing_module_is_a_usage_error() -> None:
    result = CliRunner().invoke(command, ["no_such_module_at_all:jobs"])
    assert result.exit_code == 2
    assert "no_such_module_at_all" in result.output


def test_a_bad_queue_is_a_usage_error(module: str) -> None:
    result = CliRunner().invoke(command, [f"{module}:jobs", "--queues", "Bad"])
    assert result.exit_code == 2
    assert "queue: 'Bad'" in result.output
