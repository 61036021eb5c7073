"""The setting `users`: the users of a new data directory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from waybill.settings.kinds import Kind, Refused

USERS_MAX: Final = 1000
NAME_BYTES: Final = 255
KEYS: Final = ("password", "password_file", "permissions", "tags")
PATTERNS: Final = ("configure", "write", "read")
TAGS: Final = ("administrator", "monitoring", "policymaker", "management", "impersonator")


@dataclass(frozen=True)
class ConfiguredUser:
    """A user of a new data directory. `permissions`: the patterns for configure, write and read, by virtual host."""

    name: str
    password: str = field(repr=False)
    tags: tuple[str, ...]
    permissions: dict[str, tuple[str, str, str]]


class Users(Kind):
    """A table of users by name. As a string, it is JSON."""

    name = "JSON"

    def describe(self) -> str:
        return f"a table of at most {USERS_MAX} users, each with a password or a password_file, tags and permissions"

    def parse(self, text: str, base: Path) -> object:
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError):
            # The text contains passwords: do not repeat it.
            raise Refused(f"must be {self.describe()}, as JSON") from None
        return self.convert(value, base)

    def convert(self, value: object, base: Path) -> object:
        if not isinstance(value, dict) or len(value) > USERS_MAX:
            raise Refused(f"must be {self.describe()}")
        return tuple(_user(name, table, base) for name, table in value.items())

    def shown(self, value: object) -> str:
        users = value if isinstance(value, tuple) else ()
        tables = []
        for user in users:
            rights = ", ".join(
                f"{json.dumps(name)} = {{ "
                + ", ".join(f"{key} = {json.dumps(one)}" for key, one in zip(PATTERNS, patterns, strict=True))
                + " }"
                for name, patterns in user.permissions.items()
            )
            parts = f'password = "***", tags = {json.dumps(list(user.tags))}, permissions = {{ {rights} }}'
            tables.append(f"{json.dumps(user.name)} = {{ {parts} }}")
        return f"{{ {', '.join(tables)} }}" if tables else "{}"


def _user(name: str, table: object, base: Path) -> ConfiguredUser:
    """Read the table of one user. Raises Refused."""
    if not name or len(name.encode("utf-8", "replace")) > NAME_BYTES:
        raise Refused(f"has a user whose name is not 1 to {NAME_BYTES} bytes long")
    if not isinstance(table, dict):
        raise Refused(f"has {name!r}, which is not a table with a password or a password_file")
    for key in table:
        if key not in KEYS:
            raise Refused(f"has {name}.{key}, which is not one of {', '.join(KEYS)}")
    tags = table.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) and tag for tag in tags):
        raise Refused(f"has {name}.tags, which must be a list of tags such as {', '.join(TAGS)}")
    permissions = table.get("permissions", {"/": {}, "/ojs": {}})
    if not isinstance(permissions, dict):
        raise Refused(f"has {name}.permissions, which must be a table of virtual hosts")
    rights = {host: _patterns(name, host, one) for host, one in permissions.items()}
    return ConfiguredUser(name, _password(name, table, base), tuple(tags), rights)


def _password(name: str, table: dict[str, object], base: Path) -> str:
    password, file = table.get("password"), table.get("password_file")
    if (password is None) == (file is None):
        raise Refused(f"has {name}, which needs a password or a password_file, and not both")
    if isinstance(file, str) and file:
        try:
            password = (base / Path(file).expanduser()).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeError) as error:
            raise Refused(f"has {name}.password_file, which cannot be read: {error}") from None
    if not isinstance(password, str) or not password:
        raise Refused(f"has {name}, whose password is empty or not a string")
    return password


def _patterns(user: str, host: str, table: object) -> tuple[str, str, str]:
    """Return the patterns for one virtual host; a missing pattern allows everything."""
    if not isinstance(table, dict) or any(key not in PATTERNS for key in table):
        raise Refused(f"has {user}.permissions.{host!r}, which must be a table of configure, write and read")
    found = [table.get(key, ".*") for key in PATTERNS]
    if not all(isinstance(pattern, str) for pattern in found):
        raise Refused(f"has {user}.permissions.{host!r}, whose patterns must be strings")
    configure, write, read = map(str, found)
    return configure, write, read
