"""Options of Spark sources and sinks by name. As everywhere in Spark, names ignore case.

An unknown option is an error, because a misspelt one would otherwise silently get its default.
"""

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from waybill.client.uri import InvalidURI, parse_uri

LARGEST: Final = 2**63 - 1
_TRUTH: Final = {"true": True, "false": False}
_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(ValueError):
    """An option that is unknown, missing or has no usable value."""


class NamedOptions:
    """The user's options by their proper names. Raises OptionError for a name that is not among `names`.

    `others`: names, in lower case, that Spark adds for itself.
    """

    def __init__(self, given: Mapping[str, str], names: Iterable[str], others: Container[str] = ()) -> None:
        proper = {name.lower(): name for name in names}
        self._values: dict[str, str] = {}
        for name, value in given.items():
            known = proper.get(name.lower())
            if known is None:
                if name.lower() in others:
                    continue
                nearest = difflib.get_close_matches(name.lower(), proper, n=1, cutoff=0.0)
                raise OptionError(f"unknown option {name!r}: did you mean {proper[nearest[0]]!r}?")
            self._values[known] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """The given value; None if it is missing or empty."""
        return self._values.get(name) or None

    def uri(self) -> str:
        """The option `uri`, which is always required."""
        uri = self.text("uri")
        if uri is None:
            raise OptionError("option uri is required, for example amqp://guest:guest@localhost:5672/%2F")
        return uri

    def count(self, name: str, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number from `least` to `most`, or None if it was not given."""
        text = self._values.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            wanted = f"of {least} or more" if most == LARGEST else f"from {least} to {most}"
            raise OptionError(f"option {name} must be a whole number {wanted}, not {text!r}")
        return value

    def duration_ms(self, name: str) -> int | None:
        """Milliseconds, given as `500`, `500ms`, `30s`, `15m`, `2h` or `1d`; None if it was not given."""
        text = self._values.get(name)
        return None if text is None else duration_ms(name, text)

    def moment(self, name: str) -> datetime | None:
        """A moment, given as milliseconds of Unix time or as ISO 8601 text with its zone; None if it was not given."""
        text = self.text(name)
        return None if text is None else moment(name, text)

    def truth(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        text = self._values.get(name)
        return default if text is None else truth(name, text)


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of an option such as `30s`. Raises OptionError."""
    found = re.fullmatch(r"(\d+) *([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise OptionError(f"option {name} must be a time such as 500ms, 30s, 15m or 2h, not {text!r}")
    return int(found[1]) * _UNITS_MS[found[2]]


def moment(name: str, text: str) -> datetime:
    """A moment, given as milliseconds of Unix time or as ISO 8601 text with its zone. Raises OptionError."""
    try:
        found = datetime.fromtimestamp(int(text) / 1000, UTC) if text.isdigit() else datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        found = None
    if found is None or found.tzinfo is None:
        raise OptionError(
            f"option {name} must be milliseconds of Unix time, or a time with a time zone "
            f"such as 2026-01-31T12:00:00Z, not {text!r}"
        )
    return found


def truth(name: str, text: str) -> bool:
    """The value of an option that is `true` or `false`. Raises OptionError."""
    if text.lower() not in _TRUTH:
        raise OptionError(f"option {name} must be true or false, not {text!r}")
    return _TRUTH[text.lower()]


def address(uri: str) -> str:
    """The hosts, ports and virtual host of an AMQP URI, without user, password or query."""
    try:
        found = parse_uri(uri)
    except InvalidURI:
        return "the broker of an invalid URI"
    return str(found).partition("://")[2]
