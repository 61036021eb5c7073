"""The interface by which a feature folds events into its own rows: schedules, claims, workflows.

A coordinator's store has one table for all features, of rows by key: `cron/nightly`, `claim/0190...`. The part of a
key before the first slash is its kind. Rows are folded by the same pass over the stream as jobs are, and saved with the
same offset in the same transaction, so a row is what the events up to that offset say, in every coordinator, and after
any kill. Decisions of features are made by the order of the stream:

    coordinator A: event "cron.claimed" of a tick --+            +--> fold: the tick is new, A's firing counts
    coordinator B: event "cron.claimed" of a tick --+-> stream --+--> fold: the tick is taken, B's is ignored

A feature is a `FeatureFold`. A fold is a pure function of rows and the event, without clock, randomness and own state.
Anyone with write permission to the events exchange can publish events, so a fold checks `event.user`, which the broker
has verified, and each field may have any value of its JSON type. If a fold raises, its event is skipped. An event may
arrive twice with one id: the second time must change nothing.

A row may have a mark, by which rows are found: pending work is marked, finished work is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec
from mypy_extensions import mypyc_attr

from waybill.ojs.spec.envelope import MAX_ID_LENGTH
from waybill.ojs.spec.events import ReceivedEvent

MAX_KEY_LENGTH: Final = 500
"""Characters: an index of PostgreSQL has room for 2,700 bytes."""

TYPES_REMEMBERED: Final = 200

R = TypeVar("R", bound=msgspec.Struct)


class EventRefused(Exception):
    """A fold has failed because of an event, not of the store: the same event always fails."""


class StoredRow(NamedTuple):
    """A stored row: its JSON and its mark."""

    value: bytes
    mark: str | None


class Rows:
    """The rows for a batch of events: read on demand, written after the batch is folded."""

    def __init__(self, load: Callable[[Sequence[str]], dict[str, StoredRow]]) -> None:
        """`load` returns the existing rows of the given keys."""
        self._load = load
        self._stored: dict[str, StoredRow | None] = {}
        self._decoded: dict[str, msgspec.Struct] = {}
        self._marks: dict[str, str | None] = {}
        self._gone: set[str] = set()
        self.has_failed = False
        """Whether the store could not read a row."""

    def expect(self, keys: Iterable[str]) -> None:
        """Load rows together that will be needed."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._stored]
        if missing:
            self._stored |= dict.fromkeys(missing)
            self.has_failed = True
            self._stored |= self._load(missing)
            self.has_failed = False

    def get(self, key: str, kind: type[R]) -> R | None:
        """Return a row, None if there is none. `put` it to store changes."""
        found = self._decoded.get(key)
        if found is None and key not in self._gone:
            self.expect([key])
            stored = self._stored[key]
            found = None if stored is None else msgspec.json.decode(stored.value, type=kind)
        return found if isinstance(found, kind) else None

    def put(self, key: str, row: msgspec.Struct, mark: str | None = None) -> None:
        """Store a row under a key of at most 500 characters. Raises ValueError for other keys."""
        if not 0 < len(key) <= MAX_KEY_LENGTH or "\0" in key:
            raise ValueError("this key cannot be used for a row")
        self._gone.discard(key)
        self._decoded[key] = row
        self._marks[key] = mark

    def delete(self, key: str) -> None:
        """Delete a row if it exists."""
        self._decoded.pop(key, None)
        self._marks.pop(key, None)
        self._gone.add(key)

    def changes(self) -> tuple[dict[str, StoredRow], set[str]]:
        """Return the rows that were put, and the keys of deleted ones."""
        put = {key: StoredRow(msgspec.json.encode(self._decoded[key]), mark) for key, mark in self._marks.items()}
        return put, self._gone


@mypyc_attr(allow_interpreted_subclasses=True)
class FeatureFold:
    """How a feature folds events. All methods run in the store's thread."""

    types: Collection[str] | None = None
    """The types of events for which `keys` may return rows; None if `keys` decides."""

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        """Return the keys of the rows that an event affects, none if it does not concern this feature.

        It is called for every event of every job, so it checks `event.type` first. A fold may load other rows, too; the
        rows named here are loaded together for many events.
        """
        raise NotImplementedError

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        """Apply an event for which `keys` has returned rows."""
        raise NotImplementedError


class FeatureFolds:
    """The folds of all features, in order."""

    def __init__(self, folds: Sequence[FeatureFold] = ()) -> None:
        self._folds = tuple(folds)
        self._of_type: dict[str, tuple[FeatureFold, ...]] = {}

    def wants(self, event: ReceivedEvent) -> bool:
        """Return whether a feature folds an event, and every store can store its subject."""
        if len(event.subject) > MAX_ID_LENGTH or "\0" in event.subject:
            return False
        # A loop instead of a generator, because every event of every job passes here.
        for fold in self._of_type.get(event.type) or self._that_look_at(event.type):  # noqa: SIM110
            if fold.keys(event):
                return True
        return False

    def _that_look_at(self, event_type: str) -> tuple[FeatureFold, ...]:
        found = self._of_type.get(event_type)
        if found is None:
            found = tuple(fold for fold in self._folds if fold.types is None or event_type in fold.types)
            if len(self._of_type) >= TYPES_REMEMBERED:
                # Others may write events of any type.
                self._of_type.clear()
            self._of_type[event_type] = found
        return found

    def fold_all(self, rows: Rows, events: Sequence[ReceivedEvent]) -> list[str]:
        """Apply events in order; returns the ids of the events that concerned a feature.

        Raises EventRefused for an event on which a fold fails, and the store's errors.
        """
        found = [
            (fold, event, keys)
            for event in events
            for fold in self._that_look_at(event.type)
            if (keys := fold.keys(event))
        ]
        rows.expect(key for _, _, keys in found for key in keys)
        for fold, event, _ in found:
            try:
                fold.fold(rows, event)
            except Exception as error:
                if rows.has_failed:
                    raise
                raise EventRefused(event.id) from error
        return list(dict.fromkeys(event.id for _, event, _ in found))


def kind_of(key: str) -> str:
    """Return the kind of a row."""
    return key.partition("/")[0]
