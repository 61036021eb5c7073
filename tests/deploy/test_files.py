"""What deploy/ has can be used: the settings in it are settings, the commands are commands, systemd takes the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from waybill.cli.main import main
from waybill.settings import load
from waybill.settings.sources import BY_VARIABLE

CONTAINER_PATHS = re.compile(r'"/etc/waybill-users/[\w.]+"')


@pytest.fixture(scope="session")
def deploy(repository: Path) -> Path:
    return repository / "deploy"


def documents(deploy: Path) -> list[dict[str, Any]]:
    return [
        document
        for path in sorted((deploy / "kubernetes").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def containers(deploy: Path) -> list[tuple[str, dict[str, Any]]]:
    pods = [one["spec"]["template"]["spec"] for one in documents(deploy) if "template" in one.get("spec", {})]
    assert all(pod["enableServiceLinks"] is False for pod in pods)
    return [(container["name"], container) for pod in pods for container in pod["containers"]]


def check_command(arguments: list[str]) -> None:
    """Every verb and option is one of the command."""
    command = main.get_command(click.Context(main), arguments[0])
    assert command is not None, arguments
    known = {name for parameter in command.params for name in parameter.opts}
    assert {one for one in arguments if one.startswith("--")} <= known


def test_commands_of_the_manifests_exist(deploy: Path) -> None:
    found = [container["args"] for _, container in containers(deploy)]
    assert len(found) == 3
    for arguments in found:
        check_command(arguments)


def test_servers_have_probes(deploy: Path) -> None:
    by_name = dict(containers(deploy))
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(by_name["broker"])
    paths = {by_name["worker"][probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")}
    assert paths == {"/ready", "/live"}


def test_the_configuration_of_the_manifests_is_one(deploy: Path, tmp_path: Path) -> None:
    (text,) = (one["data"]["waybill.toml"] for one in documents(deploy) if one["kind"] == "ConfigMap")
    (tmp_path / "word").write_text("secret")
    path = tmp_path / "waybill.toml"
    path.write_text(CONTAINER_PATHS.sub('"word"', text))
    found = load(path, environment={})
    assert ([user.name for user in found.users], found.text("amqp.host")) == (["shop"], "0.0.0.0")


def test_variables_of_the_container_are_settings(deploy: Path) -> None:
    text = (deploy / "container" / "Containerfile").read_text(encoding="utf-8")
    # What is for the build alone is an ARG.
    named = set(re.findall(r"\b(?<!ARG )WAYBILL_\w+", text))
    assert named
    assert named <= set(BY_VARIABLE)


def test_systemd_takes_the_unit(deploy: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze: apt install systemd")
    unit = (deploy / "systemd" / "waybill.service").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ExecStart=/opt/waybill/bin/waybill (.*)$", unit, re.MULTILINE)
    check_command(command.split())
    # systemd looks whether the program is there.
    (tmp_path / "waybill").write_text("#!/bin/sh\n")
    (tmp_path / "waybill").chmod(0o755)
    (tmp_path / "waybill.service").write_text(unit.replace("/opt/waybill/bin", str(tmp_path)))
    done = subprocess.run(
        [program, "verify", "--man=no", tmp_path / "waybill.service"], capture_output=True, text=True, check=False
    )
    ours = [line for line in done.stderr.splitlines() if "waybill" in line]
    assert (done.returncode, ours) == (0, [])
