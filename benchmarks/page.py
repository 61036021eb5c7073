"""Writes docs/benchmarks/broker.md: each program replaces its own part and leaves the others as they are."""

from pathlib import Path
from typing import Final

TITLE: Final = "# Benchmarks"
PARTS: Final = ("speed", "protocols", "memory")


def write_part(page: Path, name: str, text: str) -> None:
    """Replace one of `PARTS` by Markdown that begins with a heading."""
    parts = _parts(page.read_text()) if page.exists() else {}
    parts[name] = text.strip("\n")
    lines = [TITLE, ""]
    for part in PARTS:
        if part in parts:
            lines += [_mark(part), parts[part], ""]
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines))


def _mark(name: str) -> str:
    return f"<!-- part: {name} -->"


def _parts(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PARTS:
        _, mark, rest = text.partition(_mark(name))
        if mark:
            found[name] = rest.partition("<!-- part: ")[0].strip("\n")
    return found
