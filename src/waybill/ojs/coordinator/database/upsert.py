"""Writes many jobs: in PostgreSQL with one statement that takes an array for each column.

One statement per job, even if they are sent together, costs PostgreSQL the start of a plan and a message each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sql
from sqlalchemy.engine import Connection, Engine

from waybill.ojs.coordinator.database.arrays import array_of

_ARRAYS: Final = {sql.Integer: "int4[]", sql.BigInteger: "int8[]", sql.Float: "float8[]", sql.String: "varchar[]"}


class Upsert:
    """Inserts rows of a table, or updates the other columns of existing ones."""

    def __init__(
        self, engine: Engine, table: sql.Table, insert: Callable[[sql.Table], Any], adds: Sequence[str] = ()
    ) -> None:
        """`insert` is that of the dialect; values of columns in `adds` are added to the existing ones."""
        self._names = [column.name for column in table.columns]
        self._text = ""
        keys = [column.name for column in table.primary_key]
        others = [name for name in self._names if name not in keys]
        if engine.dialect.name == "postgresql":
            arrays = ", ".join(f"%({column.name})s::{_ARRAYS[type(column.type)]}" for column in table.columns)
            self._text = (
                f"INSERT INTO {table.name} ({', '.join(self._names)}) SELECT * FROM unnest({arrays})"  # noqa: S608 - ours
                f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET "
                + ", ".join(
                    f"{name} = {f'{table.name}.{name} + ' if name in adds else ''}excluded.{name}" for name in others
                )
            )
            return
        statement = insert(table)
        new = {
            name: table.c[name] + statement.excluded[name] if name in adds else statement.excluded[name]
            for name in others
        }
        self._statement = statement.on_conflict_do_update(index_elements=keys, set_=new)

    def execute(self, connection: Connection, rows: Sequence[Mapping[str, str | float | None]]) -> None:
        """Write rows. Their keys must differ."""
        if self._text:
            columns = {name: array_of([row[name] for row in rows]) for name in self._names}
            connection.exec_driver_sql(self._text, columns)
        else:
            connection.execute(self._statement, list(rows))
