"""The log of a Delta table, by the library `deltalake`: https://delta-io.github.io/delta-rs.

The number of the last batch is stored as an application transaction of Delta. If two writers commit the same one, the
second fails.
"""

import json
import os
import time
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)
from pyspark.sql.types import StructType

from waybill.pipeline.storage import delta_options
from waybill.pipeline.table_log import DAY, RETENTION_DAYS, DataFile, TableLog
from waybill.pipeline.tables import TablesError

_APPLICATION: Final = "waybill"
_CONFLICT: Final = "another process has written to it; stop one of them"


class DeltaLog(TableLog):
    """The log below `uri`."""

    def __init__(self, uri: str, schema: StructType, *, by_day: bool) -> None:
        super().__init__(uri, schema, by_day=by_day)
        self._options = delta_options(os.environ) if "://" in uri else None

    def exists(self) -> bool:
        return bool(DeltaTable.is_deltatable(self.uri, self._options))

    def identity(self) -> str | None:
        return str(self._open().metadata().id) if self.exists() else None

    def files(self) -> list[DataFile]:
        if not self.exists():
            return []
        table = self._open()
        if table.protocol().reader_features:
            raise TablesError(
                f"{self.uri} uses features of Delta that the pipeline does not support: "
                f"{', '.join(table.protocol().reader_features or ())}. Another program has enabled them."
            )
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = [actions[name].to_pylist() for name in ("path", "size_bytes", "num_records")]
        days = actions[f"partition.{DAY}"].to_pylist() if self.by_day else [None] * len(actions)
        return [DataFile(path, size, rows or 0, day) for path, size, rows, day in zip(*columns, days, strict=True)]

    def batch(self) -> int:
        last = self._open().transaction_version(_APPLICATION) if self.exists() else None
        return -1 if last is None else last

    def commit(self, added: Sequence[DataFile], removed: Sequence[DataFile] = (), batch: int | None = None) -> None:
        schema = Schema.from_json(self.schema.json())
        by = [DAY] if self.by_day else None
        marks = None if batch is None else [Transaction(_APPLICATION, batch)]
        properties = CommitProperties(app_transactions=marks, max_commit_retries=0)
        add = [self._add(file) for file in added]
        try:
            if not self.exists():
                create_table_with_add_actions(
                    self.uri, schema, add, partition_by=by, storage_options=self._options, commit_properties=properties
                )
                return
            table = self._open()
            last = table.transaction_version(_APPLICATION)
            self.check_order(batch, -1 if last is None else last)
            known = {field.name for field in table.schema().fields}
            fresh = [field for field in schema.fields if field.name not in known]
            if fresh:
                table.alter.add_columns(fresh)
            else:
                # It may have columns that only a newer version, or an incremental refresh, writes.
                schema = table.schema()
            actions: list[AddAction | RemoveAction] = [*add, *(self._remove(file) for file in removed)]
            table.create_write_transaction(actions, "append", schema, by, commit_properties=properties)
        except CommitFailedError as problem:
            raise TablesError(f"{self.uri}: {_CONFLICT} ({problem})") from None
        except DeltaError as problem:
            raise TablesError(f"{self.uri}: {problem}") from problem

    def clean(self) -> None:
        if self.exists():
            # `full`: also files of a crash, which are in no version.
            self._open().vacuum(retention_hours=RETENTION_DAYS * 24, dry_run=False, full=True)

    def _open(self) -> DeltaTable:
        return DeltaTable(self.uri, storage_options=self._options)

    def _add(self, file: DataFile) -> AddAction:
        stats = json.dumps({"numRecords": file.rows})
        return AddAction(file.name, file.size, self._values(file), _now_ms(), data_change=True, stats=stats)

    def _remove(self, file: DataFile) -> RemoveAction:
        return RemoveAction(file.name, True, _now_ms(), file.size, self._values(file))  # noqa: FBT003 - it has no names

    def _values(self, file: DataFile) -> dict[str, str | None]:
        return {DAY: str(file.day)} if self.by_day else {}


def _now_ms() -> int:
    return int(time.time() * 1000)
