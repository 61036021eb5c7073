"""A progress bar for bytes, on a terminal only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def byte_progress(verb: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show `verb` and a bar on standard error. Yields what to call with the size of each part that is done."""
    if not sys.stderr.isatty():
        yield lambda _size: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from waybill.cli.console import Console

    columns = (TextColumn(verb), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(verb, total=total)
        yield lambda size: progress.advance(task, size)
