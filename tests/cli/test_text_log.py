"""The log of commands on standard error."""

import json
import logging
import subprocess
import sys

import click
import pytest

from waybill.cli import bridge, coordinator, federation, worker
from waybill.cli.text_log import TextLogFormatter
from waybill.ojs.middleware.json_log import JsonLogFormatter
from waybill.ojs.spec.log_text import MAX_LENGTH, shortened

COMMANDS: list[click.Command] = [
    worker.command, coordinator.command, federation.serve, *bridge.command.commands.values(),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: one.name)
def test_what_runs_for_long_can_log_json(command: click.Command) -> None:
    assert "log_format" in {parameter.name for parameter in command.params}


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_lines_have_the_chosen_format(waybill_uri: str, log_format: str) -> None:
    arguments = ["coordinator", "log-format", "--log-format", log_format, "--uri", waybill_uri]
    with subprocess.Popen([sys.executable, "-m", "waybill", *arguments], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.terminate()
        process.stderr.read()
    if log_format == "json":
        assert json.loads(line)["component"] == "server"
    else:
        assert b" INFO waybill" in line


@pytest.mark.parametrize("formatter", [TextLogFormatter(), JsonLogFormatter()], ids=["text", "json"])
def test_what_a_job_says_does_not_fill_the_log(formatter: logging.Formatter) -> None:
    """Five hundred failures of jobs with errors of a megabyte wrote 600 MB."""
    error = ValueError("begin" + "x" * 1_000_000 + "the end")
    info = (ValueError, error, None)
    record = logging.LogRecord("waybill", logging.ERROR, "f", 1, "failed: %s", ("y" * 1_000_000,), info)
    line = formatter.format(record)
    assert len(line) < 4 * MAX_LENGTH
    assert all(text in line for text in ("failed: y", "beginx", "xthe end", "characters) ..."))
    assert shortened("x" * MAX_LENGTH) == "x" * MAX_LENGTH
