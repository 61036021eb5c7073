"""Opens the store that a setting names."""

from __future__ import annotations

from typing import Final

from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.store_thread import first_line
from waybill.ojs.errors import DatabaseUnusable

IN_MEMORY: Final = ":memory:"


def open_job_store(database: str, keep_days: int | None = None) -> JobStore:
    """Open ":memory:", a SQLite file, or a URL such as `postgresql://user@host/name`, which may name several hosts.

    With `keep_days`, `forget_old` forgets jobs of a database that have ended so many days ago.

    Raises ImportError, naming the extra, if a database needs SQLAlchemy and it is not installed, and DatabaseUnusable.
    """
    # Each is loaded if it is used: SQLAlchemy takes more memory than the rest of a worker's packages together.
    if database == IN_MEMORY:
        from waybill.ojs.coordinator.memory_job_store import MemoryJobStore  # noqa: PLC0415 - see above

        return MemoryJobStore()
    from waybill.ojs.coordinator.sql_job_store import SqlJobStore  # noqa: PLC0415 - see above

    try:
        return SqlJobStore(database, keep_days)
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - see above

        if not isinstance(error, SQLAlchemyError):
            raise
        cause = first_line(error.__cause__ or error)
        text = f"the job database cannot be used: {cause}. It can be rebuilt from the event stream"
        raise DatabaseUnusable(f"{text}: name another one, or move a damaged file away") from error
