"""Opens the store that a setting names."""

from __future__ import annotations

from typing import Final

from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.store_thread import first_line
from waybill.ojs.errors import DatabaseUnusable

IN_MEMORY: Final = ":memory:"


def open_job_store(database: str, keep_days: int | None = None, event_partitions: int = 1) -> JobStore:
    """Open ":memory:", a SQLite file, or a URL such as `postgresql://user@host/name`, which may name several hosts.

    With `keep_days`, `forget_old` deletes jobs of a database that ended that many days ago. `event_partitions` is the
    number of partitions of the event stream.

    Raises DatabaseUnusable, and ImportError with the name of the extra if SQLAlchemy is needed and not installed.
    """
    # Import lazily: SQLAlchemy takes more memory than all other packages of a worker together.
    if database == IN_MEMORY:
        from waybill.ojs.coordinator.memory_job_store import MemoryJobStore  # noqa: PLC0415 - see above

        return MemoryJobStore()
    from waybill.ojs.coordinator.sql_job_store import SqlJobStore  # noqa: PLC0415 - see above

    try:
        return SqlJobStore(database, keep_days, event_partitions)
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - see above

        if not isinstance(error, SQLAlchemyError):
            raise
        cause = first_line(error.__cause__ or error)
        text = f"the job database cannot be used: {cause}. It can be rebuilt from the event stream"
        raise DatabaseUnusable(f"{text}: name another one, or move a damaged file away") from error
