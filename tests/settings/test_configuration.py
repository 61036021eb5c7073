"""File, environment and options: which counts, and what is wrong where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import waybill
from waybill.settings import Configuration, InvalidConfiguration, load
from waybill.settings.sources import BY_VARIABLE, OTHER_VARIABLES


@pytest.fixture(autouse=True)
def no_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def written(directory: Path, text: str) -> Path:
    path = directory / "waybill.toml"
    path.write_text(text)
    return path


def problems(path: Path | None, **environment: str) -> list[str]:
    with pytest.raises(InvalidConfiguration) as wrong:
        load(path, environment=environment)
    return [str(problem) for problem in wrong.value.problems]


def test_without_anything_all_is_default() -> None:
    found = load(environment={})
    assert (found.integer("amqp.port"), found["amqp.port"].place, found.file) == (5672, "default", None)


def test_an_option_counts_before_a_variable_before_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[amqp]\nhost = '::1'\nport = 1\n[http]\nport = 11")
    environment = {"WAYBILL_AMQP_PORT": "2", "WAYBILL_HTTP_PORT": "22", "WAYBILL_LOG_LEVEL": ""}
    found = load(path, {"http.port": (33, "--port")}, {"log.level": "warning"}, environment)
    values = {name: (found[name].value, found[name].place) for name in ("amqp.host", "amqp.port", "http.port")}
    assert values == {
        "amqp.host": ("::1", f"{path}:2"),
        "amqp.port": (2, "WAYBILL_AMQP_PORT"),
        "http.port": (33, "--port"),
    }
    assert found.text("log.level") == "warning"


def test_the_file_of_the_variable_and_the_one_of_the_user(tmp_path: Path) -> None:
    named = written(tmp_path, "memory = true")
    assert load(environment={"WAYBILL_CONFIG": str(named)}).is_on("memory")
    (tmp_path / "config" / "waybill").mkdir(parents=True)
    users = written(tmp_path / "config" / "waybill", "node_name = 'mine'")
    assert load(environment={}).file == users
    assert load(named, environment={}).text("node_name") == "waybill"


def test_paths_in_the_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "keys.json").touch()
    found = load(written(tmp_path, "data_dir = 'data'\nkeys = 'keys.json'"), environment={})
    assert (found.data_dir, found.path("keys")) == (tmp_path / "data", tmp_path / "keys.json")


def test_everything_that_is_wrong_is_told_with_its_place(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """colour = "red"
[amqp]
prot = 5672
port = 70000

[limits]
frame_max = "huge"   # a comment
heartbeat_s = true
[nothing]
at_all = 1
""",
    )
    sizes = 'a size from 4096 to 16777216 bytes, such as 1048576 or "1MiB"'
    assert problems(path, WAYBILL_LOG_LEVEL="loud", WAYBILL_AMQP_PROT="1", WAYBILL_URL="amqp://here") == [
        f"{path}:1: there is no setting colour",
        f"{path}:3: there is no setting amqp.prot; did you mean amqp.port?",
        f"{path}:4: amqp.port must be a whole number from 0 to 65535, not 70000",
        f"{path}:7: limits.frame_max must be {sizes}, not 'huge'",
        f"{path}:8: limits.heartbeat_s must be a whole number from 0 to 65535, not True",
        f"{path}:10: there is no setting nothing.at_all",
        "WAYBILL_AMQP_PROT: there is no such setting; did you mean WAYBILL_AMQP_PORT?",
        "WAYBILL_LOG_LEVEL: log.level must be one of debug, info, warning, error, not 'loud'",
    ]


def test_variables_that_other_parts_read_are_no_mistakes() -> None:
    source = Path(waybill.__file__).parent.rglob("*.py")
    named = {one for path in source for one in re.findall(r'"(WAYBILL_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    assert {"WAYBILL_URL", "WAYBILL_MANAGEMENT", "WAYBILL_DESCRIBE_JOBS"} <= named
    assert named - set(BY_VARIABLE) <= OTHER_VARIABLES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[amqp", "is not TOML"),
        ("port = 1\nport = 2", "is not TOML"),
        ('data_dir = "C:\\Users\\ada"', "A path with backslashes stands in single quotes"),
        ("x = " + "[" * 100_000, "is not TOML"),
        ("amqp = 3", "there is no setting amqp"),
        ("[amqp.port]\nx = 1", "amqp.port must be a whole number"),
        ("[[amqp]]\nport = 1", "there is no setting amqp"),
        ("[users.ada]\nword = 'x'", "users has ada.word"),
        ("[amqps]\nkey = 'nowhere.pem'", "path of a file that exists"),
        ("memory = true\ndata_dir = 'data'", "cannot be combined"),
        ("[amqps]\nverify_peer = true", "amqps.verify_peer needs amqps.ca"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    (problem,) = problems(path)
    assert problem.startswith(str(path))
    assert says in problem


def test_octets_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "waybill.toml"
    path.write_bytes(b"\xff\xfe")
    assert "is not TOML" in problems(path)[0]
    assert problems(tmp_path / "nowhere.toml") == [f"{tmp_path}/nowhere.toml: No such file or directory"]


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").touch()
    path = written(tmp_path, "[http]\ncertificate = 'cert.pem'")
    assert problems(path) == [f"{path}:2: http.certificate and http.key must be set together"]


def test_the_stronger_of_memory_and_data_dir_counts(tmp_path: Path) -> None:
    path = written(tmp_path, "data_dir = 'data'")
    assert load(path, environment={"WAYBILL_MEMORY": "true"}).data_dir is None
    path = written(tmp_path, "memory = true")
    found = load(path, environment={"WAYBILL_DATA_DIR": str(tmp_path / "other")})
    assert found.data_dir == tmp_path / "other"


def test_what_kubernetes_tells_of_services_is_no_setting() -> None:
    """With a service `waybill` and another `waybill-amqp`."""
    found = load(
        environment={
            "WAYBILL_SERVICE_HOST": "10.0.0.1",
            "WAYBILL_SERVICE_PORT": "5672",
            "WAYBILL_SERVICE_PORT_AMQP": "5672",
            "WAYBILL_PORT": "tcp://10.0.0.1:5672",
            "WAYBILL_PORT_5672_TCP": "tcp://10.0.0.1:5672",
            "WAYBILL_PORT_5672_TCP_ADDR": "10.0.0.1",
            "WAYBILL_AMQP_PORT": "tcp://10.0.0.1:5672",
            "WAYBILL_AMQP_SERVICE_HOST": "10.0.0.1",
        }
    )
    assert found["amqp.port"].place == "default"


def test_an_error_of_the_environment_is_not_one_of_kubernetes() -> None:
    assert "not 99999" in problems(None, WAYBILL_AMQP_PORT="99999")[0]


def test_limits_go_by_their_names(tmp_path: Path) -> None:
    found: Configuration = load(written(tmp_path, "[limits]\nframe_max = '64KiB'"), environment={})
    assert (found.limits()["frame_max"], found.limits()["heartbeat_s"]) == (65_536, 60)
