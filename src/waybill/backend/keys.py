"""API keys with roles. A key is shown once, when it is created; only its hash is stored.

Keys have 256 random bits, so a plain hash is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from waybill.backend.errors import RequestRefused

Role = Literal["read", "operate", "admin"]

RANKS: Final[dict[str, int]] = {"read": 0, "operate": 1, "admin": 2}
PREFIX: Final = "wb_"
TENANT: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,47}")
"""No period: queues of a tenant begin with its name and a period, so names must not overlap."""


class Key(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored key: `hash` is the SHA-256 of its text, in hexadecimal.

    A tenant's key only has access to what belongs to the tenant: see `tenancy`.
    """

    name: str
    role: Role
    hash: str
    tenant: str = ""
    request_limit: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many requests the key may make in a window, 0 for as many as the server says: see `request_limits`."""


class KeyFile(msgspec.Struct):
    """The JSON of a key file."""

    keys: list[Key] = msgspec.field(default_factory=list)


class InvalidKeyFile(ValueError):
    """The key file is invalid or has no keys."""


class KeyRing:
    """The keys of a server."""

    def __init__(self, keys: list[Key]) -> None:
        """Only holders of these keys have access."""
        self._keys = keys

    def check(self, headers: Mapping[str, str], role: str) -> Key:
        """Return the key of a request. Raises RequestRefused if it is missing, unknown, or lacks the role."""
        shown = _shown(headers)
        if not shown:
            raise RequestRefused("unauthenticated", "This server requires an API key.")
        key = self._known(shown)
        if key is None:
            raise RequestRefused("unauthenticated", "The API key is unknown.")
        if RANKS[key.role] < RANKS[role]:
            text = f"The key {key.name!r} has the role {key.role}; this request needs {role}."
            raise RequestRefused("permission_denied", text)
        return key

    def request_limits(self) -> dict[str, int]:
        """Return the limits of requests of the keys that have their own, by name."""
        return {key.name: key.request_limit for key in self._keys if key.request_limit}

    def find(self, headers: Mapping[str, str]) -> Key | None:
        """Return the key of a request, None if it has no known one."""
        shown = _shown(headers)
        return self._known(shown) if shown else None

    def _known(self, shown: str) -> Key | None:
        digest = hash_of(shown)
        # Compare with all keys, so that the time reveals nothing.
        found = [key for key in self._keys if hmac.compare_digest(key.hash, digest)]
        return found[0] if found else None


def _shown(headers: Mapping[str, str]) -> str:
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def hash_of(key: str) -> str:
    """Return the stored form of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).hexdigest()


def read_keys(path: Path) -> KeyRing:
    """Read a key file. Raises InvalidKeyFile, OSError."""
    found = _read(path)
    if not found.keys:
        raise InvalidKeyFile(f"{path} has no keys. Add one: `waybill key add {path} NAME`")
    return KeyRing(found.keys)


def add_key(path: Path, name: str, role: Role, tenant: str = "", request_limit: int = 0) -> str:
    """Create a key, and store its hash in a file that only its owner can read; returns the key.

    A key of this name is replaced. Raises InvalidKeyFile, OSError.
    """
    check_tenant(tenant)
    found = _read(path) if path.exists() else KeyFile()
    key = PREFIX + secrets.token_urlsafe(32)
    made = Key(name, role, hash_of(key), tenant, request_limit)
    found.keys = [*(one for one in found.keys if one.name != name), made]
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    draft.replace(path)
    return key


def check_tenant(tenant: str) -> None:
    """Raise InvalidKeyFile for an invalid tenant name; empty means no tenant."""
    if tenant and TENANT.fullmatch(tenant) is None:
        raise InvalidKeyFile(
            f"{tenant!r} is not a valid tenant name: use at most 48 lower-case letters, digits and '-'"
        )


def _read(path: Path) -> KeyFile:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=KeyFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidKeyFile(f"{path} is not a key file: {error}") from None
    for key in found.keys:
        check_tenant(key.tenant)
    return found
