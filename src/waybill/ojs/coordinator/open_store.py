"""Opens the store that a setting names."""

from __future__ import annotations

from typing import Final

from waybill.ojs.coordinator.job_store import JobStore

IN_MEMORY: Final = ":memory:"


def open_job_store(database: str) -> JobStore:
    """Open ":memory:", a SQLite file, or a URL of SQLAlchemy such as `postgresql://user@host/name`.

    Raises ImportError, naming the extra, if a database needs SQLAlchemy and it is not installed; else SQLAlchemyError.
    """
    # Each is loaded if it is used: SQLAlchemy takes more memory than the rest of a worker's packages together.
    if database == IN_MEMORY:
        from waybill.ojs.coordinator.memory_job_store import MemoryJobStore  # noqa: PLC0415 - see above

        return MemoryJobStore()
    from waybill.ojs.coordinator.sql_job_store import SqlJobStore  # noqa: PLC0415 - see above

    return SqlJobStore(database)
