"""Pages do not point at what is not there."""

import re
from pathlib import Path

LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def test_every_link_between_pages_leads_somewhere(repository: Path) -> None:
    pages = [repository / "README.md", repository / "CHANGELOG.md", *(repository / "docs").rglob("*.md")]
    dead = [
        f"{page.name}: {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []
