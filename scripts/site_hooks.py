"""What `make site` adds to the pages under docs/.

README.md is the home page and CHANGELOG.md a page, so that neither is written twice. The navigation follows the index
page of each section: what is linked there, in that order.
"""

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPOSITORY: Final = Path(__file__).resolve().parent.parent
PAGES: Final = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}
SECTIONS: Final = {
    "Tutorials": "tutorial",
    "How-to guides": "how-to",
    "Reference": "reference",
    "Explanations": "explanation",
    "Benchmarks": "benchmarks",
}
PROJECT: Final = ["conformance.md", "client-suites.md", "contributing.md", "dependencies.md", "changelog.md"]
LINK: Final = re.compile(r"\]\(docs/([^)]+)\)")
ENTRY: Final = re.compile(r"^(?:## (?P<heading>.+)|- \[[^\]]+\]\((?P<page>[^)]+)\).*)$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation."""
    sections: list[Any] = [{title: section_of(directory)} for title, directory in SECTIONS.items()]
    config.nav = [{"Home": "index.md"}, *sections, {"Project": PROJECT}]
    return config


def section_of(directory: str) -> list[Any]:
    """The index page, then the pages that it links to, below its headings."""
    index = REPOSITORY / "docs" / directory / "index.md"
    section: list[Any] = [f"{directory}/index.md"]
    pages = section
    for found in ENTRY.finditer(index.read_text(encoding="utf-8")):
        if found["heading"]:
            pages = []
            section.append({found["heading"]: pages})
        else:
            pages.append(f"{directory}/{found['page']}")
    return section


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere, with links that begin below docs/."""
    for name, source in PAGES.items():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        text = LINK.sub(r"](\1)", text).replace("](CHANGELOG.md)", "](changelog.md)")
        files.append(File.generated(config, name, content=text))
    return files
