"""Checks before a run that Spark can continue from the checkpoint, and that it is the one of these tables.

Spark numbers a batch after the last one in its checkpoint. If that is older than the tables, batches of the same number
would replace each other, and refreshes would skip events. And what Spark says about a damaged record, "assertion
failed" or "concurrent update", does not tell what to do.

Records are not synced to the disk, so the last ones may be damaged after a power failure.
"""

import json
import re
import uuid
from pathlib import Path
from typing import Final

from waybill.pipeline.event_files import noted
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.refreshed import last_known_batch
from waybill.pipeline.tables import CARRIED, EVENTS, QUARANTINE, Tables, TablesError, TableStore

_LOGS: Final = ("offsets", "commits")
# v1 with Spark's defaults.
_RECORD_VERSION: Final = re.compile(r"v[0-9]+")
# Spark reads the last record, and the one before to find where that begins.
_RECORDS_READ: Final = 2
_RECORD_MAX: Final = 1 << 24
_WAY_OUT: Final = (
    "Restore the tables with their checkpoint from one backup, read the stream again into an empty directory, or "
    "repair the checkpoint (docs/how-to/pipeline.md)."
)


def check_events(store: TableStore) -> None:
    """Raise TablesError if the table of events is missing: all other tables would be replaced by empty ones.

    Raise DamagedFileError if a file of it is: the other tables would be computed without its events.
    A Delta or Iceberg table is missing if its files are there and its log is not. If the log lacks batches that Spark
    has recorded as done, its end is lost.
    """
    if isinstance(store, Tables):
        for table in (EVENTS, CARRIED, QUARANTINE):
            store.check_files(table)
    place = store.checkpoint_location()
    done = set() if "://" in place else noted(Path(place) / "commits")
    if not done:
        return
    events = Path(place).parent / EVENTS.name
    if not store.has(EVENTS):
        if isinstance(store, Tables) or store.has_files(EVENTS):
            raise TablesError(f"{events} or its log is missing, but the checkpoint has its batches. {_WAY_OUT}")
    elif isinstance(store, LakeTables) and store.last_batch() < max(done):
        raise TablesError(
            f"{events} has batches up to {store.last_batch()}, but the checkpoint has those up to {max(done)}: the end "
            f"of the table's log is lost. {_WAY_OUT}"
        )


def check_checkpoint(store: TableStore) -> None:
    """Raise TablesError if a run could not continue, or would do so from another place than the tables.

    Call it before `TableStore.prepare`, which refuses events without any checkpoint.
    """
    check_events(store)
    place = store.checkpoint_location()
    checkpoint = Path(place)
    if "://" in place or not checkpoint.is_dir():
        return
    begun, done = (noted(checkpoint / name) for name in _LOGS)
    for name, numbers in zip(_LOGS, (begun, done), strict=True):
        for number in sorted(numbers)[-_RECORDS_READ:]:
            _check(checkpoint / name / str(number), _record_problem(checkpoint / name / str(number)))
    metadata = checkpoint / "metadata"
    problem = _metadata_problem(metadata) if begun or metadata.exists() else None
    if problem is not None:
        line = f'{{"id":"{uuid.uuid4()}"}}'
        raise TablesError(f"{metadata} is damaged ({problem}): replace it by a file with this line: {line}")
    last = max(begun, default=-1)
    written = max(last_known_batch(store), *done, -1)
    if written > last:
        raise TablesError(
            f"{checkpoint.parent} has batches up to {written}, but its checkpoint only knows those up to {last}: they "
            f"do not belong together. {_WAY_OUT}"
        )


def _check(path: Path, problem: str | None) -> None:
    if problem is not None:
        raise TablesError(f"{path} is damaged ({problem}). {_WAY_OUT}")


def _record_problem(path: Path) -> str | None:
    """What is wrong with a record: a version, then lines of JSON."""
    try:
        if path.stat().st_size > _RECORD_MAX:
            return f"larger than {_RECORD_MAX} bytes"
        version, *lines = path.read_text("utf-8").splitlines() or [""]
    except (OSError, ValueError) as problem:
        return str(problem)
    if _RECORD_VERSION.fullmatch(version) is None or not lines:
        return "empty or cut off" if not lines else f"its first line is {version[:20]!r}"
    return next((found for line in lines if (found := _unreadable(line)) is not None), None)


def _metadata_problem(path: Path) -> str | None:
    """What is wrong with the file that has the id of the query. Spark makes none where there are batches."""
    try:
        found = json.loads(path.read_text("utf-8"))
        uuid.UUID(found["id"])
    except FileNotFoundError:
        return "it is missing"
    except (OSError, ValueError, RecursionError) as problem:
        return str(problem)
    except (TypeError, KeyError, AttributeError):
        return "it has no id"
    return None


def _unreadable(text: str) -> str | None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as problem:
        return str(problem)
    return None
