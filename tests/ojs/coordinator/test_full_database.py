"""A database without room for an event has a fault of its own: the event waits, and is not skipped."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sql
from sqlalchemy.exc import OperationalError

from waybill.ojs.coordinator import event_fold
from waybill.ojs.coordinator.event_fold import Message, fold_what_can_be
from waybill.ojs.coordinator.open_store import open_job_store
from waybill.ojs.coordinator.sql_job_store import SqlJobStore

FILLED = {
    # Changes of what is there fit into it, new pages do not.
    "sqlite": ["pragma max_page_count = 1"],
    "postgresql": [
        """create function refuse() returns trigger language plpgsql as
        $$ begin raise exception 'could not extend file' using errcode = '53100'; end $$""",
        "create trigger full_disk before insert on waybill_job for each row execute function refuse()",
    ],
}
EMPTIED = {"sqlite": ["pragma max_page_count = 100000"], "postgresql": ["drop trigger full_disk on waybill_job"]}


def enqueued(number: int) -> Message:
    data = {"job_type": "a.b", "queue": "q", "job": {"id": f"j{number}", "args": ["x" * 50_000]}}
    event: dict[str, object] = {"id": f"evt_{number}", "type": "job.enqueued", "source": "x", "subject": f"j{number}"}
    event |= {"specversion": "1.0", "time": "2026-01-01T00:00:00.000Z", "data": data}
    return number, json.dumps(event).encode(), None


def execute(store: SqlJobStore, statements: dict[str, list[str]]) -> None:
    with store._engine.begin() as connection:
        for statement in statements[store._engine.dialect.name]:
            connection.execute(sql.text(statement))


def test_an_event_for_which_there_is_no_room_is_not_skipped(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_fold, "PAUSE_SECONDS", 0.0)
    with open_job_store(database) as store:
        assert isinstance(store, SqlJobStore)
        fold_what_can_be(store, [enqueued(0)])
        execute(store, FILLED)
        store.probe()
        with pytest.raises(OperationalError):
            fold_what_can_be(store, [enqueued(1)])
        execute(store, EMPTIED)
        assert fold_what_can_be(store, [enqueued(1)]) == ({}, 0)
        assert store.get("j1") is not None
