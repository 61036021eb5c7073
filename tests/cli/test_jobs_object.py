"""Which jobs a program has: named, or found in the modules of a package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from waybill.cli.job import command
from waybill.cli.jobs_object import load_jobs

APP = 'from waybill import Jobs\njobs = Jobs("amqp://localhost:1", push_timeout=0.1)\n'
TASK = """
from {name}.app import jobs

@jobs.handler("{type}", queue="{type}", priority=7)
async def work(to: str) -> None: ...
"""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_the_task_modules_of_a_package_are_found_at_any_depth() -> None:
    write(
        {
            "shop1/__init__.py": "",
            "shop1/app.py": APP,
            "shop1/jobs.py": TASK.format(name="shop1", type="a"),
            "shop1/mail/__init__.py": "",
            "shop1/mail/tasks.py": TASK.format(name="shop1", type="b"),
            "shop1/mail/views.py": "raise RuntimeError('not to be imported')",
            "shop1/later/__init__.py": "",
            "shop1/later/tasks/__init__.py": "",
            "shop1/later/tasks/tasks.py": TASK.format(name="shop1", type="c"),
        }
    )
    assert sorted(load_jobs("shop1").handlers) == ["a", "b", "c"]


def test_the_object_of_the_package_itself_is_found_beside_a_module_of_its_name() -> None:
    write({"shop2/__init__.py": APP, "shop2/jobs.py": TASK.format(name="shop2", type="a").replace(".app", "")})
    assert list(load_jobs("shop2").handlers) == ["a"]


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"__init__.py": "", "tasks.py": ""}, "no waybill.Jobs object in {name}, {name}.tasks: name one"),
        ({"__init__.py": "", "jobs.py": APP, "tasks.py": APP}, "2 waybill.Jobs objects: name one"),
        ({"__init__.py": "", "jobs.py": APP, "tasks.py": "1 / 0"}, "ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_not_found_is_said(files: dict[str, str], text: str) -> None:
    name = f"shop{len(text)}"
    write({f"{name}/{file}": content for file, content in files.items()})
    with pytest.raises(click.BadParameter) as caught:
        load_jobs(name)
    assert text.format(name=name) in str(caught.value)


def test_a_push_with_the_program_has_the_handler_s_options_and_types(monkeypatch: pytest.MonkeyPatch) -> None:
    write({"shop3/__init__.py": APP, "shop3/jobs.py": TASK.format(name="shop3", type="a.b").replace(".app", "")})
    runner = CliRunner()
    done = runner.invoke(command, ["push", "a.b", "[5]", "--app", "shop3", "--uri", "amqp://localhost:1"])
    assert done.exit_code == 2
    assert "to: expected `str`, got `int`" in done.output
    done = runner.invoke(command, ["push", "a.c", "[5]", "--app", "shop3", "--uri", "amqp://localhost:1"])
    assert "no handler for a.c" in done.output
