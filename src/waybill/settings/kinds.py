"""The types of settings.

A kind converts a TOML value (`convert`), or a string from an option or the environment (`parse`). Both raise
`Refused` with the values that they accept. `shown` returns the value as TOML, without secrets.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Final

UNITS: Final = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE: Final = re.compile(r"(\d{1,20}) *([A-Za-z]*)")
_WHOLE: Final = re.compile(r"[+-]?\d{1,20}")
TRUE: Final = ("true", "yes", "on", "1")
FALSE: Final = ("false", "no", "off", "0")


class Refused(ValueError):
    """A value that a setting does not accept. The text completes "port ...": "must be a whole number ..."."""


def abbreviated(value: object) -> str:
    """A value for an error message, truncated if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Kind:
    """See the module's docstring. `name` is shown in the help of an option."""

    name = "TEXT"

    def describe(self) -> str:
        """The accepted values: "a whole number from 0 to 65535"."""
        raise NotImplementedError

    def convert(self, value: object, base: Path) -> object:
        """Convert a TOML value. Paths are relative to `base`."""
        raise NotImplementedError

    def parse(self, text: str, base: Path) -> object:
        return self.convert(text, base)

    def shown(self, value: object) -> str:
        return json.dumps(value)

    def refuse(self, value: object) -> Refused:
        return Refused(f"must be {self.describe()}, not {abbreviated(value)}")


class Integer(Kind):
    """An integer."""

    name = "INTEGER"

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def describe(self) -> str:
        return f"a whole number from {self.least} to {self.most}"

    def convert(self, value: object, base: Path) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise self.refuse(value)
        return value

    def parse(self, text: str, base: Path) -> object:
        if not _WHOLE.fullmatch(text.strip()):
            raise self.refuse(text)
        return self.convert(int(text), base)


class Seconds(Kind):
    """A time in seconds, which may be a fraction."""

    name = "SECONDS"

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most

    def describe(self) -> str:
        return f"a number of seconds from {self.least:g} to {self.most:g}"

    def convert(self, value: object, base: Path) -> object:
        # NaN is not in any range.
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise self.refuse(value)
        return float(value)

    def parse(self, text: str, base: Path) -> object:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise self.refuse(text)
        return self.convert(number, base)


class Size(Kind):
    """A number of bytes: 1048576, "1MiB" or "1MB"."""

    name = "SIZE"

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def describe(self) -> str:
        return f'a size from {self.least} to {self.most} bytes, such as 1048576 or "1MiB"'

    def convert(self, value: object, base: Path) -> object:
        if isinstance(value, str):
            found = _SIZE.fullmatch(value.strip())
            unit = UNITS.get(found[2].upper()) if found else None
            if found is None or unit is None:
                raise self.refuse(value)
            size: object = int(found[1]) * unit
        else:
            size = value
        if isinstance(size, bool) or not isinstance(size, int) or not self.least <= size <= self.most:
            raise self.refuse(value)
        return size


class Boolean(Kind):
    """True or false."""

    name = "SWITCH"

    def describe(self) -> str:
        return "true or false"

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, bool):
            raise self.refuse(value)
        return value

    def parse(self, text: str, base: Path) -> object:
        word = text.strip().lower()
        if word not in TRUE + FALSE:
            raise self.refuse(text)
        return word in TRUE


class Choice(Kind):
    """One of a few words, in lower case; options and the environment may write them in upper case, as help does."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.name = "|".join(words)

    def describe(self) -> str:
        return f"one of {', '.join(self.words)}"

    def convert(self, value: object, base: Path) -> object:
        if value not in self.words:
            raise self.refuse(value)
        return value

    def parse(self, text: str, base: Path) -> object:
        return self.convert(text.lower() if text.lower() in self.words else text, base)


class Text(Kind):
    """A string on one line."""

    def __init__(self, most: int = 4096) -> None:
        self.most = most

    def describe(self) -> str:
        return f"a string of 1 to {self.most} characters"

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, str) or not 1 <= len(value) <= self.most or not value.isprintable():
            raise self.refuse(value)
        return value


class TraceAddress(Text):
    """The URL of a trace for browsers, which contains `{trace_id}`."""

    def describe(self) -> str:
        return "a URL that begins with https:// or http:// and contains {trace_id}"

    def convert(self, value: object, base: Path) -> object:
        text = super().convert(value, base)
        if not str(text).startswith(("https://", "http://")) or "{trace_id}" not in str(text):
            raise self.refuse(value)
        return text


class NameList(Kind):
    """A list of words. In a string, they are separated by commas."""

    name = "NAMES"

    def describe(self) -> str:
        return "a list of up to 1000 names"

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, list) or len(value) > 1000:
            raise self.refuse(value)
        for one in value:
            if not isinstance(one, str) or not one:
                raise self.refuse(value)
        return tuple(value)

    def parse(self, text: str, base: Path) -> object:
        return self.convert([one.strip() for one in text.split(",") if one.strip()], base)

    def shown(self, value: object) -> str:
        return json.dumps(list(value)) if isinstance(value, tuple) else "[]"


class FileName(Kind):
    """The path of a file that can be read."""

    name = "FILE"

    def describe(self) -> str:
        return "the path of a file that exists"

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.refuse(value)
        path = base / Path(value).expanduser()
        if not path.is_file():
            raise self.refuse(str(path))
        return path

    def shown(self, value: object) -> str:
        return json.dumps(str(value))


class DirectoryName(FileName):
    """The path of a directory, which is created if it is missing."""

    name = "DIRECTORY"

    def describe(self) -> str:
        return "the path of a directory"

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.refuse(value)
        path = base / Path(value).expanduser()
        if path.exists() and not path.is_dir():
            raise self.refuse(str(path))
        return path


class Address(Text):
    """A string that may be a URL with a password, which is not shown."""

    _PASSWORD: Final = re.compile(r"(://[^/?#:@]*):[^/?#]*@")

    def shown(self, value: object) -> str:
        return json.dumps(self._PASSWORD.sub(r"\1:***@", str(value)))
