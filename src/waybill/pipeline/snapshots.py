"""Snapshots: versions of all silver and gold tables, which share unchanged months.

    DIR/parts/00000007/silver/jobs/month=2026-03/*.parquet      written by snapshot 7, and never changed
    DIR/snapshots/00000009/silver/jobs/month=2026-03            a link to that month, which snapshot 9 did not change
    DIR/snapshots/00000009/snapshot.json                        its content, and what it replaces of its predecessor
    DIR/current                                                 a link to the snapshot to read
    DIR/silver/jobs, DIR/gold/activity, ...                     links into `current`

The tables of a small history are recomputed: its snapshots have whole tables, without months and parts.

A new snapshot is made beside the others. Moving `current` publishes all its tables in one step. Files of a crash have a
higher number than `current`, and are removed before the next snapshot. The last few snapshots are kept for readers.
"""

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from waybill.pipeline.file_lists import LIST, check_list, write_list
from waybill.pipeline.listing import names_in, numbers_in
from waybill.pipeline.parts import file_name, month_of, part_of_file
from waybill.pipeline.tables import Table

VERSIONS_KEPT: Final = 5
"""The number of snapshots to keep, including the current one."""
_FORMAT: Final = 2
# A snapshot of whole tables, which cannot be updated: see `Snapshots.whole`.
_WHOLE: Final = 0
# Snapshots of the first format have no rollups.
_FORMATS: Final = (1, _FORMAT)
_DIGITS: Final = 8
_OWN_DIGITS: Final = 16
_ABOUT: Final = "snapshot.json"
_CURRENT: Final = "current"
_MONTH: Final = "month="


@dataclass(frozen=True)
class Contents:
    """The content of a snapshot: events up to `batch`, with `objectives`; gold before the hour `closed` is final."""

    batch: int = -1
    objectives: Mapping[str, int] = field(default_factory=dict)
    closed: int | None = None


class _About(msgspec.Struct):
    """The file that describes a snapshot."""

    format: int
    contents: Contents
    replaced: list[str] = []


_about_decoder: Final = msgspec.json.Decoder(_About)


@dataclass(frozen=True)
class Snapshot:
    """One version of all tables. `replaced`: paths of its predecessor that it lacks, relative to the data directory."""

    directory: Path
    number: int
    contents: Contents
    replaced: tuple[str, ...]
    has_rollups: bool = True
    _checked: set[Path] = field(default_factory=set, compare=False, repr=False)
    """Months whose files are all there."""

    @property
    def place(self) -> Path:
        return self.directory / "snapshots" / _text(self.number)

    def months(self, table: Table) -> list[str]:
        place = self.place / table.name
        names = names_in(place) if place.is_dir() else []
        return sorted(name.removeprefix(_MONTH) for name in names if name.startswith(_MONTH))

    def parts(self, table: Table, month: str) -> dict[int, list[Path]]:
        """The files of a month by their parts. Raises DamagedFileError if one is lost."""
        place = self.place / table.name / f"{_MONTH}{month}"
        if place not in self._checked and (place.is_symlink() or place.is_dir()):
            check_list(place)
            self._checked.add(place)
        return _by_part(place) if place.is_dir() else {}

    def files(self, table: Table, parts: Iterable[int]) -> list[Path]:
        """The files of some parts."""
        files = []
        for month, wanted in _by_month(parts).items():
            there = self.parts(table, month)
            files += [file for part in wanted for file in there.get(part, ())]
        return files

    def all_parts(self, table: Table, first: int = 0) -> list[int]:
        """The numbers of all parts from `first` on."""
        months = [month for month in self.months(table) if first <= 0 or month >= month_of(first)]
        return sorted(part for month in months for part in self.parts(table, month) if part >= first)

    def loose(self, directory: str) -> list[Path]:
        """The files of a directory that is not a table, by name."""
        place = self.place / directory
        return sorted(place.iterdir()) if place.is_dir() else []


