"""The configuration: the value of each setting, from the source with the highest precedence.

option  >  environment  >  file  >  default
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from waybill.settings.sources import (
    BY_NAME,
    DEFAULT,
    OPTION,
    InvalidConfiguration,
    Problem,
    Reading,
    Value,
    read_environment,
    read_file,
)
from waybill.settings.users import ConfiguredUser

T = TypeVar("T")

CONFIG_VARIABLE: Final = "WAYBILL_CONFIG"
FILE_NAME: Final = "waybill.toml"


class Configuration:
    """The values of all settings. `file` is the configuration file, None if there is none."""

    def __init__(self, values: dict[str, Value], file: Path | None) -> None:
        self._values = values
        self.file = file

    def __getitem__(self, name: str) -> Value:
        """Return the value of a setting with its source. `name` is its name in the file: `amqp.port`."""
        return self._values[name]

    def replaced(self, name: str, value: Value) -> Configuration:
        """Return a copy with another value of one setting."""
        return Configuration({**self._values, name: value}, self.file)

    def _get(self, name: str, kind: type[T]) -> T | None:
        value = self._values[name].value
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is not of type {kind.__name__}")
        return value

    def integer(self, name: str) -> int:
        return self._get(name, int) or 0

    def integer_or_none(self, name: str) -> int | None:
        return self._get(name, int)

    def text(self, name: str) -> str:
        return self._get(name, str) or ""

    def text_or_none(self, name: str) -> str | None:
        return self._get(name, str)

    def is_on(self, name: str) -> bool:
        return bool(self._get(name, bool))

    def path(self, name: str) -> Path | None:
        return self._get(name, Path)

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(map(str, self._get(name, tuple) or ()))

    def limits(self) -> dict[str, float]:
        """Return the settings in the table `limits`, without the name of the table."""
        found = {}
        for name, one in self._values.items():
            if name.startswith("limits.") and isinstance(one.value, int | float):
                found[name.removeprefix("limits.")] = one.value
        return found

    @property
    def users(self) -> tuple[ConfiguredUser, ...]:
        return tuple(user for user in self._get("users", tuple) or () if isinstance(user, ConfiguredUser))

    @property
    def data_dir(self) -> Path | None:
        """The data directory; None if everything is kept in memory."""
        return None if self.is_on("memory") else self.path("data_dir") or default_data_dir()


def default_data_dir() -> Path:
    """Return the default data directory of a user (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "waybill"


def default_file() -> Path:
    """Return the path of the file that is read by default, if it exists."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "waybill" / FILE_NAME


def load(
    file: Path | None = None,
    options: Mapping[str, tuple[object, str]] | None = None,
    defaults: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Configuration:
    """Read all sources. Raises InvalidConfiguration with all errors.

    `file`: the TOML file. None means the one that WAYBILL_CONFIG names, then the default file if it exists. `options`:
    the values of command-line options by setting, each with the name of its option. `defaults`: default values of the
    command, by setting.
    """
    environment = os.environ if environment is None else environment
    reading = Reading()
    for name, value in (defaults or {}).items():
        reading.take(BY_NAME[name], value, DEFAULT, "default")
    if file is None and environment.get(CONFIG_VARIABLE):
        file = Path(environment[CONFIG_VARIABLE])
    if file is None and default_file().is_file():
        file = default_file()
    if file is not None:
        read_file(reading, file)
    read_environment(reading, environment)
    for name, (value, place) in (options or {}).items():
        reading.take(BY_NAME[name], value, OPTION, place)
    if not reading.problems:
        reading.problems += _conflicts(reading)
    if reading.problems:
        raise InvalidConfiguration(reading.problems)
    return Configuration(reading.values, file)


def _conflicts(reading: Reading) -> list[Problem]:
    """Return the problems of settings that contradict each other."""
    values = reading.values
    problems = []
    memory, directory = values["memory"], values["data_dir"]
    if memory.value and directory.value is not None:
        if memory.rank == directory.rank:
            problems.append(Problem(memory.place, f"memory and data_dir ({directory.place}) cannot be combined"))
        elif memory.rank > directory.rank:
            reading.take(BY_NAME["data_dir"], None, DEFAULT, "default")
        else:
            reading.take(BY_NAME["memory"], False, DEFAULT, "default")  # noqa: FBT003 - the value of a switch
    for table in ("amqps", "management", "http"):
        certificate, key = values[f"{table}.certificate"], values[f"{table}.key"]
        if (certificate.value is None) != (key.value is None):
            place = key.place if certificate.value is None else certificate.place
            problems.append(Problem(place, f"{table}.certificate and {table}.key must be set together"))
    needs = [
        ("amqps.ca", "amqps.certificate"),
        ("amqps.verify_peer", "amqps.ca"),
        ("http.codec_keys", "keys"),
    ]
    problems += [
        Problem(values[name].place, f"{name} needs {other}")
        for name, other in needs
        if values[name].value and values[other].value is None
    ]
    return problems


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
