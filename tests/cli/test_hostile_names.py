"""Names and errors of others are shown as they are: no command reaches the terminal, no markup is interpreted."""

import io
import json
import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

import waybill.cli
from waybill.cli.console import Console
from waybill.cli.echo import echo, escaped
from waybill.cli.guarded_group import GuardedGroup
from waybill.cli.text_log import TextLogFormatter

MARKUP = ["[/x]", "[link=https://example.com]x[/link]", "[conceal]x[/conceal]", ":smile:", "[@click=x]y"]
COMMANDS = "\x1b[2J\x1b]0;title\x07\x9b31m\r\x08\u202e\x7f"


@pytest.mark.parametrize("name", MARKUP)
def test_a_table_shows_markup_as_text(name: str) -> None:
    file = io.StringIO()
    table = Table("name", title=name, box=None)
    table.add_row(name)
    console = Console(file=file, force_terminal=True, highlight=False, width=80)
    console.print(table)
    console.print(name)
    assert file.getvalue().count(name) == 3


def test_a_printed_text_has_no_commands() -> None:
    @click.command()
    def command() -> None:
        echo(f"queue {COMMANDS}\n\tsecond line")
        echo(json.dumps({"a": COMMANDS}, ensure_ascii=False).encode())

    text, document = CliRunner().invoke(command).output.rsplit("\n", 2)[:2]
    assert text == r"queue \u001b[2J\u001b]0;title\u0007\u009b31m\u000d\u0008\u202e\u007f" + "\n\tsecond line"
    assert not set(document) & set(COMMANDS) - set("[2J]0;title31m")
    assert json.loads(document) == {"a": COMMANDS}


def test_a_character_beyond_the_plane_is_escaped_as_json_does() -> None:
    sign = "\U000e0001"
    assert json.loads(f'"{escaped(sign)}"') == sign


def test_an_error_that_quotes_a_peer_has_no_commands() -> None:
    @click.group(cls=GuardedGroup)
    def group() -> None:
        pass

    @group.command()
    @click.argument("kind")
    def fail(kind: str) -> None:
        raise click.ClickException(COMMANDS) if kind == "click" else OSError(COMMANDS)

    for kind in ("click", "other"):
        output = CliRunner().invoke(group, ["fail", kind]).output
        assert output.startswith("Error: \\u001b[2J")
        assert "\x1b" not in output


def test_a_log_line_has_no_commands_and_is_one_line() -> None:
    file = io.StringIO()
    handler = logging.StreamHandler(file)
    handler.setFormatter(TextLogFormatter("%(levelname)s %(message)s"))
    logger = logging.Logger("hostile")  # noqa: LOG001 - one of its own
    logger.addHandler(handler)
    logger.info("job %s\nINFO forged", COMMANDS)
    try:
        raise ValueError(COMMANDS)  # noqa: TRY301 - the shortest way to a traceback
    except ValueError:
        logger.exception("failed")
    lines = file.getvalue().split("\n")
    assert lines[0].startswith(r"INFO job \u001b[2J")
    assert lines[0].endswith(r"\nINFO forged")
    assert lines[1] == "ERROR failed"
    assert lines[-2].startswith(r"ValueError: \u001b[2J")
    assert "\x1b" not in file.getvalue()


def test_every_command_prints_and_logs_so() -> None:
    for path in Path(waybill.cli.__path__[0]).glob("*.py"):
        text = path.read_text()
        assert path.name == "echo.py" or "click.echo" not in text, path
        assert path.name == "text_log.py" or "basicConfig(format" not in text, path