class Draft:
    """A new snapshot: it has the content of its base until it is changed."""

    def __init__(self, directory: Path, number: int, base: Snapshot | None) -> None:
        self._directory = directory
        self._number = number
        self._base = base
        self._places: dict[tuple[str, str], Path] = {}
        self._loose: dict[str, dict[str, Path]] = {}
        self._replaced: list[str] = []
        # No file has a name of an earlier one, so copies elsewhere are told apart by their names.
        self._own = uuid.uuid4().hex[:_OWN_DIGITS]
        self.scratch = directory / "parts" / _text(number) / ".scratch"
        self.scratch.mkdir(parents=True)

    def replace(self, table: Table, parts: Iterable[int], written: Path | None) -> None:
        """Replace parts by the files in `written`, in directories such as `number=983520`."""
        for month, wanted in _by_month(parts).items():
            place = self._month(table, month)
            there = _by_part(place)
            for part in wanted:
                for old in there.get(part, ()):
                    old.unlink()
                fresh = sorted((written / f"number={part}").glob("*.parquet")) if written is not None else []
                for number, file in enumerate(fresh):
                    file.rename(place / file_name(part, number, self._own))

    def drop(self, table: Table, parts: Iterable[int]) -> None:
        self.replace(table, parts, None)

    def put(self, directory: str, name: str) -> Path:
        """Where to write a file of a directory that is not a table; it replaces the one in the base."""
        place = self._directory / "parts" / _text(self._number) / directory
        place.mkdir(parents=True, exist_ok=True)
        self.remove(directory, name)
        self._entries(directory)[name] = place / name
        return place / name

    def there(self, directory: str, name: str) -> Path | None:
        """The current file of a directory that is not a table."""
        return self._entries(directory).get(name)

    def remove(self, directory: str, name: str) -> None:
        """Remove a file of the base."""
        old = self._entries(directory).pop(name, None)
        if old is not None and (self._directory / "parts" / _text(self._number)) not in old.parents:
            self._replaced.append(str(old.relative_to(self._directory)))

    def files(self, table: Table, parts: Iterable[int]) -> list[Path]:
        """The current files of some parts."""
        found = []
        for month, wanted in _by_month(parts).items():
            place = self._places.get((table.name, month))
            if place is not None:
                there = _by_part(place)
                found += [file for part in wanted for file in there.get(part, ())]
            elif self._base is not None:
                found += self._base.files(table, wanted)
        return found

    def finish(self, contents: Contents, tables: Iterable[Table], *, replaced: Iterable[str] = ()) -> Snapshot:
        """Complete the snapshot, without publishing it. `replaced`: further paths of snapshots before its base."""
        shutil.rmtree(self.scratch)
        self._replaced += replaced
        snapshot = Snapshot(self._directory, self._number, contents, tuple(self._replaced))
        if self._base is not None:
            for directory in ("index", "workers"):
                self._entries(directory)
        for table in tables:
            place = snapshot.place / table.name
            place.mkdir(parents=True)
            kept = set(self._base.months(table)) if self._base is not None else set()
            for month in kept - {month for name, month in self._places if name == table.name}:
                _link(_real(snapshot.directory, self._base, table, month), place / f"{_MONTH}{month}")
        for (name, month), written in self._places.items():
            if any(written.iterdir()):
                write_list(written, {-1: written.iterdir()})
                _link(written, snapshot.place / name / f"{_MONTH}{month}")
            else:
                written.rmdir()
        for directory, entries in self._loose.items():
            for name, file in entries.items():
                _link(file, snapshot.place / directory / name)
        about = _About(_FORMAT, contents, self._replaced)
        (snapshot.place / _ABOUT).write_bytes(msgspec.json.encode(about))
        return snapshot

    def _month(self, table: Table, month: str) -> Path:
        """A changeable copy of a month of a table: files are linked, not copied."""
        place = self._places.get((table.name, month))
        if place is None:
            place = self._directory / "parts" / _text(self._number) / table.name / f"{_MONTH}{month}"
            place.mkdir(parents=True)
            self._places[table.name, month] = place
            base = self._base
            if base is not None and base.parts(table, month):
                old = base.place / table.name / f"{_MONTH}{month}"
                for file in names_in(old):
                    if file != LIST:
                        os.link(old / file, place / file)
                self._replaced.append(str(old.resolve().relative_to(self._directory)))
        return place

    def _entries(self, directory: str) -> dict[str, Path]:
        if directory not in self._loose:
            base = [] if self._base is None else self._base.loose(directory)
            self._loose[directory] = {file.name: file.resolve() for file in base}
        return self._loose[directory]


