"""`waybill serve` and `waybill key`."""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pika
import pytest
from click.testing import CliRunner

from tests.program_environment import program_environment
from waybill.broker import Broker
from waybill.cli.main import main
from waybill.client import connect


def test_it_serves_until_it_is_told_to_end(repository: Path) -> None:
    command = [sys.executable, "-m", "waybill", "serve", "--memory", "--port", "0"]
    environment = {name: value for name, value in program_environment().items() if not name.startswith("WAYBILL_")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert line.startswith("ready http://127.0.0.1:"), line
        connection = http.client.HTTPConnection(line.removeprefix("ready http://"), timeout=20)
        connection.request("GET", "/ojs/v1/health")
        assert connection.getresponse().headers["OJS-Version"] == "1.0"
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_a_reset_in_test_mode_makes_another_broker() -> None:
    command = [sys.executable, "-m", "waybill", "serve", "--memory", "--test-mode", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip().removeprefix("ready http://")
        for _ in range(2):
            connection = http.client.HTTPConnection(address, timeout=20)
            job = json.dumps({"type": "a.b", "id": "01a2b3c4-d5e6-7abc-8def-0123456789ab", "args": []})
            connection.request("POST", "/ojs/v1/jobs", job, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 201
            answer.read()
            connection.request("POST", "/ojs/v1/admin/reset")
            assert connection.getresponse().status == 200
            connection.close()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_it_ends_when_its_own_broker_fails(tmp_path: Path) -> None:
    """It answered 503 for ever."""
    command = [sys.executable, "-m", "waybill", "serve", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=program_environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        connection = http.client.HTTPConnection(process.stdout.readline().strip().removeprefix("ready http://"))
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
        job = json.dumps({"type": "served.run", "args": [], "options": {"queue": "served"}})
        connection.request("POST", "/ojs/v1/jobs", job, {"Content-Type": "application/json"})
        assert process.wait(60) == 1
        connection.close()
        log = process.stderr.read()
        assert "the broker stops" in log
        assert "File too large" in log.splitlines()[-1]


def test_it_serves_the_broker_of_a_context(waybill_uri: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in program_environment().items() if not name.startswith("WAYBILL_")}
    environment["XDG_CONFIG_HOME"] = str(tmp_path)
    add = ["context", "add", "divided", waybill_uri, "--prefix", "served.", "--partitions", "served=3"]
    subprocess.run([sys.executable, "-m", "waybill", *add], check=True, env=environment, capture_output=True)
    command = [sys.executable, "-m", "waybill", "serve", "--context", "divided", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        connection = http.client.HTTPConnection(process.stdout.readline().strip().removeprefix("ready http://"))
        job = json.dumps({"type": "served.run", "args": [], "options": {"queue": "served"}})
        connection.request("POST", "/ojs/v1/jobs", job, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 201
        connection.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    with pika.BlockingConnection(pika.URLParameters(waybill_uri)) as looking:
        names = [f"served.ojs.partition.served.{number}" for number in range(3)]
        found = [looking.channel().queue_declare(name, passive=True).method.message_count for name in names]
    assert sum(found) == 1


def test_a_signal_ends_a_start_that_takes_long() -> None:
    """A broker that does not answer, or millions of events to read."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "waybill", "serve", "--uri", uri, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = silent.accept()
            process.send_signal(signal.SIGTERM)
            told, errors = process.communicate(timeout=20)
            connection.close()
    assert (process.returncode, told) == (0, "")
    assert "Traceback" not in errors


def limited(count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `waybill serve` with so many descriptors until it ends."""
    command = ["sh", "-c", f'ulimit -n {count}; exec "$@"', "sh", sys.executable, "-m", "waybill", "serve", *arguments]
    environment = {name: value for name, value in program_environment().items() if not name.startswith("WAYBILL_")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("count", [48, 200])
def test_too_few_descriptors_for_a_broker_are_said_with_the_way_out(count: int) -> None:
    ended = limited(count, "--memory", "--port", "0")
    assert ended.returncode == 1
    assert f"may open {count} files" in ended.stderr
    assert "ulimit -n" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_broker_that_refuses_the_topology_is_an_error_without_a_traceback() -> None:
    async with Broker(port=0) as broker, connect(broker.uri()) as before:
        await (await before.channel()).declare_queue("ojs.control", durable=True)
        ended = await asyncio.to_thread(limited, 1024, "--uri", broker.uri(), "--port", "0")
    assert ended.returncode == 1
    assert "ojs.control" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--host", "0.0.0.0", "--memory"], "--keys"),
        (["--host", "example.com", "--memory"], "--keys"),
        (["--test-mode"], "--memory"),
        (["--uri", "amqp://localhost", "--memory"], "--uri"),
        (["--uri", "amqp://localhost", "--context", "other"], "--context"),
        (["--context", "no-such-context"], "no-such-context"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], text: str) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert (result.exit_code, text in result.output) == (2, True)


def test_a_file_without_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{}")
    result = CliRunner().invoke(main, ["serve", "--host", "0.0.0.0", "--memory", "--keys", str(path)])
    assert (result.exit_code, "no key" in result.output) == (1, True)
    result = CliRunner().invoke(main, ["key", "add", str(path), "shop"])
    assert result.output.startswith("wb_")
    assert CliRunner().invoke(main, ["key", "add", str(tmp_path / "no" / "dir"), "shop"]).exit_code == 1
