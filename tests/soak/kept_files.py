"""The directory of a run: it goes after a good end, and stays after a failure."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


@contextmanager
def kept_files(name: str, console: Console, failure: type[Exception]) -> Iterator[Path]:
    """A new directory for a run. After a `failure`, say where it is, and end the process with 1."""
    directory = Path(tempfile.mkdtemp(prefix=f"waybill-soak-{name}-"))
    try:
        yield directory
    except failure as error:
        console.print(f"[red]{error}[/red]\nfiles: {directory}")
        raise SystemExit(1) from error
    shutil.rmtree(directory)
