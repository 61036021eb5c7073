"""Write docs/conformance.md: every requirement of the specifications with the tests that are tagged with it.

`python -m scripts.conformance` writes the file; `--check` exits with 1 if it is out of date.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.conformance.catalogue import BINDING, Requirement, Tag, read_brokers, read_catalogue, read_notes, read_tags

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGE: Final = REPOSITORY / "docs" / "conformance.md"

HEAD: Final = """\
# Conformance

The requirements of each document and the tests that verify them. `make docs` writes this page from the
`@requirement(...)` tags of the tests and the requirements in `tests/conformance/requirements.csv`. Waybill claims no
requirement without a test. Notes, from `tests/conformance/notes.csv`, say where a requirement is not met (its tests
then verify the actual behaviour) or met in another way, or why it has no test.
"""


BROKERS_HEAD: Final = """\
## The conformance table of the AMQP binding, on both brokers

Section 13.1 of the Open Job Spec's AMQP binding. The tests watch the frames between our programs and the broker with a
decoder that is not ours, and ask the broker; each runs against Debian's RabbitMQ and against Waybill's own broker.
"""
BROKER_NAMES: Final = {"rabbitmq": "RabbitMQ 3.10", "waybill": "Waybill"}


def render_brokers(rows: list[Requirement], tags: list[Tag], brokers: Mapping[str, frozenset[str]]) -> str:
    """The table of requirements that have to hold on every broker, with a column for each broker."""
    names = BROKER_NAMES.values()
    lines = [
        BROKERS_HEAD,
        f"| id | level | requirement | {' | '.join(names)} | tests |",
        f"|---|---|---|{len(BROKER_NAMES) * '---|'}---|",
    ]
    for row in rows:
        tests = [tag.test for tag in tags if tag.requirement_id == row.id]
        reached: set[str] = set().union(*(brokers.get(test, frozenset()) for test in tests))
        marks = " | ".join("tested" if broker in reached else "-" for broker in BROKER_NAMES)
        listed = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in dict.fromkeys(tests))
        lines.append(f"| {row.id} | {row.level} | {_cell(row.text)} | {marks} | {listed} |")
    return "\n".join(lines) + "\n"


def render_page(tests: Path) -> str:
    """The whole page, of the tags below a directory of tests."""
    tags = read_tags(tests)
    return (
        render(read_catalogue(), tags, read_notes())
        + "\n"
        + render_brokers(read_catalogue(BINDING), tags, read_brokers(tests))
    )


def render(requirements: list[Requirement], tags: list[Tag], notes: Mapping[str, str]) -> str:
    """The page as Markdown; tags of ids that are not in the catalogue are left out."""
    tests: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        if tag.test not in tests[tag.requirement_id]:
            tests[tag.requirement_id].append(tag.test)
    parts = [HEAD, _counts(requirements, tests, notes)]
    for document, rows in _by_document(requirements):
        parts.append(_table(document, rows, tests, notes))
    parts.append("## Neither a test nor a note yet\n")
    for document, rows in _by_document(requirements):
        missing = [row.id for row in rows if not tests[row.id] and row.id not in notes]
        parts.append(f"**{document}** ({len(missing)}): {', '.join(missing) or 'none'}\n")
    return "\n".join(parts)


def _by_document(requirements: list[Requirement]) -> list[tuple[str, list[Requirement]]]:
    return [(name, list(rows)) for name, rows in groupby(requirements, key=lambda row: row.document)]


def _counts(requirements: list[Requirement], tests: dict[str, list[str]], notes: Mapping[str, str]) -> str:
    lines = ["| document | requirements | tested | MUST tested | known not to hold |", "|---|---|---|---|---|"]
    for document, rows in _by_document(requirements):
        musts = [row for row in rows if row.level.startswith("MUST")]
        tested = sum(1 for row in rows if tests[row.id])
        musts_tested = sum(1 for row in musts if tests[row.id])
        broken = sum(1 for row in rows if notes.get(row.id, "").startswith("Does not hold"))
        lines.append(f"| {document} | {len(rows)} | {tested} | {musts_tested} of {len(musts)} | {broken} |")
    return "\n".join(lines) + "\n"


def _table(document: str, rows: list[Requirement], tests: dict[str, list[str]], notes: Mapping[str, str]) -> str:
    lines = [f"## {document}\n", "| id | level | requirement | tests |", "|---|---|---|---|"]
    for row in rows:
        cells = [f"`{name.removeprefix('tests/')}`" for name in sorted(tests[row.id])]
        if row.id in notes:
            cells.append(f"*{_cell(notes[row.id])}*")
        names = "<br>".join(cells)
        lines.append(f"| {row.id} | {row.level} | {_cell(row.text)} (section {_cell(row.section)}) | {names} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    page = render_page(REPOSITORY / "tests")
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("docs/conformance.md is out of date: run `make docs`")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
