"""The sources of values: a TOML file, the environment, options. Each value has its origin."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from waybill.settings.kinds import Refused
from waybill.settings.setting import PREFIX, Setting
from waybill.settings.table import SETTINGS

DEFAULT: Final = 0
FILE: Final = 1
ENVIRONMENT: Final = 2
OPTION: Final = 3
FILE_SIZE_MAX: Final = 4 << 20

BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
OTHER_VARIABLES: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("API_KEY", "CATALOG", "COMPILE", "CONFIG", "CONTEXT", "DESCRIBE_JOBS"),
        *("MANAGEMENT", "STATE", "TABLE_FORMAT", "URI", "URL"),
    )
)
"""Variables of other parts of Waybill."""
# Kubernetes sets these in every pod for a service named `waybill` or `waybill-...`.
_KUBERNETES_VARIABLE: Final = re.compile(rf"{PREFIX}(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?)")
_HEADER: Final = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY: Final = re.compile(r"\s*([\w.\"'-]+)\s*=")


@dataclass(frozen=True)
class Value:
    """A value, the precedence of its source, and its origin: `waybill.toml:3`, `WAYBILL_MEMORY`."""

    value: object
    rank: int
    place: str


@dataclass(frozen=True)
class Problem:
    """An error and its place."""

    place: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}"


class InvalidConfiguration(Exception):
    """The errors of all sources, one a line."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Reading:
    """Collects the values of sources; a later source overrides earlier ones."""

    def __init__(self) -> None:
        self.values = {setting.name: Value(setting.default, DEFAULT, "default") for setting in SETTINGS}
        self.problems: list[Problem] = []

    def take(self, setting: Setting, value: object, rank: int, place: str) -> None:
        self.values[setting.name] = Value(value, rank, place)

    def wrong(self, place: str, text: str) -> None:
        self.problems.append(Problem(place, text))


# --- the file ---


def read_file(reading: Reading, path: Path) -> None:
    """Read a TOML file."""
    try:
        with path.open("rb") as file:
            octets = file.read(FILE_SIZE_MAX + 1)
        if len(octets) > FILE_SIZE_MAX:
            reading.wrong(str(path), f"is larger than {FILE_SIZE_MAX} bytes")
            return
        text = octets.decode()
        document = tomllib.loads(text)
    except OSError as error:
        reading.wrong(str(path), error.strerror or str(error))
        return
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        hint = ". A path with backslashes stands in single quotes" if b"\\" in octets else ""
        reading.wrong(str(path), f"is not TOML: {error}{hint}")
        return
    lines = _lines(text)
    for name, value in _flattened(document):
        line = lines.get(name) or lines.get(name.rpartition(".")[0])
        place = f"{path}:{line}" if line else str(path)
        setting = BY_NAME.get(name)
        if setting is None:
            reading.wrong(place, f"there is no setting {name}{_suggestion(name, BY_NAME)}")
            continue
        try:
            reading.take(setting, setting.kind.convert(value, path.parent), FILE, place)
        except Refused as refused:
            reading.wrong(place, f"{name} {refused}")


def _flattened(document: Mapping[str, object], table: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values with their full names. A table that is itself a setting (`users`) is one value."""
    for key, value in document.items():
        name = f"{table}{key}"
        if isinstance(value, dict) and name not in BY_NAME and not table:
            yield from _flattened(value, f"{name}.")
        else:
            yield name, value


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key and table. Keys of nested or inline tables are not found."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line):
            table = header[1].strip() + "."
            name = table.partition(".")[0]
            found.setdefault(name, number)
        elif key := _KEY.match(line):
            found.setdefault(table + key[1], number)
    return found


# --- the environment ---


def read_environment(reading: Reading, environment: Mapping[str, str]) -> None:
    """Read the variables `WAYBILL_...`. Empty ones are ignored."""
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not text or variable in OTHER_VARIABLES:
            continue
        if _KUBERNETES_VARIABLE.fullmatch(variable) or (variable.endswith("_PORT") and "://" in text):
            continue
        setting = BY_VARIABLE.get(variable)
        if setting is None:
            reading.wrong(variable, f"there is no such setting{_suggestion(variable, BY_VARIABLE)}")
            continue
        try:
            reading.take(setting, setting.kind.parse(text, Path()), ENVIRONMENT, variable)
        except Refused as refused:
            reading.wrong(variable, f"{setting.name} {refused}")


def _suggestion(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else ""
