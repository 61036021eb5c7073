"""The log of an Iceberg table, by the library `pyiceberg`: https://py.iceberg.apache.org.

The catalog stores the current version of each table. It is configured in pyiceberg's settings (`.pyiceberg.yaml`, or
`PYICEBERG_CATALOG__NAME__URI`): REST, Glue, Hive, or a database. Tables in a directory have their own catalog,
`ROOT/catalog.db` in SQLite. The number of the last batch is a property of the table.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.utils.config import Config
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import URL

from waybill.pipeline.parquet_files import REPAIRED
from waybill.pipeline.storage import Storage, iceberg_options
from waybill.pipeline.table_log import DAY, RETENTION_DAYS, DataFile, TableLog
from waybill.pipeline.tables import TablesError

NAMESPACE: Final = "waybill"
_OWN: Final = "waybill"
_BATCH: Final = "waybill.batch"
_PROPERTIES: Final = {
    # A second writer of the same batch must fail, and not append the batch again.
    "commit.retry.num-retries": "0",
    # Each append writes a manifest, and each reader reads all of them: without merging, one for each batch.
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    # Files of metadata of earlier versions.
    "write.metadata.delete-after-commit.enabled": "true",
}
# A commit writes and copies a description of each version, so its cost would grow with their number.
_VERSIONS_KEPT: Final = 50
_VERSIONS_MOST: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC).date()
_DATA: Final = "data"


def open_catalog(storage: Storage, name: str | None) -> Catalog:
    """The catalog of this name, or the directory's own. Raises TablesError if there is none."""
    options = iceberg_options(os.environ)
    if name is None:
        if storage.is_remote:
            raise TablesError(
                f"Iceberg tables in {storage.root} need a catalog: name one of pyiceberg's settings with --catalog, "
                "and set for example PYICEBERG_CATALOG__NAME__URI=postgresql+psycopg://host/catalog"
            )
        os.makedirs(storage.root, exist_ok=True)  # noqa: PTH103 - roots are strings, also for buckets
        database = URL.create("sqlite", database=f"{storage.root}/catalog.db")
        own = {"type": "sql", "uri": database.render_as_string(hide_password=False), "warehouse": storage.root}
        return load_catalog(_OWN, **options, **own)
    try:
        # pyiceberg reads its settings on import, which may have been before they were written.
        settings = Config().get_catalog_config(name) or {}
        catalog = load_catalog(name, **{key: str(value) for key, value in settings.items()}, **options)
        catalog.list_namespaces()
    except Exception as problem:
        # The errors depend on the kind of catalog.
        raise TablesError(f"the Iceberg catalog {name!r} cannot be used: {problem}") from problem
    return catalog


