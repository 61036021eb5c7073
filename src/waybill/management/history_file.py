"""The file in which the history survives a restart. If it cannot be read, a new history starts."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from waybill.management.history import DAY, MINUTE, Row, Series
from waybill.management.statistic_kinds import SAVED_KINDS

VERSION: Final = 1

Packed = list[tuple[list[int], list[Row]]]
Key = tuple[str, ...]

_log = logging.getLogger("waybill.management")


class HistoryFile(msgspec.Struct):
    """The content of the file: the series by kind, each as its key and its levels."""

    version: int
    figures: dict[str, list[str]]
    series: dict[str, list[tuple[list[str], Packed]]]


def write_history(path: Path, series: dict[str, list[tuple[list[str], Packed]]]) -> None:
    """Replace the file. Raises OSError."""
    figures = {kind.name: list(kind.names) for kind in SAVED_KINDS}
    octets = _encode(HistoryFile(VERSION, figures, series))
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(octets)
    draft.replace(path)


def _encode(file: HistoryFile) -> bytes:
    try:
        return msgspec.msgpack.encode(file)
    except UnicodeEncodeError:
        # Queues whose names are not UTF-8 are left out.
        file.series = {
            kind: [one for one in rows if all(name.isprintable() for name in one[0])]
            for kind, rows in file.series.items()
        }
        return msgspec.msgpack.encode(file)


def read_history(path: Path, now: int) -> dict[str, dict[Key, Series]]:
    """Return the saved history by kind. A file of another version and series from the future are ignored."""
    try:
        file = msgspec.msgpack.decode(path.read_bytes(), type=HistoryFile)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.DecodeError) as error:
        _log.warning("cannot read the history of rates in %s, starting a new one: %s", path, error)
        return {}
    if file.version != VERSION:
        return {}
    found: dict[str, dict[Key, Series]] = {}
    for kind in SAVED_KINDS:
        if file.figures.get(kind.name) != list(kind.names):
            continue
        kept = found.setdefault(kind.name, {})
        for key, packed in file.series.get(kind.name, []):
            levels = MINUTE if len(packed) == 1 and len(kind.levels) > 1 else kind.levels
            series = Series.restored(levels, packed, len(kind.names))
            if series is not None and series.newest() <= now + DAY[-1].step:
                kept[tuple(key)] = series
    return found
