"""What the pages say can be found: links, commands and their options, names of Python, targets, files.

The commands run in tests/docs.
"""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import django
import pytest
from django.conf import settings

from tests.docs.page import DOCS, REPOSITORY, Page, pages
from waybill.cli.main import VERBS, main

LINK: Final = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
DOTTED: Final = re.compile(r"waybill(?:\.\w+)+")
OURS: Final = re.compile(r"(?:tests|src|examples|benchmarks|scripts|docs)/[\w./-]*\w")
TARGET: Final = re.compile(r"make ([a-z-]+)")
PUBLIC: Final = (
    "waybill",
    "waybill.ojs",
    "waybill.ojs.middleware",
    "waybill.client",
    "waybill.broker",
    "waybill.testing",
)
# Pages import what needs a project.
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "waybill.django"])
django.setup()

EVERY_PAGE: Final = pages()
BY_NAME: Final = pytest.mark.parametrize("page", EVERY_PAGE, ids=[page.name for page in EVERY_PAGE])


def test_every_link_between_pages_leads_somewhere() -> None:
    files = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *DOCS.rglob("*.md")]
    dead = [
        f"{path.relative_to(REPOSITORY)}: {target}"
        for path in files
        for target in LINK.findall(path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert dead == []


def test_pages_named_in_code_exist() -> None:
    files = (
        path for room in ("src", "benchmarks", "scripts", "examples") for path in (REPOSITORY / room).rglob("*.py")
    )
    named = {page for path in files for page in re.findall(r"\bdocs/[\w./-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert sorted(page for page in named if not (REPOSITORY / page).exists()) == []


def inline(page: Page) -> list[str]:
    return [" ".join(code.split()) for code in CODE.findall(page.prose)]


def commands(page: Page) -> Iterator[str]:
    """Every command of the page, in blocks and in the text."""
    yield from inline(page)
    for block in page.blocks:
        if block.kind == "console":
            for step, _ in block.steps:
                yield from re.split(r"[|;&]+(?= |$)|\$\(|\n", step.replace("\\\n", " "))


@BY_NAME
def test_verbs_and_options_exist(page: Page) -> None:
    wrong = [code for text in commands(page) if (code := text.strip()).startswith("waybill ") and not is_known(code)]
    assert wrong == []


def is_known(text: str) -> bool:
    """Whether the verbs are verbs of the command, and the options those of the last verb."""
    try:
        words = shlex.split(text, comments=True)[1:]
    except ValueError:
        return False
    known: click.Command = main
    context = click.Context(known)
    options = {"--help", "-h", "--version"}
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith(">"):
            break
        is_value = before.startswith("-") and not word.startswith("-")
        if is_value and isinstance(known, click.Group) and known.invoke_without_command:
            # `waybill broker --port 5672 list`: the value of an option of a verb that has verbs.
            continue
        if word.startswith("-") and word != "-":
            if word.partition("=")[0] not in options:
                return False
        elif isinstance(known, click.Group) and not word.isupper() and word != "...":
            if "|" in word:
                return all(known.get_command(context, one) is not None for one in word.split("|"))
            found = known.get_command(context, word)
            if found is None:
                return False
            known = found
            options |= {one for parameter in known.params for one in parameter.opts + parameter.secondary_opts}
    return True


@BY_NAME
def test_names_of_python_exist(page: Page) -> None:
    named = {
        name
        for code in inline(page)
        for name in DOTTED.findall(code)
        if not code.endswith((".py", ".example", ".toml", ".service"))
    }
    assert {name for name in named if not resolves(name)} == set()


@pytest.mark.parametrize("name", ["contributing.md", "explanation/architecture.md"])
def test_modules_named_for_contributors_exist(name: str) -> None:
    """These pages name modules from below the package: `storage.filesystem`."""
    rooms = {path.name for path in (REPOSITORY / "src" / "waybill").iterdir() if path.is_dir()}
    named = {code for code in inline(Page(DOCS / name)) if re.fullmatch(r"\w+(\.\w+)+", code)}
    modules = {f"waybill.{code}" for code in named if code.split(".")[0] in rooms and not code.endswith(".py")}
    assert {module for module in modules if not resolves(module)} == set()


def test_files_named_for_contributors_exist() -> None:
    """The table of places to change names files and directories below the package."""
    package = REPOSITORY / "src" / "waybill"
    rooms = {path.name for path in package.iterdir() if path.is_dir()}
    named = {code for code in inline(Page(DOCS / "contributing.md")) if "/" in code and code.split("/")[0] in rooms}
    assert len(named) > 20
    assert {name for name in named if not (package / name).exists()} == set()


def resolves(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        import_module(name)
    except ImportError:
        try:
            return hasattr(import_module(module), attribute) if module else False
        except ImportError:
            return resolves(module) and hasattr(attribute_of(module), attribute)
    return True


def attribute_of(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


@BY_NAME
def test_files_and_targets_exist(page: Page) -> None:
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    codes = [*inline(page), *commands(page)]
    targets = {found for code in codes for found in TARGET.findall(code) if code.startswith("make ")}
    assert {target for target in targets if f"\n{target}:" not in makefile} == set()
    files = {found.group() for code in codes if (found := OURS.match(code))}
    assert {name for name in files if not (REPOSITORY / name).exists()} == set()


@BY_NAME
def test_python_on_pages_is_valid(page: Page) -> None:
    wrong: list[str] = []
    for block in page.blocks:
        if block.kind == "python":
            tree = compile(block.text, page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            wrong += [f"line {block.line}: {what}" for what in unknown_names(tree)]
    assert wrong == []


def unknown_names(tree: ast.AST) -> Iterator[str]:
    """What is imported from Waybill and is not there, and arguments that its public classes and functions lack."""
    public = {name: getattr(module, name) for module in map(import_module, PUBLIC) for name in module.__all__}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "waybill":
            module = import_module(node.module or "")
            yield from (f"{node.module}.{one.name}" for one in node.names if not hasattr(module, one.name))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in public:
            parameters = inspect.signature(public[node.func.id]).parameters
            if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                continue
            yield from (f"{node.func.id}({one.arg}=)" for one in node.keywords if one.arg and one.arg not in parameters)


def test_the_command_line_page_has_every_verb() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"waybill {verb}" not in page] == []


def api_pages() -> list[Path]:
    return sorted((DOCS / "reference" / "python").glob("*.md"))


def test_the_api_reference_has_every_public_name() -> None:
    shown = {name for path in api_pages() for name in re.findall(r"^::: ([\w.]+)$", path.read_text(), re.MULTILINE)}
    assert {name for name in shown if not resolves(name)} == set()
    objects = {id(attribute_of(name)) for name in shown}
    missing = [
        f"{module.__name__}.{name}"
        for module in map(import_module, PUBLIC)
        for name in module.__all__
        if name != "__version__" and id(getattr(module, name)) not in objects
    ]
    assert missing == []


def test_every_metric_is_on_a_page() -> None:
    source = REPOSITORY / "src" / "waybill"
    files = [*source.rglob("*metrics*.py"), source / "ojs" / "middleware" / "metrics.py"]
    made = {name for path in files for name in re.findall(r'"(ojs_[a-z_]+)"', path.read_text(encoding="utf-8"))}
    pages = "".join(
        (DOCS / name).read_text(encoding="utf-8") for name in ("reference/metrics.md", "how-to/federation.md")
    )
    assert {"ojs_queue_depth", "ojs_amqp_channels_active", "ojs_federation_region_healthy"} <= made
    assert sorted(name for name in made if f"`{name}" not in pages) == []


def test_the_readme_sends_readers_to_at_most_eight_places() -> None:
    links = LINK.findall((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert 0 < len(links) <= 8
