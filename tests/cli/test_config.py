"""`waybill config show` and `check`, and what SIGHUP changes in a broker that runs."""

from __future__ import annotations

import contextlib
import json
import signal
import time
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.broker.process import BrokerProcess
from waybill.cli.main import main
from waybill.client import connect
from waybill.client.errors import ChannelLimitReached
from waybill.settings import SETTINGS

VERBS = ("broker", "up", "serve")


@pytest.fixture(autouse=True)
def no_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_what_show_prints_is_a_file_with_the_same_settings() -> None:
    first = run("config", "show", "--amqp-port", "7777", "--limits-frame-max", "64KiB", "--http-redact", "token")
    assert first.exit_code == 0, first.output
    assert "--amqp-port" in next(line for line in first.output.splitlines() if line.startswith("port = 7777"))
    assert tomllib.loads(first.output)["limits"]["frame_max"] == 65_536
    Path("waybill.toml").write_text(first.output)
    second = json.loads(run("config", "show", "--config", "waybill.toml", "--json").output)
    assert second["amqp.port"]["value"] == 7777
    assert second["http.redact"]["value"] == ["token"]
    assert second["amqp.port"]["source"].startswith("waybill.toml:")


def test_show_hides_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_USERS", '{"ada": {"password": "secret"}}')
    monkeypatch.setenv("WAYBILL_DATABASE", "postgresql://ada:secret@host/jobs")
    for arguments in (["--changed"], ["--json"]):
        result = run("config", "show", *arguments)
        assert result.exit_code == 0, result.output
        assert "ada" in result.output
        assert "secret" not in result.output


def test_check_takes_what_is_right() -> None:
    Path("waybill.toml").write_text("[amqp]\nport = 7777\n")
    result = run("config", "check", "--config", "waybill.toml")
    assert (result.exit_code, result.output) == (0, "waybill.toml: no errors, 1 setting is not the default\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[amqp]\nprot = 1", "waybill.toml:2: there is no setting amqp.prot; did you mean amqp.port?"),
        ("definitions = 'wrong.json'", "wrong.json does not contain definitions"),
        ("[amqps]\ncertificate = 'wrong.json'\nkey = 'wrong.json'", "cannot use the TLS files wrong.json"),
        ("[http]\nhost = '0.0.0.0'", "use --keys"),
        ("keys = 'wrong.json'", "wrong.json"),
        ("[users.ada]\npassword = 'secret'\npermissions = {'/' = {read = '('}}", "users.ada"),
    ],
)
def test_check_finds_what_a_start_would_find(text: str, says: str) -> None:
    Path("wrong.json").write_text("{")
    Path("waybill.toml").write_text(text)
    result = run("config", "check", "--config", "waybill.toml")
    assert result.exit_code in {1, 2}, result.output
    assert says in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("verb", VERBS)
def test_every_setting_is_an_option_of_the_commands_that_have_it(verb: str) -> None:
    command = main.get_command(click.Context(main), verb)
    assert command is not None
    offered = {name for parameter in command.params for name in parameter.opts}
    of_http = {one.option for one in SETTINGS if one.table == "http" or one.name in {"database", "keep_days", "keys"}}
    # `up` serves the management API at its HTTP port.
    of_management = {one.option for one in SETTINGS if one.table == "management"}
    missing = {"broker": of_http, "up": of_management}.get(verb, set())
    assert {one.option for one in SETTINGS} - offered == missing


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--amqp-port", "70000", "a whole number from 0 to 65535"),
        ("--limits-frame-max", "1", "from 4096 to 16777216"),
        ("--log-level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_an_option_out_of_range_is_refused(verb: str, option: str, value: str, says: str) -> None:
    result = run(verb, "--memory", option, value)
    assert result.exit_code == 2
    assert says in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("verb", VERBS)
def test_commands_refuse_a_file_that_is_wrong(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("waybill.toml").write_text("[limits]\nchannel_max = 0")
    monkeypatch.setenv("WAYBILL_CONFIG", "waybill.toml")
    result = run(verb, "--memory")
    assert result.exit_code == 2
    assert "waybill.toml:2: limits.channel_max must be a whole number from 1 to 65535, not 0" in result.output


async def test_a_broker_takes_its_settings_and_reloads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "waybill.toml"
    text = "[users.ada]\npassword = 'secret'\n[limits]\nchannel_max = {}\nstreams_max = {}\n[log]\nformat = 'text'\n"
    file.write_text(text.format(3, 50))
    monkeypatch.setenv("WAYBILL_LIMITS_HEARTBEAT_S", "7")
    with BrokerProcess(tmp_path, "--config", str(file)) as broker:
        uri = f"amqp://ada:secret@127.0.0.1:{broker.port}/"
        assert await channels_of(uri) == 3
        file.write_text(text.format(5, 60))
        broker.process.send_signal(signal.SIGHUP)
        log = told(broker, "reloaded the configuration")
        assert f"limits.streams_max ({file}:5) cannot change while the broker runs: restart the broker" in log
        assert "reloaded the configuration: limits.channel_max changed" in log
        assert await channels_of(uri) == 5
        file.write_text(text.format(0, 60))
        broker.process.send_signal(signal.SIGHUP)
        assert f"{file}:4: limits.channel_max must be a whole number" in told(broker, "was not reloaded")
        assert "secret" not in broker.log()
        assert broker.stop() == 0


async def channels_of(uri: str) -> int:
    """How many channels the broker allows."""
    count = 0
    async with connect(uri) as connection:
        with contextlib.suppress(ChannelLimitReached):
            while True:
                await connection.channel()
                count += 1
    return count


def told(broker: BrokerProcess, text: str) -> str:
    """The log, once it has a text."""
    deadline = time.monotonic() + 20
    while text not in (log := broker.log()):
        assert time.monotonic() < deadline, log
        time.sleep(0.01)
    return log
