"""The log of commands on standard error."""

import json
import subprocess
import sys

import click
import pytest

from waybill.cli import bridge, coordinator, federation, worker

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
