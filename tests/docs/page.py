"""What the pages under docs/ hold: their blocks, commands and the marks of what cannot run in a test."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent.parent
DOCS: Final = REPOSITORY / "docs"
GENERATED: Final = {"conformance.md", "broker.md", "jobs.md", "pipeline.md"}
"""Pages that programs write: figures, and the table of requirements."""

NOT_RUN: Final = {
    "another machine": "it reaches a server from elsewhere, or a port that others have here",
    "installs": "it installs packages: tests/test_build.py builds and installs ours",
    "make": "the suite is run by it",
    "needs a cluster": "there is no Spark cluster beside the suite",
    "needs a superuser": "it sets up PostgreSQL, or copies a database; tests/postgresql.py starts a server",
    "needs RabbitMQ": "it configures a RabbitMQ node; tests/rabbitmq.py starts one without the management tools",
    "needs Spark": "a Spark session takes longer than all pages; tests/cli/test_pipeline.py runs these commands",
}
"""Why a block may be marked `<!-- not run: ... -->`."""

_BLOCK: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE: Final = re.compile(r"# ([\w./-]+\.\w+)\n")
_FILES_OF: Final = re.compile(r"<!-- files of: ([\w./-]+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block; `reason` says why it does not run, `line` where it begins."""

    kind: str
    text: str
    reason: str | None
    line: int

    @property
    def file(self) -> str | None:
        """The name in the first line, of a block that is a whole file."""
        found = _FILE.match(self.text)
        return found.group(1) if found and self.kind != "console" else None

    @property
    def steps(self) -> list[tuple[str, str]]:
        """Commands, each with the output that the page shows."""
        steps = []
        for step in self.text.removeprefix("$ ").split("\n$ "):
            lines = step.split("\n")
            count = 1
            while lines[count - 1].endswith("\\"):
                count += 1
            steps.append(("\n".join(lines[:count]), "\n".join(lines[count:])))
        return steps


@dataclass(frozen=True)
class Page:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(REPOSITORY))

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The page without its blocks."""
        return _BLOCK.sub("", self.text)

    @property
    def blocks(self) -> list[Block]:
        text = self.text
        return [
            Block(found["kind"], dedent(found["text"]), found["reason"], text.count("\n", 0, found.start()) + 1)
            for found in _BLOCK.finditer(text)
        ]

    @property
    def borrowed_files(self) -> Iterator[tuple[str, str]]:
        """Name and text of each file that the page takes from another page."""
        for other in _FILES_OF.findall(self.text):
            blocks = Page((self.path.parent / other).resolve()).blocks
            yield from ((block.file, block.text) for block in blocks if block.file is not None)

    @property
    def runs(self) -> bool:
        return any(block.kind == "console" and block.reason is None for block in self.blocks)


def pages() -> list[Page]:
    """README.md and every page under docs/ that a person wrote."""
    written = [path for path in sorted(DOCS.rglob("*.md")) if not is_generated(path)]
    return [Page(REPOSITORY / "README.md"), *map(Page, written)]


def is_generated(path: Path) -> bool:
    return path.name in GENERATED and path.parent in {DOCS, DOCS / "benchmarks"}
