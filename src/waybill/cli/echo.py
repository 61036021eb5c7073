"""Prints texts and JSON. Names and errors are untrusted: they must not send control sequences to a terminal.

`cli.console` does the same for tables.
"""

from __future__ import annotations

import json
from typing import IO, Any, Final

import click

_WHITESPACE: Final = frozenset("\n\t")


def echo(text: str | bytes = "", *, nl: bool = True, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print a text, or JSON in UTF-8, with an escape for each control character; `err`: to standard error."""
    click.echo(escaped(text.decode() if isinstance(text, bytes) else text), nl=nl, err=err, file=file)


def echo_result(document: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Print the result of a command: a JSON document with `--json`, else a text."""
    echo(json.dumps(document) if as_json else text)


def escaped(text: str) -> str:
    """Return a text with the JSON escape of each control character: in JSON it means the same."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in _WHITESPACE else _escape(character) for character in text
    )


def _escape(character: str) -> str:
    octets = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{octets[index : index + 2].hex()}" for index in range(0, len(octets), 2))