class Snapshots:
    """The snapshots of a data directory. One writer at a time: `Tables.locked`."""

    def __init__(self, directory: Path, *, kept: int = VERSIONS_KEPT) -> None:
        self._directory = directory.resolve()
        self._kept = kept

    def current(self) -> Snapshot | None:
        """The published snapshot; None if there is none that this version can read."""
        number = self._number()
        return None if number is None else self._open(number)

    def current_number(self) -> int | None:
        """The number of the published snapshot."""
        return self._number()

    def batch(self) -> int:
        """The last batch of the published snapshot, even one that cannot be updated; -1 if it is unknown."""
        number = self._number()
        about = None if number is None else self._about(number)
        return -1 if about is None else about.contents.batch

    def draft(self, base: Snapshot | None, *, number: int) -> Draft:
        return Draft(self._directory, number, base)

    def next_number(self) -> int:
        """Remove the files of a crash, and return the number of the next snapshot."""
        last = self._number() or 0
        for name in ("snapshots", "parts"):
            place = self._directory / name
            for left in [number for number in numbers_in(place) if number > last]:
                shutil.rmtree(place / _text(left))
        return last + 1

    def publish(self, snapshot: Snapshot, tables: Iterable[Table]) -> None:
        """Make a snapshot the current one for all tables in one step, and remove unused files."""
        _move_link(Path("snapshots") / _text(snapshot.number), self._directory / _CURRENT)
        for table in tables:
            if table.name.partition("/")[0] in ("silver", "gold"):
                self._lead(table)
        numbers = numbers_in(self._directory / "snapshots")
        self.prune(below=numbers[-self._kept] if len(numbers) > self._kept else 0)

    def whole(self, batch: int) -> Snapshot:
        """A snapshot for tables that are written whole, at `place / table.name`. `current` does not return it.

        Call `publish` after writing all tables. `batch`: the last batch that they have.
        """
        snapshot = Snapshot(self._directory, self.next_number(), Contents(batch), (), has_rollups=False)
        snapshot.place.mkdir(parents=True)
        (snapshot.place / _ABOUT).write_bytes(msgspec.json.encode(_About(_WHOLE, snapshot.contents)))
        return snapshot

    def prune(self, *, below: int, above: int = -1) -> None:
        """Remove the snapshots between these numbers, with what their successors replaced."""
        place = self._directory / "snapshots"
        for number, successor in pairwise(numbers_in(place)):
            if not above < number < below:
                continue
            after = self._open(successor)
            for name in () if after is None else after.replaced:
                self._remove(self._directory / name)
            shutil.rmtree(place / _text(number))

    def _lead(self, table: Table) -> None:
        """Make the table's own path a link into the current snapshot; before it was a link to its own version."""
        link = self._directory / table.name
        target = Path("..") / _CURRENT / table.name
        if link.is_symlink() and Path(link.readlink()) == target:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        _move_link(target, link)
        shutil.rmtree(self._directory / "versions" / table.name.replace("/", "-"), ignore_errors=True)

    def _remove(self, path: Path) -> None:
        """Remove a month or a file of an earlier snapshot, and the directories that it leaves empty."""
        root = self._directory / "parts"
        if root not in path.parents:
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        parent = path.parent
        while parent != root and parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent

    def _number(self) -> int | None:
        link = self._directory / _CURRENT
        name = link.readlink().name if link.is_symlink() else ""
        return int(name) if name.isascii() and name.isdigit() else None

    def _open(self, number: int) -> Snapshot | None:
        about = self._about(number)
        if about is None or about.format not in _FORMATS:
            return None
        has_rollups = about.format == _FORMAT
        return Snapshot(self._directory, number, about.contents, tuple(about.replaced), has_rollups=has_rollups)

    def _about(self, number: int) -> "_About | None":
        try:
            return _about_decoder.decode((self._directory / "snapshots" / _text(number) / _ABOUT).read_bytes())
        except (OSError, ValueError):
            return None


def _by_month(parts: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for part in sorted(set(parts)):
        found.setdefault(month_of(part), []).append(part)
    return found


def _by_part(place: Path) -> dict[int, list[Path]]:
    """The files of a month by their parts."""
    found: dict[int, list[Path]] = {}
    for name in sorted(names_in(place)):
        part = part_of_file(name)
        if part is not None:
            found.setdefault(part, []).append(place / name)
    return found


def _text(number: int) -> str:
    return f"{number:0{_DIGITS}}"


def _real(directory: Path, base: Snapshot | None, table: Table, month: str) -> Path:
    """The month of the base itself, not the link to it."""
    place = (base.place if base is not None else directory) / table.name / f"{_MONTH}{month}"
    return place.resolve()


def _link(target: Path, link: Path) -> None:
    """A relative link, so that the data directory can be moved."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent), target_is_directory=target.is_dir())


def _move_link(target: Path, link: Path) -> None:
    draft = link.with_name(f".{link.name}.next")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target, target_is_directory=True)
    draft.replace(link)
