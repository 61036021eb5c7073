"""Commits the files of a snapshot to Delta and Iceberg tables.

Refreshes work in a directory (`TableStore.state`), as for Parquet tables. Then each table gets one commit: it adds the
files that the snapshot has and the table lacks, and removes the others. The names of files in snapshots are unique, so
the names tell which these are. A refresh that is killed in between is completed by the next one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from waybill.pipeline.event_counts import EVENT_COUNTS
from waybill.pipeline.folding import SILVER
from waybill.pipeline.gold_tables import GOLD
from waybill.pipeline.parquet_files import row_count
from waybill.pipeline.snapshots import Snapshot
from waybill.pipeline.storage import Storage
from waybill.pipeline.table_log import DataFile, OpenLog
from waybill.pipeline.tables import Table

COMMITTED: Final = (*SILVER, *GOLD, EVENT_COUNTS)
"""The tables that readers see. Those of silver have the columns that refreshes need, too."""


def commit_files(snapshot: Snapshot, storage: Storage, open_log: OpenLog) -> None:
    """Commit the differences between the tables and the snapshot.

    Raises TablesError if another process commits at the same time.
    """
    for table in COMMITTED:
        log = open_log(table.name, table.schema, False)  # noqa: FBT003 - `OpenLog` has no names
        wanted = dict(_files(snapshot, table))
        there = {_end_of(file.name): file for file in log.files()}
        added = [
            DataFile(name, source.stat().st_size, rows)
            for name, source in wanted.items()
            if name not in there and (rows := row_count(source))
        ]
        removed = [file for name, file in there.items() if name not in wanted]
        for file in added:
            copy_to(wanted[file.name], storage, f"{table.name}/{file.name}")
        if added or removed:
            log.commit(added, removed)


def _files(snapshot: Snapshot, table: Table) -> Iterator[tuple[str, Path]]:
    """The files of a table with their names in its log."""
    for month in snapshot.months(table):
        for files in snapshot.parts(table, month).values():
            for file in files:
                yield f"data/{month}/{file.name}", file


def _end_of(name: str) -> str:
    """The last three parts of a name: logs have paths relative to the table, or URIs."""
    return "/".join(name.split("/")[-3:])


def copy_to(source: Path, storage: Storage, name: str) -> None:
    """Copy a file, or link it if both are in one file system. It may be there, from a refresh that was killed."""
    target = storage.path(name)
    if not storage.is_remote:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):
            os.link(source, target)
            return
        if Path(target).exists() and Path(target).samefile(source):
            return
    # A half-written file is not in the log, and is written again.
    with source.open("rb") as content, storage.filesystem.open_output_stream(target) as copy:
        shutil.copyfileobj(content, copy, 1 << 20)
