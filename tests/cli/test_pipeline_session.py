"""What the commands of the pipeline say when something fails."""

import errno

import click
import pytest
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyiceberg.exceptions import ValidationError
from pyspark.errors import AnalysisException
from sqlalchemy.exc import DatabaseError

from waybill.cli.pipeline_session import explained_failures
from waybill.pipeline.tables import TablesError


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (TablesError("the tables are odd"), "the tables are odd"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "No space left .*/data/x'?: free disk space"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "Permission denied: '/data/x'"),
        (Py4JError("An error occurred\n: java.lang.AssertionError: assertion failed\n\tat x"), "assertion failed$"),
        (DeltaError("Kernel error: Json error\n 0: <unknown>"), "^Kernel error: Json error; docs/how-to/pipeline.md"),
        (ValidationError("1 validation error\n more"), "^1 validation error; docs/how-to/pipeline.md"),
        (DatabaseError("SELECT 1", None, ValueError("malformed")), "malformed; docs/how-to/pipeline.md"),
        (AnalysisException("[PATH_NOT_FOUND] Path does not exist: /data/x\nmore"), "/data/x; docs/how-to/pipeline.md"),
    ],
)
def test_a_failure_is_one_line(problem: Exception, text: str) -> None:
    with pytest.raises(click.ClickException, match=text), explained_failures():
        raise problem


@pytest.mark.parametrize("problem", [RuntimeError("of other code"), KeyError("x"), ValueError("x")])
def test_a_bug_keeps_its_traceback(problem: Exception) -> None:
    with pytest.raises(type(problem)), explained_failures():
        raise problem
