"""What users get wrong: a line with the cause, the documented exit code, JSON for machines, and never a traceback."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.program_environment import program_environment
from waybill.cli.main import main

BAD_URI = "the host of the AMQP URI is malformed"
AWAY = "amqp://guest:secret@127.0.0.1:{port}/"


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path, modules = sys.path.copy(), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) & {"program"} - modules:
        del sys.modules[name]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


VERBS = dict(leaves(main))
# `worker` loads a program first: see test_worker.
OF_A_BROKER = [
    path
    for path, command in VERBS.items()
    if any("--context" in one.opts for one in command.params) and path not in {("doctor",), ("worker",)}
]
SPEAKS_LINES = {
    *(("broker",), ("coordinator",), ("serve",), ("federation", "serve"), ("up",)),
    *(("definitions", "export"), ("migrate", "celery")),
}
"""They print `ready`, or JSON anyway, or a program."""


def arguments_of(path: tuple[str, ...]) -> list[str]:
    required = [one for one in VERBS[path].params if isinstance(one, click.Argument) and one.required]
    given = [*path, *["x"] * len(required)]
    if path == ("worker",):
        Path("program.py").write_text("from waybill import Jobs\njobs = Jobs()")
        given = [*path, "program"]
    if path in {("dlq", "retry"), ("dlq", "discard")}:
        given.append("--all")
    if any("--yes" in one.opts for one in VERBS[path].params):
        given.append("--yes")
    if path == ("topology", "migrate"):
        given += ["--to-prefix", "other."]
    if path == ("job", "push-many"):
        Path("jobs.jsonl").write_text('{"type": "t"}\n')
        given.append("jobs.jsonl")
    return given


@pytest.mark.parametrize("path", sorted(set(VERBS) - SPEAKS_LINES), ids=" ".join)
def test_every_verb_that_prints_takes_json(path: tuple[str, ...]) -> None:
    assert any("--json" in one.opts for one in VERBS[path].params)


@pytest.mark.parametrize("path", OF_A_BROKER, ids=" ".join)
def test_a_broker_that_is_away(path: tuple[str, ...], free_port: int) -> None:
    uri = AWAY.format(port=free_port)
    result = run(*arguments_of(path), "--uri", uri)
    assert (result.exit_code, type(result.exception)) == (1, SystemExit), result.output
    assert f"Error: amqp://127.0.0.1:{free_port}/%2F: " in result.output
    assert "Hint: " in result.output
    assert "secret" not in result.output
    if path in SPEAKS_LINES:
        return
    document = json.loads(run(*arguments_of(path), "--uri", uri, "--json").stderr.splitlines()[-1])
    assert set(document) == {"error", "hint"}
    assert document["hint"]


@pytest.mark.parametrize("path", OF_A_BROKER, ids=" ".join)
def test_a_uri_that_is_none(path: tuple[str, ...]) -> None:
    result = run(*arguments_of(path), "--uri", "amqp://user:secret@[::broken/")
    assert result.exit_code == 2, result.output
    assert BAD_URI in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("path", sorted(set(OF_A_BROKER) - {("worker",)}), ids=" ".join)
def test_the_url_of_a_server_is_not_that_of_its_broker(path: tuple[str, ...]) -> None:
    result = run(*arguments_of(path), "--uri", "http://wb_secret@127.0.0.1:8080")
    assert result.exit_code == 2, result.output
    assert "this command needs the broker, not a server over HTTP" in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("raise ZeroDivisionError('mine')", "ZeroDivisionError: mine ("),
        ("def x(:", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("jobs = 1", "not a waybill.Jobs"),
        ("from waybill import Jobs\njobs = Jobs('amqp://u:secret@[::broken/')", BAD_URI),
    ],
)
def test_a_program_that_cannot_be_used(program: str, says: str) -> None:
    Path("program.py").write_text(program)
    result = run("worker", "program")
    assert result.exit_code == 2, result.output
    assert says in result.output
    assert "secret" not in result.output


def test_a_decorator_without_parentheses() -> None:
    Path("program.py").write_text("from waybill import Jobs\njobs = Jobs()\n@jobs.handler\ndef send(): ...")
    result = run("worker", "program")
    assert (result.exit_code, "not @jobs.handler" in result.output) == (2, True)


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("backports", "http", ["up", "--memory", "--amqp-port=0", "--port=0"]),
        ("backports", "http", ["serve", "--memory", "--port=0"]),
        ("aiohttp", "http", ["worker", "program", "--uri=http://localhost:1"]),
        ("sqlalchemy", "state", ["state", "current", "jobs.db"]),
        ("alembic", "state", ["state", "migrate", "jobs.db"]),
        ("pyarrow", "spark", ["pipeline", "run", "--uri=amqp://localhost:1", "--data=data"]),
        ("pyspark", "spark", ["pipeline", "compact", "--data=data"]),
    ],
)
def test_what_is_not_installed_names_its_extra(package: str, extra: str, arguments: list[str]) -> None:
    Path("program.py").write_text("from waybill import Jobs\njobs = Jobs()")
    Path("data").mkdir()
    Path("jobs.db").touch()
    script = f"import sys; sys.modules[{package!r}] = None\nfrom waybill.cli.main import main; main({arguments!r})"
    environment = {name: value for name, value in program_environment().items() if not name.startswith("WAYBILL_")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 1
    assert f"pip install 'waybill-amqp[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_tls_on_one_side_only(free_port: int) -> None:
    with socket.create_server(("127.0.0.1", free_port)) as server:

        def answer() -> None:
            with server.accept()[0] as peer:
                peer.recv(1)
                peer.sendall(b"AMQP\0\0\x09\x01")

        thread = threading.Thread(target=answer)
        thread.start()
        result = run("queue", "list", "--uri", f"amqps://127.0.0.1:{free_port}/")
        thread.join(10)
    assert (result.exit_code, "Without TLS, the URI begins with amqp://" in result.output) == (1, True)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    result = run("definitions", "export", "--data-dir", "data", str(tmp_path / "nowhere" / "file"))
    assert result.exit_code == 1
    assert "nowhere" in result.output
    assert isinstance(result.exception, SystemExit)


def test_tls_files_that_are_none_are_named(free_port: int) -> None:
    for name in ("cert.pem", "key.pem"):
        Path(name).write_text("")
    result = run("broker", "--memory", "--tls-certificate", "cert.pem", "--tls-key", "key.pem")
    assert (result.exit_code, "cert.pem, key.pem" in result.output) == (1, True)
    result = run("job", "list", "--uri", f"amqps://127.0.0.1:{free_port}/?cacertfile=nowhere.pem")
    assert (result.exit_code, "nowhere.pem" in result.output) == (1, True)


def test_usage_errors_are_json_for_machines() -> None:
    result = run("job", "push", "--json", "--no-such-option")
    assert result.exit_code == 2
    document = json.loads(result.stderr)
    assert "--no-such-option" in document["error"]
    assert document["hint"] == "see `main job push --help`"


def test_an_import_says_in_json_what_it_did(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    Path("definitions.json").write_text('{"users": [], "vhosts": [{"name": "v"}]}')
    result = run("definitions", "import", "--data-dir", "data", "definitions.json", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["counts"]["vhosts"] == 1


def test_ctrl_c_is_130(free_port: int) -> None:
    """A broker that never answers: the question is interrupted."""
    script = f"""
import socket, sys
server = socket.create_server(("127.0.0.1", {free_port}))
print("listening", flush=True)
peer, _ = server.accept()
print("waits", flush=True)
sys.stdin.read()
"""
    silent = [sys.executable, "-c", script]
    asking = [sys.executable, "-m", "waybill", "job", "list", "--uri", f"amqp://127.0.0.1:{free_port}/"]
    with subprocess.Popen(silent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        with subprocess.Popen(asking, stderr=subprocess.PIPE, text=True, env=program_environment()) as process:
            assert server.stdout.readline() == "waits\n"
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=30)
        assert (process.returncode, told) == (130, "interrupted\n")
        assert server.stdin is not None
        server.stdin.close()


def test_a_migration_logs_its_steps_alone() -> None:
    Path("jobs.db").touch()
    command = [sys.executable, "-m", "waybill", "state", "migrate", "jobs.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=program_environment())
    assert done.stdout.startswith("migrated: 0001")
    assert all(line.startswith("Running upgrade ") for line in done.stderr.splitlines())
    assert "-> 0001" in done.stderr
