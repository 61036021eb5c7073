"""Settings of operators, stored as records and cached by each server: schemas, bounds of queues, tenants.

A server reads them when it starts, and again when the stream reports a change. They are few and small.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from waybill.backend.errors import RequestRefused
from waybill.ojs.coordinator.records import MAX_KEY_LENGTH, NOTED, Record, RecordFold, Records
from waybill.ojs.recurring_error import RecurringError

MOST: Final = 10_000
"""The maximum number of settings of one kind."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""The maximum size of all settings of one kind: each server keeps them in memory."""
PAGE: Final = 500
"""How many settings are read before others are served."""
POLL_SECONDS: Final = 5.0
"""How often to check for changes that another server has folded into a shared database, and for expired settings."""

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")

_log = logging.getLogger("waybill.backend")


class SettingTable(Generic[T]):
    """The settings of one kind, by name."""

    def __init__(self, records: Records, kind: str, value: type[T]) -> None:
        """`kind` is the prefix of the keys."""
        self.on_read: Callable[[SettingTable[T]], None] | None = None
        """Called after settings were read, all or some."""
        self.prefix: Final = f"{kind}/"
        self._records = records
        self._value = value
        self.known: dict[str, T] = {}
        """The current settings by name."""
        self.version = 0
        """Grows whenever settings were read."""
        self._raw: dict[str, Record] = {}
        self._size = 0
        self._changed: set[str] = set()
        """The names of settings that were changed here since a read of all began."""
        self._reading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self.known)

    def _fitting(self, name: str) -> str:
        """Return a name, or a hash instead of one that is too long for a key: such a name is not listed as it is."""
        if len(name) <= MAX_KEY_LENGTH - len(self.prefix) and "\0" not in name:
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
        if self._size - self._size_of(name) + len(msgspec.json.encode(value)) > MOST_BYTES:
            raise RequestRefused("conflict", f"The limit of {MOST_BYTES} bytes is reached.")
        is_put = await self._records.put(
            self.prefix + name, value, expected=0 if is_new else None, expires_at=expires_at
        )
        await self.read_some([name])
        return is_put

    def put_soon(self, name: str, value: T, *, expires_at: str | None = None) -> None:
        """Store a setting: immediately for this server, and soon for the others."""
        name = self._fitting(name)
        self.known[name] = value
        self._changed.add(name)
        self._records.put_soon(self.prefix + name, value, expires_at=expires_at)

    async def remove(self, name: str) -> bool:
        """Remove a setting; False if there is none. Raises TimeoutError."""
        name = self._fitting(name)
        if name not in self.known:
            return False
        await self._records.remove(self.prefix + name)
        await self.read_some([name])
        return True

    async def read(self) -> None:
        """Read all settings, in portions."""
        found: dict[str, T] = {}
        raw: dict[str, Record] = {}
        self._changed.clear()
        async for page in self._records.pages(self.prefix, PAGE):
            for record in page:
                self._take(record, found, raw)
        for name in self._changed:
            _copy(name, self.known, found)
            _copy(name, self._raw, raw)
        self._replace(found, raw)

    async def read_some(self, names: Iterable[str]) -> None:
        """Read the settings with these names, of which some may have been removed."""
        async with self._reading:
            records = {name: await self._records.get(self.prefix + name) for name in names}
            # In place: a copy of all would make many changes quadratic.
            for name, record in records.items():
                self._size -= self._size_of(name)
                if record is not None:
                    self._take(record, self.known, self._raw)
                else:
                    self.known.pop(name, None)
                    self._raw.pop(name, None)
                self._size += self._size_of(name)
            self._changed.update(records)
            self._was_read()

    def _size_of(self, name: str) -> int:
        found = self._raw.get(name)
        return 0 if found is None else len(found.raw)

    def _take(self, record: Record, found: dict[str, T], raw: dict[str, Record]) -> None:
        name = record.key.removeprefix(self.prefix)
        before = self._raw.get(name)
        raw[name] = record
        if before is not None and before.raw == record.raw and name in self.known:
            found[name] = self.known[name]
            return
        found.pop(name, None)
        try:
            found[name] = record.read(self._value)
        except msgspec.ValidationError as error:
            _log.warning("this version cannot read the setting %s and ignores it: %s", record.key, error)

    def _replace(self, found: dict[str, T], raw: dict[str, Record]) -> None:
        self.known, self._raw = found, raw
        self._size = sum(len(record.raw) for record in raw.values())
        self._was_read()

    def _was_read(self) -> None:
        self.version += 1
        if self.on_read is not None:
            self.on_read(self)


def _copy(name: str, source: Mapping[str, V], target: dict[str, V]) -> None:
    """Make `target` have the same for a name as `source`, or nothing if that has nothing."""
    if name in source:
        target[name] = source[name]
    else:
        target.pop(name, None)


class Settings:
    """The tables of one server."""

    def __init__(self, records: Records, fold: RecordFold) -> None:
        self.records = records
        self._fold = fold
        self._tables: list[SettingTable[msgspec.Struct]] = []
        self._prefixes: tuple[str, ...] = ()
        self._changed = asyncio.Event()
        self._keys: set[str] = set()
        """The keys of settings that have changed and are to be read."""
        self._read_at = 0.0
        """When all were read last, by the clock of the loop."""
        self._following: asyncio.Task[None] | None = None

    def table(self, kind: str, value: type[T]) -> SettingTable[T]:
        """Return the table of a kind. Call this before `start`."""
        made = SettingTable(self.records, kind, value)
        self._tables.append(made)  # type: ignore[arg-type]
        self._prefixes += (made.prefix,)
        return made

    async def start(self) -> None:
        """Read all, then follow changes."""
        await self._read()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def close(self) -> None:
        """Stop following changes."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def on_folded(self) -> None:
        """Called after the view has applied events."""
        changed = self._fold.changed
        if not changed:
            return
        self._keys.update(key for key in changed if key.startswith(self._prefixes))
        if len(changed) >= NOTED:
            # There may be more.
            self._read_at = float("-inf")
            self._changed.set()
        elif self._keys:
            self._changed.set()
        changed.clear()

    async def _follow(self) -> None:
        trouble = RecurringError(_log, "the settings cannot be read, trying again")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._read_at + POLL_SECONDS):
                    await self._changed.wait()
            self._changed.clear()
            keys, self._keys = self._keys, set()
            try:
                if asyncio.get_running_loop().time() >= self._read_at + POLL_SECONDS:
                    await self._read()
                else:
                    await self._read_some(keys)
                trouble.worked()
            except Exception as error:  # noqa: BLE001 - a database may raise anything
                trouble.failed(error)
                self._read_at = float("-inf")
                await asyncio.sleep(POLL_SECONDS)

    async def _read(self) -> None:
        self._read_at = asyncio.get_running_loop().time()
        for table in self._tables:
            await table.read()

    async def _read_some(self, keys: Collection[str]) -> None:
        for table in self._tables:
            names = [key.removeprefix(table.prefix) for key in keys if key.startswith(table.prefix)]
            if names:
                await table.read_some(names)
