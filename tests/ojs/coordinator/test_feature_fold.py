"""Rows of features: folded with the jobs, in the order of the stream, in every store."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from tests.ojs.coordinator.test_job_store import event
from tests.ojs.databases import make_database
from waybill.ojs.coordinator.claims import ClaimFold
from waybill.ojs.coordinator.event_fold import fold_messages, fold_what_can_be
from waybill.ojs.coordinator.feature_fold import FeatureFold, FeatureFolds, Rows
from waybill.ojs.coordinator.job_fold import ENDS
from waybill.ojs.coordinator.job_store import JobStore
from waybill.ojs.coordinator.markers import MarkerFold
from waybill.ojs.coordinator.open_store import IN_MEMORY, open_job_store
from waybill.ojs.coordinator.records import RecordFold
from waybill.ojs.coordinator.staged import StagedFold
from waybill.ojs.cron.cron_fold import CronFold
from waybill.ojs.spec.events import ReceivedEvent
from waybill.ojs.spec.identifiers import derived_id, is_uuid7, may_be_derived, new_id


class Tally(msgspec.Struct):
    """How often a job was heard of, and the event that was the last."""

    count: int
    last: str


class Tallies(FeatureFold):
    """Counts the ticks of a name, and the starts of a job."""

    def keys(self, event: ReceivedEvent) -> Sequence[str]:
        return [f"tally/{event.subject}"] if event.type in {"tick", "tick.end", "job.started"} else []

    def fold(self, rows: Rows, event: ReceivedEvent) -> None:
        if event.data.get("fail"):
            raise ArithmeticError("as the test asks")
        key = f"tally/{event.subject}"
        if event.type == "tick.end":
            rows.delete(key)
            return
        tally = rows.get(key, Tally) or Tally(0, "")
        if tally.last != event.id:
            rows.put(key, Tally(tally.count + 1, event.id), "odd" if tally.count % 2 == 0 else None)


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    """An empty store of each kind that folds tallies."""
    database = IN_MEMORY
    if request.param == "sqlite":
        database = str(tmp_path / "jobs.sqlite")
    elif request.param == "postgresql":
        database = make_database(request.getfixturevalue("postgresql"))
    with open_job_store(database) as store:
        store.features = FeatureFolds([Tallies()])
        yield store


def body(*events: ReceivedEvent) -> bytes:
    return msgspec.json.encode(list(events))


def counts(store: JobStore) -> dict[str, int]:
    return {key: tally.count for key, tally in store.listed("tally/", Tally, 100)}


def test_rows_are_folded_in_the_order_of_the_stream(store: JobStore) -> None:
    a, b = event("tick", "a", 1), event("tick", "b", 2)
    verdicts, skipped = fold_messages(store, [(0, body(a, b, a), None), (1, body(event("tick", "a", 3)), None)])
    assert (set(verdicts), skipped) == ({a.id, b.id, *verdicts}, 0)
    assert counts(store) == {"tally/a": 2, "tally/b": 1}
    assert [key for key, _ in store.marked("odd", Tally, 10)] == ["tally/b"]
    assert store.row("tally/a", Tally) is not None
    assert store.row("tally/c", Tally) is None
    fold_messages(store, [(1, body(event("tick", "a", 3)), None), (2, body(event("tick.end", "a", 4)), None)])
    assert counts(store) == {"tally/b": 1}


def test_an_event_of_a_job_counts_for_the_job_and_for_a_feature(store: JobStore) -> None:
    fold_messages(store, [(0, body(event("job.started", "x", 1, attempt=1, worker_id="w")), None)])
    assert counts(store) == {"tally/x": 1}
    job = store.get("x")
    assert job is not None
    assert job.state == "active"


@pytest.mark.parametrize("fold", [fold_messages, fold_what_can_be])
def test_what_a_fold_raises_has_its_event_skipped(
    store: JobStore, monkeypatch: pytest.MonkeyPatch, fold: Callable[..., tuple[object, int]]
) -> None:
    monkeypatch.setattr("waybill.ojs.coordinator.event_fold.PAUSE_SECONDS", 0.0)
    bad = event("tick", "b", 2, fail=True)
    message = (0, body(event("tick", "a", 1), bad, event("tick", "c", 3)), None)
    _, skipped = fold(store, [message])
    assert skipped == 1
    assert counts(store) == {"tally/a": 1, "tally/c": 1}
    assert store.next_offset == 1


def test_odd_subjects_are_no_keys(store: JobStore) -> None:
    odd = [event("tick", subject, 1) for subject in ("\0", "x" * 1000, "a\0b")]
    fold_messages(store, [(0, body(*odd, event("tick", "a", 1)), None)])
    assert counts(store) == {"tally/a": 1}


def test_rows_are_listed_by_prefix_and_page(store: JobStore) -> None:
    names = ["a", "b/1", "b/2", "b/ü", "c"]
    fold_messages(store, [(0, body(*(event("tick", name, 1) for name in names)), None)])
    assert [key for key, _ in store.listed("tally/b", Tally, 100)] == ["tally/b/1", "tally/b/2", "tally/b/ü"]
    assert [key for key, _ in store.listed("tally/", Tally, 2)] == ["tally/a", "tally/b/1"]
    assert [key for key, _ in store.listed("tally/", Tally, 2, "tally/b/1")] == ["tally/b/2", "tally/b/ü"]
    assert [key for key, _ in store.marked("odd", Tally, 2)] == ["tally/a", "tally/b/1"]
    store.clear()
    assert counts(store) == {}


def test_coordinators_may_share_a_database(tmp_path: Path) -> None:
    database = str(tmp_path / "shared.sqlite")
    tick = event("tick", "a", 1)
    with open_job_store(database) as one, open_job_store(database) as other:
        one.features = other.features = FeatureFolds([Tallies()])
        first, _ = fold_messages(one, [(0, body(tick), None)])
        second, _ = fold_messages(other, [(0, body(tick), None)])
        assert first == second == {tick.id: None}
        assert counts(other) == {"tally/a": 1}


def test_derived_ids_are_made_of_a_time_and_names() -> None:
    one = derived_id(1_767_225_600_000, "cron", "nightly")
    assert one == derived_id(1_767_225_600_000, "cron", "nightly")
    assert is_uuid7(one)
    assert may_be_derived(one)
    assert not may_be_derived(new_id())
    others = [("cron", "nightlx"), ("cronn", "ightly"), ("cron",), ()]
    assert len({derived_id(1, *names) for names, _ in itertools.product(others, range(2))}) == len(others)


def _is_trusted(_user: str | None) -> bool:
    return True


def test_folds_name_the_types_that_they_look_at() -> None:
    folds = [RecordFold(_is_trusted), ClaimFold(_is_trusted), StagedFold(), MarkerFold(), CronFold(_is_trusted)]
    names = "enqueued scheduled started failed retrying heartbeat progress reserved released staged unstaged activated"
    kinds = [f"job.{name}" for name in names.split()] + [*ENDS, "view.marked", "record.put", "record.removed"]
    kinds += [f"cron.{name}" for name in ("registered", "toggled", "removed", "claimed", "told", "fired")]
    kinds += [f"claim.{name}" for name in ("pushed", "copied", "admitted")]
    found = set()
    for fold, kind, subject in itertools.product(folds, kinds, ("x", new_id(), derived_id(5, "x"))):
        if fold.keys(event(kind, subject, 1)):
            assert fold.types is not None
            assert kind in fold.types, kind
            found.add(fold)
    assert len(found) == len(folds)