class IcebergLog(TableLog):
    """The log of `waybill.SECTION_NAME` in a catalog, with its files below `uri`."""

    # Unlike with Delta, the day is also a column of the files.
    day_directory = "day"

    def __init__(self, catalog: Catalog, storage: Storage, name: str, schema: StructType, *, by_day: bool) -> None:
        super().__init__(f"{storage.uri}/{name}", schema, by_day=by_day)
        self._catalog = catalog
        self._storage = storage
        self._name = name
        self._identifier = (NAMESPACE, name.replace("/", "_"))

    def exists(self) -> bool:
        return self._open() is not None

    def identity(self) -> str | None:
        table = self._open()
        return None if table is None else str(table.metadata.table_uuid)

    def files(self) -> list[DataFile]:
        table = self._open()
        with self._explained():
            return [] if table is None else [self._described(file) for file in _current(table).values()]

    def batch(self) -> int:
        table = self._open()
        return -1 if table is None else int(table.properties.get(_BATCH, -1))

    def commit(self, added: Sequence[DataFile], removed: Sequence[DataFile] = (), batch: int | None = None) -> None:
        table = self._open() or self._create()
        self.check_order(batch, int(table.properties.get(_BATCH, -1)))
        try:
            with self._explained(), table.transaction() as change:
                self._add_columns(table, change)
                self._limit(table, change)
                if removed:
                    there = _current(table)
                    with change.update_snapshot().overwrite() as old:
                        for file in removed:
                            old.delete_data_file(there[file.name])
                if added:
                    # The file names are random, so they are new.
                    change.add_files([f"{self.uri}/{file.name}" for file in added], check_duplicate_files=False)
                if batch is not None:
                    change.set_properties({_BATCH: str(batch)})
        except CommitFailedException as problem:
            raise TablesError(f"{self.uri}: another process has written to it; stop one of them ({problem})") from None

    def clean(self) -> None:
        table = self._open()
        if table is None:
            return
        edge = datetime.now(UTC) - timedelta(days=RETENTION_DAYS)
        with self._explained():
            table.maintenance.expire_snapshots().older_than(edge).commit()
            table.refresh()
            # pyiceberg expires old versions, but keeps their files.
            named = set(table.inspect.all_files()["file_path"].to_pylist())
        place = self._storage.path(f"{self._name}/{_DATA}")
        found = self._storage.filesystem.get_file_info(fs.FileSelector(place, recursive=True, allow_not_found=True))
        prefix = f"{self.uri}/{_DATA}"
        for file in found:
            is_old = file.type == fs.FileType.File and file.mtime < edge
            if is_old and prefix + file.path.removeprefix(place) not in named:
                self._storage.filesystem.delete_file(file.path)

    def _open(self) -> Table | None:
        with suppress(NoSuchTableError), self._explained():
            return self._catalog.load_table(self._identifier)
        return None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise TablesError if the log cannot be read: what pyiceberg raises depends on where a file is cut off."""
        try:
            yield
        except (TablesError, CommitFailedException, NoSuchTableError, OSError):
            raise
        except Exception as problem:
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            raise TablesError(f"the log of {self.uri} cannot be read ({text}); {REPAIRED}") from problem

    def _create(self) -> Table:
        with suppress(NamespaceAlreadyExistsError):
            self._catalog.create_namespace(NAMESPACE)
        try:
            with self._catalog.create_table_transaction(
                self._identifier, self._arrow(), self.uri, properties=_PROPERTIES
            ) as change:
                if self.by_day:
                    with change.update_spec() as spec:
                        spec.add_identity(DAY)
        except TableAlreadyExistsError as problem:
            raise TablesError(f"{self.uri}: another process has just created it ({problem})") from None
        return self._catalog.load_table(self._identifier)

    def _add_columns(self, table: Table, change: Transaction) -> None:
        known = {field.name for field in table.schema().fields}
        if not known.issuperset(self.schema.fieldNames()):
            with change.update_schema() as update:
                update.union_by_name(self._arrow())

    def _limit(self, table: Table, change: Transaction) -> None:
        """Limit what grows with each commit, including in tables of earlier versions of Waybill.

        The files of forgotten versions stay until `clean`.
        """
        missing = {name: value for name, value in _PROPERTIES.items() if name not in table.properties}
        if missing:
            change.set_properties(missing)
        versions = sorted(table.snapshots(), key=lambda version: version.sequence_number or 0)
        if len(versions) > _VERSIONS_MOST:
            ExpireSnapshots(change).by_ids([version.snapshot_id for version in versions[:-_VERSIONS_KEPT]]).commit()

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")

    def _described(self, file: IcebergFile) -> DataFile:
        day: Any = file.partition[0] if self.by_day else None
        return DataFile(
            file.file_path,
            file.file_size_in_bytes,
            file.record_count,
            _EPOCH + timedelta(days=day) if isinstance(day, int) else day,
        )


def _current(table: Table) -> dict[str, IcebergFile]:
    """The files of the current version, by name."""
    tasks = table.scan().plan_files()
    deleted = [task.file.file_path for task in tasks if task.delete_files]
    if deleted:
        raise TablesError(f"{table.location()} has delete files, which the pipeline does not support")
    return {task.file.file_path: task.file for task in tasks}
