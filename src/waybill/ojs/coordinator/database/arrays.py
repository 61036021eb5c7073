"""Arrays of PostgreSQL as text: `{"a","b",NULL}`. The driver makes them, too, but takes many times as long."""

from __future__ import annotations

from collections.abc import Iterable


def array_of(values: Iterable[str | float | None]) -> str:
    """Return the literal of an array, to be sent as a parameter that is cast. Texts must have no character 0."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: str | float | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        if "\\" in value or '"' in value:
            value = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{value}"'
    return str(value)
