"""`Jobs()` finds its broker as the commands do."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from waybill.cli.main import main
from waybill.ojs import WEB, Jobs, Topology
from waybill.ojs.connection import contexts
from waybill.ojs.connection.contexts import Context, Contexts
from waybill.ojs.errors import UnknownContext, UnusableContexts


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WAYBILL_URL", "WAYBILL_URI", "WAYBILL_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "waybill" / "contexts.json"


def test_the_order_in_which_a_program_looks_for_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Jobs().uri == "amqp://guest:guest@localhost:5672/%2Fojs"
    web = Context("amqp://current", names="web", prefix="t1.", queue_type="quorum")
    contexts.save(Contexts({"current": web, "other": Context("amqp://other")}, "current"))
    assert (Jobs().uri, Jobs().topology) == (
        "amqp://current",
        Topology(names=WEB, prefix="t1.", queue_type="quorum"),
    )
    assert Jobs(topology=Topology(prefix="own.")).topology == Topology(prefix="own.")
    monkeypatch.setenv("WAYBILL_CONTEXT", "other")
    assert (Jobs().uri, Jobs().topology) == ("amqp://other", Topology())
    monkeypatch.setenv("WAYBILL_URL", "amqp://url")
    assert Jobs().uri == "amqp://url"
    assert Jobs("amqp://given").uri == "amqp://given"


def test_a_context_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYBILL_CONTEXT", "nobody")
    with pytest.raises(UnknownContext, match=r"no context 'nobody'.*waybill context add"):
        Jobs()
    assert Jobs("amqp://given").uri == "amqp://given"


def test_a_broken_file_is_told_of(settings: Path) -> None:
    settings.parent.mkdir()
    settings.write_text("{")
    with pytest.raises(UnusableContexts, match=r"contexts\.json"):
        Jobs()


PROGRAM = """
from waybill import Jobs, Topology
jobs = Jobs("amqp://127.0.0.1:1/program", push_timeout=1{topology})
@jobs.handler("a.b")
async def handler() -> None: ...
"""


@pytest.mark.parametrize(
    ("arguments", "topology", "uri", "prefix"),
    [
        ([], "", "/program", ""),
        (["--url", "amqp://127.0.0.1:1/option"], "", "/option", ""),
        (["--context", "other"], "", "/context", "t1."),
        (["--context", "other"], ", topology=Topology(prefix='own.')", "/context", "own."),
    ],
)
def test_what_a_worker_is_told_goes_before_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], topology: str, uri: str, prefix: str
) -> None:
    contexts.save(Contexts({"other": Context("amqp://127.0.0.1:1/context", prefix="t1.")}))
    name = f"program_{len(arguments)}{len(topology)}"
    (tmp_path / f"{name}.py").write_text(PROGRAM.replace("{topology}", topology))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = CliRunner().invoke(main, ["worker", f"{name}:jobs", *arguments])
    assert found.exit_code == 1
    assert uri in found.output
    assert sys.modules[name].jobs.topology.prefix == prefix
    sys.modules.pop(name)


def test_a_worker_is_told_of_one_broker() -> None:
    found = CliRunner().invoke(main, ["worker", "tests.ojs.sync.process_program:jobs", "--url", "a", "--context", "b"])
    assert found.exit_code == 2
    assert "cannot be used together" in found.output
