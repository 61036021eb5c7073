"""Settings of operators, stored as records and cached by each server: schemas, bounds of queues, tenants.

A server reads them when it starts, and again when the stream reports a change. They are few and small.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from waybill.backend.errors import RequestRefused
from waybill.ojs.coordinator.records import MAX_KEY_LENGTH, Record, RecordFold, Records

MOST: Final = 10_000
"""The maximum number of settings of one kind."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The maximum size of all settings of one kind: each server keeps them in memory."""
POLL_SECONDS: Final = 5.0
"""How often to check for changes that another server has folded into a shared database."""

T = TypeVar("T", bound=msgspec.Struct)

_log = logging.getLogger("waybill.backend")


class SettingTable(Generic[T]):
    """The settings of one kind, by name."""

    def __init__(self, records: Records, kind: str, value: type[T]) -> None:
        """`kind` is the prefix of the keys."""
        self.on_read: Callable[[SettingTable[T]], None] | None = None
        """Called after all settings were read."""
        self._records = records
        self._prefix = f"{kind}/"
        self._value = value
        self.known: dict[str, T] = {}
        """The current settings by name."""
        self._raw: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self.known)

    def _fitting(self, name: str) -> str:
        """Return a name, or a hash instead of one that is too long for a key: such a name is not listed as it is."""
        if len(name) <= MAX_KEY_LENGTH - len(self._prefix) and "\0" not in name:
            return name
        return "sha256:" + hashlib.sha256(name.encode(errors="replace")).hexdigest()

    def get(self, name: str) -> T | None:
        """Return a setting, None if it is not set."""
        found = self.known.get(name)
        return self.known.get(self._fitting(name)) if found is None and self.known else found

    def items(self) -> list[tuple[str, T]]:
        """Return all settings, sorted by name."""
        return sorted(self.known.items())

    def created_at(self, name: str) -> str:
        """Return when a setting was created."""
        return self._raw[self._fitting(name)].created_at

    def updated_at(self, name: str) -> str:
        """Return when a setting was changed."""
        return self._raw[self._fitting(name)].updated_at

    async def put(self, name: str, value: T, *, is_new: bool = False, expires_at: str | None = None) -> bool:
        """Store a setting; False if it must be new but exists. Raises RequestRefused for too many, TimeoutError."""
        name = self._fitting(name)
        if name not in self.known and len(self.known) >= MOST:
            raise RequestRefused("conflict", f"The limit of {MOST} is reached.")
        others = sum(len(record.raw) for key, record in self._raw.items() if key != name)
        if others + len(msgspec.json.encode(value)) > MOST_BYTES:
            raise RequestRefused("conflict", f"The limit of {MOST_BYTES} bytes is reached.")
        is_put = await self._records.put(
            self._prefix + name, value, expected=0 if is_new else None, expires_at=expires_at
        )
        await self.read()
        return is_put

    def put_soon(self, name: str, value: T, *, expires_at: str | None = None) -> None:
        """Store a setting: immediately for this server, and soon for the others."""
        name = self._fitting(name)
        self.known[name] = value
        self._records.put_soon(self._prefix + name, value, expires_at=expires_at)

    async def remove(self, name: str) -> bool:
        """Remove a setting; False if there is none. Raises TimeoutError."""
        name = self._fitting(name)
        if name not in self.known:
            return False
        await self._records.remove(self._prefix + name)
        await self.read()
        return True

    async def read(self) -> None:
        """Read all settings."""
        found: dict[str, T] = {}
        raw: dict[str, Record] = {}
        for record in await self._records.list(self._prefix, MOST):
            name = record.key.removeprefix(self._prefix)
            before = self._raw.get(name)
            raw[name] = record
            if before is not None and before.raw == record.raw and name in self.known:
                found[name] = self.known[name]
                continue
            try:
                found[name] = record.read(self._value)
            except msgspec.ValidationError as error:
                _log.warning("this version cannot read the setting %s and ignores it: %s", record.key, error)
        self.known, self._raw = found, raw
        if self.on_read is not None:
            self.on_read(self)


class Settings:
    """The tables of one server."""

    def __init__(self, records: Records, fold: RecordFold) -> None:
        self.records = records
        self._fold = fold
        self._tables: list[SettingTable[msgspec.Struct]] = []
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    def table(self, kind: str, value: type[T]) -> SettingTable[T]:
        """Return the table of a kind. Call this before `start`."""
        made = SettingTable(self.records, kind, value)
        self._tables.append(made)  # type: ignore[arg-type]
        return made

    async def start(self) -> None:
        """Read all, then follow changes."""
        for table in self._tables:
            await table.read()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def on_folded(self) -> None:
        """Called after the view has applied events."""
        if self._fold.changed:
            self._fold.changed.clear()
            self._changed.set()

    async def _follow(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            try:
                for table in self._tables:
                    await table.read()
            except Exception:  # noqa: BLE001 - a database may raise anything
                _log.warning("the settings could not be read, trying again", exc_info=True)
