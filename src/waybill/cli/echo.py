"""Prints texts and JSON. Names and errors come from other people: they must not send commands to a terminal.

`cli.console` does the same for tables.
"""

from __future__ import annotations

from typing import IO, Any, Final

import click

_WHITE: Final = frozenset("\n\t")


def echo(text: str | bytes = "", *, nl: bool = True, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print a text, or JSON in UTF-8, with an escape for each control character; `err`: to standard error."""
    click.echo(escaped(text.decode() if isinstance(text, bytes) else text), nl=nl, err=err, file=file)


def escaped(text: str) -> str:
    """Return a text with the JSON escape of each control character: in JSON it means the same."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _WHITE else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    octets = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{octets[index : index + 2].hex()}" for index in range(0, len(octets), 2))
