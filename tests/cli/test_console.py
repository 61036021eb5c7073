"""No text of a job is a command to the terminal of whoever looks at it."""

import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import waybill.cli
from waybill.cli.console import Console, plain

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202e"


@pytest.mark.parametrize("text", [EVIL, Text(EVIL), f"a{EVIL}b"])
def test_a_table_of_texts_has_no_commands_but_those_of_its_styles(text: str | Text) -> None:
    file = io.StringIO()
    table = Table("head", title="title")
    table.add_row(text, style="red")
    console = Console(file=file, force_terminal=True, color_system="standard", width=80)
    console.print(table)
    console.print(text, markup=False)
    written = file.getvalue()
    assert "\x1b[31m" in written
    assert not any(sign in written for sign in ("\x1b[2J", "\x1b]", "\x07", "\x9b", "\r", "\x08", "\u202e"))


def test_a_plain_text_keeps_its_lines() -> None:
    assert plain("a\n\tb \u00e4\U0001f600") == "a\n\tb \u00e4\U0001f600"
    assert plain("a\x1bb\x9bc\rd") == "a\ufffdb\ufffdc\ufffdd"


def test_every_command_writes_to_such_a_console() -> None:
    for path in Path(waybill.cli.__path__[0]).glob("*.py"):
        assert path.name == "console.py" or "from rich.console import Console" not in path.read_text(), path
