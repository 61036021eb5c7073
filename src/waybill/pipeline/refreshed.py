"""Which batches of bronze are in silver and gold: events that are not would be lost if their days were dropped.

A snapshot has the number of its last batch. If Delta and Iceberg tables are computed from all events, the table of jobs
has it, written after all tables.
"""

from collections.abc import Collection

from waybill.pipeline import tables
from waybill.pipeline.event_files import batch_of, doubtful, noted
from waybill.pipeline.lake_tables import LakeTables
from waybill.pipeline.listing import names_in
from waybill.pipeline.snapshots import Snapshots
from waybill.pipeline.tables import Tables, TablesError, TableStore


class NotRefreshedError(TablesError):
    """Silver and gold lack events of bronze."""


def last_batch(store: TableStore, complete: Collection[int] = ()) -> int:
    """The last batch of bronze that Spark has recorded as done, or that is in `complete`; -1 if there is none."""
    if isinstance(store, LakeTables):
        return store.last_batch()
    store = _in_directory(store)
    done = noted(store.checkpoint / "commits") | _written(store)
    return max(done - doubtful(store.checkpoint, complete), default=-1)


def last_known_batch(store: TableStore) -> int:
    """The last batch that any of the tables has; -1 if there is none."""
    written = -1 if isinstance(store, LakeTables) else max(_written(_in_directory(store)), default=-1)
    return max(written, last_batch(store), refreshed_batch(store))


def refreshed_batch(store: TableStore) -> int:
    """The last batch that silver and gold have; -1 if there is none, or if an earlier version has written them."""
    return (
        store.refreshed_batch() if isinstance(store, LakeTables) else Snapshots(_in_directory(store).directory).batch()
    )


def check_is_refreshed(store: TableStore, complete: Collection[int] = ()) -> None:
    """Raise NotRefreshedError if bronze has events that silver and gold lack. `complete`: batches known to be written.

    A batch that Spark has begun, and not recorded as done, counts as lacking: Spark will write it again.
    """
    done = refreshed_batch(store)
    if isinstance(store, LakeTables):
        fresh = store.event_files(done)
        lacking = fresh is None or next(fresh, None) is not None or store.lacks_dropped_days()
    else:
        store = _in_directory(store)
        open_batches = doubtful(store.checkpoint, complete)
        lacking = any(number > done or number in open_batches for number in _written(store))
    if lacking:
        raise NotRefreshedError(
            "silver and gold lack events of an interrupted run, so no days can be dropped: first run "
            "`waybill pipeline run --once`"
        )


def _in_directory(store: TableStore) -> Tables:
    if not isinstance(store, Tables):
        raise TypeError(f"tables of {type(store).__name__} have no batches")
    return store


def _written(store: Tables) -> set[int]:
    """The numbers of the batches with files."""
    root = store.path(tables.EVENTS)
    days = [day for day in root.iterdir() if day.name.startswith("date=")] if root.is_dir() else []
    return {number for day in days for name in names_in(day) if (number := batch_of(name)) is not None}
