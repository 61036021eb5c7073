"""Records: values by key, the same in every coordinator's view, for features without their own fold.

    put       the value counts from its place in the stream on; with an expected version only if it still is the version
    remove    it is gone
    expire    it is treated as removed once its time is over; sweeps remove such records

Keys and values are up to the writer; only events of trusted users count. A key is a kind, a slash and a name; its row
is `record-{key}`. A record that expires is marked with the hour of its expiry.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec

from waybill.ojs.coordinator.feature_fold import FeatureFold, Rows
from waybill.ojs.coordinator.job_view import JobView
from waybill.ojs.observe.event_writer import EventWriter
from waybill.ojs.spec.envelope import MAX_ID_LENGTH
from waybill.ojs.spec.events import ReceivedEvent, ViewMarked
from waybill.ojs.spec.identifiers import new_id
from waybill.ojs.spec.nesting import MAX_NESTING, is_nested_deeper
from waybill.ojs.spec.record_events import RecordPut, RecordRemoved
from waybill.ojs.spec.timestamps import format_timestamp

RECORD: Final = "record-"
EXPIRES: Final = "record-expires/"
"""The mark of rows that expire is this prefix and the first characters of the time."""
HOUR: Final = 13
"""The number of characters of a time up to its hour."""
NOTED: Final = 1000
SWEPT_AT_ONCE: Final = 500
SWEPT_HOURS: Final = 48
"""How far back a server looks for expired records when it starts."""
MAX_KEY_LENGTH: Final = MAX_ID_LENGTH
MAX_VALUE_NESTING: Final = MAX_NESTING - 8
"""The event around it has levels, too."""

_TYPES: Final = frozenset({"record.put", "record.removed"})

T = TypeVar("T", bound=msgspec.Struct)


class RecordRow(msgspec.Struct, omit_defaults=True):
    """A record. `by` is the id of the event that wrote it."""

    value: msgspec.Raw
    version: int
    by: str
    created_at: str
    updated_at: str
    expires_at: str | None = None


class RecordFold(FeatureFold):
    """Folds records."""

    types = _TYPES

    def __init__(self, is_trusted: Callable[[str | None], bool]) -> None:
        """`is_trusted` returns whether a user may be a coordinator's."""
        self._is_trusted = is_trusted
        self.changed: set[str] = set()
        """The keys of folded records that do not expire, until a reader removes them."""

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the key of a record's row."""
        return (RECORD + event.subject,) if event.type in _TYPES and self._is_trusted(event.user) else ()

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Apply an event to a record."""
        key = RECORD + event.subject
        row = rows.get(key, RecordRow)
        if row is not None and row.by == event.id:
            return
        data = event.data
        is_there = row is not None and not _is_over(row, event.time)
        expected = data.get("expected")
        if event.type == "record.removed":
            if row is not None and expected in {None, row.version}:
                rows.delete(key)
                self._note(event.subject, row)
            return
        if isinstance(expected, int) and expected != (row.version if row is not None and is_there else 0):
            return
        expires_at = data.get("expires_at")
        made = RecordRow(
            value=msgspec.Raw(msgspec.json.encode(data.get("value"))),
            version=1 if row is None else row.version + 1,
            by=event.id,
            created_at=row.created_at if row is not None and is_there else event.time,
            updated_at=event.time,
            expires_at=expires_at if isinstance(expires_at, str) and expires_at.isascii() else None,
        )
        rows.put(key, made, None if made.expires_at is None else EXPIRES + made.expires_at[:HOUR])
        self._note(event.subject, made)

    def _note(self, key: str, row: RecordRow) -> None:
        if row.expires_at is None and len(self.changed) < NOTED:
            self.changed.add(key)


class Record(msgspec.Struct):
    """A record as read: its key, its value as JSON, and its version."""

    key: str
    raw: bytes
    version: int
    created_at: str
    updated_at: str

    def read(self, kind: type[T]) -> T:
        """Return the value. Raises msgspec.ValidationError if it has another type."""
        return msgspec.json.decode(self.raw, type=kind)


class Records:
    """Reads and writes records."""

    def __init__(self, view: JobView, events: EventWriter) -> None:
        """`events` must write as a user whom coordinators trust."""
        self._view = view
        self._events = events

    async def get(self, key: str) -> Record | None:
        """Return a record, None if there is none."""
        row = await self._view.row(RECORD + key, RecordRow)
        return None if row is None or _is_over(row, _now()) else _record(RECORD + key, row)

    async def list(self, prefix: str, limit: int, after: str = "") -> list[Record]:
        """Return the records whose keys begin with `prefix`, ordered by key, after the key `after`."""
        found = await self._view.listed(RECORD + prefix, RecordRow, limit, RECORD + after if after else "")
        now = _now()
        return [_record(key, row) for key, row in found if not _is_over(row, now)]

    async def pages(self, prefix: str, size: int) -> AsyncGenerator[Sequence[Record]]:
        """Yield all records whose keys begin with `prefix`, ordered by key, from at most `size` rows at a time."""
        after = ""
        while found := await self._view.listed(RECORD + prefix, RecordRow, size, after):
            after = found[-1][0]
            now = _now()
            yield [_record(key, row) for key, row in found if not _is_over(row, now)]
            if len(found) < size:
                return

    async def sweep(self, since: datetime, until: datetime) -> None:
        """Remove records that have expired in these hours, except in the last of them."""
        hour = since.replace(minute=0, second=0, microsecond=0)
        while hour + timedelta(hours=1) <= until:
            mark = EXPIRES + format_timestamp(hour)[:HOUR]
            before: list[str] = []
            while found := await self._view.marked(mark, RecordRow, SWEPT_AT_ONCE):
                keys = [key for key, _ in found]
                if keys == before:
                    # Coordinators do not trust this server.
                    return
                before = keys
                for key, row in found:
                    self._events.record(key.removeprefix(RECORD), RecordRemoved(expected=row.version))
                event_id = f"evt_{new_id()}"
                await self._view.folded(event_id, functools.partial(self._mark, event_id))
            hour += timedelta(hours=1)

    def _mark(self, event_id: str) -> None:
        self._events.record(event_id, ViewMarked(), event_id=event_id)

    async def put(
        self, key: str, value: msgspec.Struct, *, expected: int | None = None, expires_at: str | None = None
    ) -> bool:
        """Write a record; True once every later reader sees it, False if `expected` was wrong.

        Raises TimeoutError, and ValueError if the key is too long or the value is nested too deeply.
        """
        if not 0 < len(key) <= MAX_KEY_LENGTH or "\0" in key:
            raise ValueError("this key cannot be used for a record")
        encoded = msgspec.json.encode(value)
        if is_nested_deeper(encoded, MAX_VALUE_NESTING):
            raise ValueError("the record is nested too deeply: no coordinator would read its event")
        event_id = f"evt_{new_id()}"
        data = RecordPut(value=msgspec.Raw(encoded), expected=expected, expires_at=expires_at)
        await self._view.folded(event_id, lambda: self._events.record(key, data, event_id=event_id))
        if expected is None:
            return True
        row = await self._view.row(RECORD + key, RecordRow)
        return row is not None and row.by == event_id

    def put_soon(self, key: str, value: msgspec.Struct, *, expires_at: str | None = None) -> None:
        """Write a record without waiting: it is lost if this process dies within moments."""
        data = RecordPut(value=msgspec.Raw(msgspec.json.encode(value)), expires_at=expires_at)
        self._events.record(key, data)

    def remove_soon(self, key: str) -> None:
        """Remove a record without waiting."""
        self._events.record(key, RecordRemoved())

    async def remove(self, key: str) -> None:
        """Remove a record. Raises TimeoutError."""
        event_id = f"evt_{new_id()}"
        await self._view.folded(event_id, lambda: self._events.record(key, RecordRemoved(), event_id=event_id))


def _record(key: str, row: RecordRow) -> Record:
    return Record(key.removeprefix(RECORD), bytes(row.value), row.version, row.created_at, row.updated_at)


def _is_over(row: RecordRow, now: str) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def _now() -> str:
    return format_timestamp(datetime.now(UTC))
