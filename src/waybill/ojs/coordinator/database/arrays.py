"""PostgreSQL array literals: `{"a","b",NULL}`. The driver can make them too, but takes many times as long."""

from __future__ import annotations

from collections.abc import Iterable


def array_of(values: Iterable[str | float | None]) -> str:
    """Return an array literal, to be sent as a parameter with a cast. Texts must not contain NUL."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: str | float | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        if "\\" in value or '"' in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    return str(value)
