"""Write the table of docs/reference/configuration.md from the settings: `python -m scripts.settings_table`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from waybill.settings import SETTINGS, Setting

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "configuration.md"
_DEFAULT: Final = re.compile(r"  \[default: (.*)\]$")
_PLACE: Final = re.compile(r"(<!-- settings -->\n).*?(?=\n## )", re.DOTALL)


def row(setting: Setting) -> str:
    """The line of a setting."""
    said = _DEFAULT.search(setting.help)
    shown = "" if setting.default in {None, ()} else f"`{setting.kind.shown(setting.default)}`"
    default = said[1] if said else shown
    cells = (f"`{setting.name}`", _DEFAULT.sub("", setting.help), setting.kind.describe(), default)
    return f"| {' | '.join(cells)} | {'yes' if setting.reloads else ''} |"


def page(text: str) -> str:
    """The page with the table as the settings are now."""
    table = "\n".join(["| name | | takes | default | SIGHUP |", "|---|---|---|---|---|", *map(row, SETTINGS)])
    return _PLACE.sub(lambda found: f"{found[1]}\n{table}\n", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
