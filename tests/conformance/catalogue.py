"""The requirements of the specifications, and which tests observe them: read from the sources, without running them."""

import ast
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CATALOGUE: Final = Path(__file__).with_name("requirements.csv")
BINDING: Final = Path(__file__).with_name("binding.csv")
"""The conformance table of the AMQP binding (section 13.1), whose rows are to hold on every broker."""

BROKERS: Final = ("rabbitmq", "waybill")
NOTES: Final = Path(__file__).with_name("notes.csv")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One row of the catalogue: `level` is MUST, SHOULD or MAY as its document says."""

    id: str
    document: str
    section: str
    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Tag:
    """One requirement named by one test: `test` is `path::name`, or the path alone for a tag on a whole module."""

    requirement_id: str
    test: str


@dataclass(frozen=True, slots=True)
class Fixture:
    """A fixture or a test: what it asks for, and the brokers that it is run with because of its own parameters."""

    needs: tuple[str, ...]
    brokers: frozenset[str]


class TagError(ValueError):
    """A tag whose ids are not plain strings, so that they cannot be read from the source."""


def read_catalogue(path: Path = CATALOGUE) -> list[Requirement]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Requirement(row["id"], row["seed"], row["section"], row["level"], row["requirement"])
            for row in csv.DictReader(file)
        ]


def read_notes(path: Path = NOTES) -> dict[str, str]:
    """By requirement: in what it does not hold, or why nothing observes it."""
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["note"] for row in csv.DictReader(file)}


def read_brokers(tests: Path) -> dict[str, frozenset[str]]:
    """The brokers that each test is run with, by `path::name`: read from the parameters of the fixtures it asks for."""
    found: dict[str, frozenset[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        around = [tests / "conftest.py", path.parent / "conftest.py"]
        fixtures: dict[str, Fixture] = {}
        for conftest in around:
            if conftest.is_file():
                fixtures |= _functions(ast.parse(conftest.read_text(encoding="utf-8")))
        functions = _functions(tree)
        fixtures |= functions
        owner = path.relative_to(tests.parent).as_posix()
        found |= {f"{owner}::{name}": _reached(name, fixtures) for name in functions if name.startswith("test_")}
    return found


def _functions(tree: ast.Module) -> dict[str, Fixture]:
    return {
        node.name: Fixture(tuple(argument.arg for argument in node.args.args), _own_brokers(node))
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _own_brokers(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """The brokers among the strings of its decorators: `params=["rabbitmq", "waybill"]` and the like."""
    strings = {
        part.value
        for decorator in node.decorator_list
        for part in ast.walk(decorator)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }
    return frozenset(strings & set(BROKERS))


def _reached(name: str, fixtures: dict[str, Fixture]) -> frozenset[str]:
    brokers: set[str] = set()
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        fixture = fixtures.get(one := ahead.pop())
        if fixture is None or one in seen:
            continue
        seen.add(one)
        brokers |= fixture.brokers
        ahead += fixture.needs
    return frozenset(brokers)


def read_tags(tests: Path) -> list[Tag]:
    """The tags of all test files under a directory. Raises TagError."""
    return [
        tag
        for path in sorted(tests.rglob("test_*.py"))
        for tag in _tags_in(ast.parse(path.read_text(encoding="utf-8")), path.relative_to(tests.parent).as_posix())
    ]


def _tags_in(node: ast.AST, owner: str) -> Iterator[Tag]:
    """The tags in and below a node; `owner` is the test, class or module around it."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "requirement":
        for argument in node.args:
            if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                raise TagError(f"{owner}: a requirement tag takes its ids as plain strings")
            yield Tag(argument.value, owner)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        owner = f"{owner}::{node.name}"
        # The tags of a node come before those of what is in it.
        for decorator in node.decorator_list:
            yield from _tags_in(decorator, owner)
    for child in ast.iter_child_nodes(node):
        if child in getattr(node, "decorator_list", ()):
            continue
        yield from _tags_in(child, owner)
