import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.ojs.eye import Eye
from waybill.cli.job import command

QUEUE = "cli-job"


@pytest.fixture
def eye(waybill_uri: str) -> Iterator[Eye]:
    eye = Eye(waybill_uri)
    yield eye
    eye.close()


def push(uri: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, ["push", "--create", "--uri", uri, "--queue", QUEUE, *arguments])


def test_push_prints_the_id_of_the_job(waybill_uri: str, eye: Eye) -> None:
    result = push(waybill_uri, "email.send", '["a", {"b": 1}]')
    assert result.exit_code == 0, result.output
    method, properties, body = eye.channel.basic_get(f"ojs.queue.{QUEUE}", auto_ack=True)
    assert method is not None
    assert properties.message_id == result.output.strip()
    assert json.loads(body)["args"] == ["a", {"b": 1}]


def test_push_prints_the_envelope_as_json(waybill_uri: str) -> None:
    result = push(waybill_uri, "email.send", "--json", "--delay", "3600", "--max-attempts", "7", "--priority", "5")
    assert result.exit_code == 0, result.output
    envelope = json.loads(result.output)
    assert (envelope["state"], envelope["priority"], envelope["retry"]) == ("scheduled", 5, {"max_attempts": 7})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["email.send", "{}"], "must be a JSON array"),
        (["email.send", "["], "ARGS_JSON"),
        (["Email", "[]"], "type: 'Email' is not dot-separated lower case"),
        (["email.send", "--scheduled-at", "noon"], "scheduled_at: 'noon' is not an RFC 3339 timestamp"),
    ],
)
def test_bad_input_is_named(waybill_uri: str, arguments: list[str], text: str) -> None:
    result = push(waybill_uri, *arguments)
    assert result.exit_code == 2
    assert text in result.output


def test_a_broker_that_is_not_there_is_an_error_without_a_traceback(free_port: int) -> None:
    result = push(f"amqp://guest:guest@127.0.0.1:{free_port}/%2Fojs", "email.send")
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")


def test_push_with_a_program_has_the_options_of_the_handler(
    waybill_uri: str, eye: Eye, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
from waybill import Jobs, Retry

jobs = Jobs("amqp://localhost")

@jobs.handler("email.send", queue="QUEUE", retry=Retry(max_attempts=9), priority=7, timeout=5)
async def send(to: str) -> None: ...
"""
    (tmp_path / "program_of_the_push_test.py").write_text(program.replace("QUEUE", QUEUE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ["email.send", '["a"]', "--app", "program_of_the_push_test", "--json", "--uri", waybill_uri]
    result = CliRunner().invoke(command, ["push", *arguments])
    assert result.exit_code == 0, result.output
    envelope = json.loads(result.output)
    assert (envelope["queue"], envelope["priority"], envelope["retry"], envelope["timeout"]) == (
        QUEUE, 7, {"max_attempts": 9}, 5,
    )  # fmt: skip
    assert eye.channel.basic_get(f"ojs.queue.{QUEUE}", auto_ack=True)[0] is not None
