"""Shared by the commands of `waybill pipeline`: the Spark session, and errors in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from waybill.cli.console import Console

_SPARK: Final = frozenset({"pyspark", "py4j"})
# The errors of deltalake are those of its extension module.
_TABLE_FORMATS: Final = frozenset({"deltalake", "_internal", "pyiceberg", "sqlalchemy"})
# No space, the limit of a file's size, and the quota.
_NO_ROOM: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(console: Console, data: str | None, table_format: str, *, short: bool) -> Iterator[SparkSession]:
    """A session for one command: that of `spark-submit`, or a local one.

    Java's log is written below the data directory, if there is one.
    """
    from waybill.pipeline.session import is_submitted, local_session, submitted_session
    from waybill.pipeline.table_formats import session_options

    log_file = None if data is None or "://" in data else Path(data) / "spark.log"
    with console.status("Starting Spark"):
        if is_submitted():
            session = submitted_session()
        else:
            session = local_session(log_file=log_file, short=short, more=session_options(data, table_format))
    try:
        yield session
    except Exception as problem:
        if not _has_ended(session):
            raise
        raise click.ClickException(
            "Spark has ended unexpectedly, perhaps for lack of memory"
            + (f": {log_file} tells why" if log_file is not None else "")
        ) from problem
    finally:
        if not _has_ended(session):
            session.stop()


def _has_ended(session: SparkSession) -> bool:
    """Whether the virtual machine of a local session has died."""
    process = getattr(session.sparkContext._gateway, "proc", None)  # noqa: SLF001 - nothing public tells
    return process is not None and process.poll() is not None


@contextmanager
def explained_failures() -> Iterator[None]:
    """Turn errors that users can act on into one line without a traceback."""
    try:
        yield
    except RuntimeError as problem:
        # The pipeline's own errors are RuntimeErrors.
        if type(problem).__module__.startswith("waybill."):
            raise click.ClickException(str(problem)) from None
        raise
    except OSError as problem:
        raise click.ClickException(_with_way_out(problem)) from None
    except Exception as problem:
        text = _explained(problem)
        if text is None:
            raise
        raise click.ClickException(text) from None


def _with_way_out(problem: OSError) -> str:
    if problem.errno in _NO_ROOM:
        return f"{problem}: free disk space, and start again, which continues where this ended"
    return str(problem) or type(problem).__name__


def _explained(problem: Exception) -> str | None:
    """The line for an error of Spark or of a table format. None for others: a bug keeps its traceback."""
    from waybill.pipeline.parquet_files import REPAIRED
    from waybill.pipeline.task_errors import first_line, spark_error

    libraries = {kind.__module__.partition(".")[0] for kind in type(problem).__mro__}
    if libraries & _SPARK:
        return spark_error(str(problem))
    return f"{first_line(str(problem))}; {REPAIRED}" if libraries & _TABLE_FORMATS else None
