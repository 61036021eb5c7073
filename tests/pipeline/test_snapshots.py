"""Snapshots share what did not change, are published in one step, and leave nothing behind."""

from pathlib import Path

import pytest

from waybill.pipeline import gold_tables, listing, tables
from waybill.pipeline import snapshots as snapshots_module
from waybill.pipeline.parts import file_name, month_of, part_of_file
from waybill.pipeline.snapshots import Contents, Draft, Snapshot, Snapshots

TABLES = (tables.JOBS, gold_tables.ACTIVITY)


def fill(draft: Draft, table: tables.Table, **parts: str) -> None:
    """Let each part be a file with this text."""
    written = draft.scratch / "written"
    for number, text in parts.items():
        (written / f"number={number[1:]}").mkdir(parents=True, exist_ok=True)
        (written / f"number={number[1:]}" / "x.parquet").write_text(text)
    draft.replace(table, [int(number[1:]) for number in parts], written)


def texts(snapshot: Snapshot, table: tables.Table) -> dict[int, str]:
    return {part: snapshot.files(table, [part])[0].read_text() for part in snapshot.all_parts(table)}


def test_names_of_files_tell_their_parts() -> None:
    for part in (525_888, 985_201, 985_200, 2_279_087):
        assert [part_of_file(file_name(part, number, "0123456789abcdef")) for number in (0, 1, 12)] == [part] * 3
    assert month_of(985_200) == "2026-03"
    for name in ("", "x.parquet", "2026-03-01T13", "2026-03-01T13-close.parquet", ".2026-03-01T13.parquet.crc"):
        assert part_of_file(name) is None


def test_a_snapshot_has_what_its_base_has_and_what_was_changed(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, kept=2)
    base, seen = None, []
    for number in range(1, 6):
        draft = snapshots.draft(base, number=snapshots.next_number())
        fill(draft, tables.JOBS, p985200=f"a{number}", p985201="b", **{f"p{900_000 + number}": "c"})
        if number == 1:
            fill(draft, gold_tables.ACTIVITY, p985200="never changed")
        if number == 5:
            draft.drop(tables.JOBS, [985_201])
        base = draft.finish(Contents(number), TABLES)
        snapshots.publish(base, TABLES)
        seen.append(base)
    assert snapshots.current() == base
    assert texts(seen[4], tables.JOBS) == {985_200: "a5", **dict.fromkeys(range(900_001, 900_006), "c")}
    assert texts(seen[3], tables.JOBS)[985_200] == "a4"
    assert texts(seen[4], gold_tables.ACTIVITY) == {985_200: "never changed"}
    assert not seen[2].place.exists()
    # What no snapshot has is gone: two versions of the part, and the others once.
    assert len(list((tmp_path / "parts").rglob("*.parquet"))) < 25


def test_the_files_of_a_month_are_listed_once_for_all_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(tmp_path)
    hours = range(985_200, 985_600, 2)
    draft = snapshots.draft(None, number=snapshots.next_number())
    listed: list[Path] = []

    def names_in(place: Path) -> list[str]:
        listed.append(place)
        return listing.names_in(place)

    monkeypatch.setattr(snapshots_module, "names_in", names_in)
    fill(draft, tables.JOBS, **{f"p{part}": "x" for part in hours})
    assert len(draft.files(tables.JOBS, hours)) == len(hours)
    base = draft.finish(Contents(1), TABLES)
    snapshots.publish(base, TABLES)
    after = snapshots.draft(base, number=snapshots.next_number())
    assert len(after.files(tables.JOBS, hours)) == len(base.files(tables.JOBS, hours)) == len(hours)
    after.drop(tables.JOBS, hours)
    assert after.files(tables.JOBS, hours) == []
    assert len(listed) < 20


def test_what_a_crash_left_is_cleared_away(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    draft = snapshots.draft(None, number=snapshots.next_number())
    fill(draft, tables.JOBS, p985200="a")
    snapshots.publish(draft.finish(Contents(7), TABLES), TABLES)
    before = snapshots.current()
    draft = snapshots.draft(before, number=snapshots.next_number())
    fill(draft, tables.JOBS, p985200="b")
    draft.finish(Contents(8), TABLES)
    assert snapshots.current() == before
    assert before is not None
    assert texts(before, tables.JOBS) == {985_200: "a"}
    assert snapshots.next_number() == 2
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["00000001"]


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "[" * 5000, '{"format": 99}', '{"format": 1}', '{"format": 1, "contents": 7}'),
        '{"format": 2, "contents": null, "replaced": []}',
        '{"format": 2, "contents": {"batch": "x"}, "replaced": []}',
        '{"format": 2, "contents": {"batch": 1, "objectives": [1]}, "replaced": []}',
        '{"format": 2, "contents": {"batch": 1}, "replaced": [1]}',
    ],
)
def test_a_snapshot_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.publish(snapshots.draft(None, number=1).finish(Contents(), TABLES), TABLES)
    (tmp_path / "current" / "snapshot.json").write_text(text)
    assert snapshots.current() is None
    assert snapshots.batch() == -1
    assert snapshots.next_number() == 2


def test_files_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, kept=1)
    for number in (1, 2):
        snapshots.publish(snapshots.draft(None, number=number).finish(Contents(number), TABLES), TABLES)
        for place in ("snapshots", "parts"):
            (tmp_path / place / ".DS_Store").touch()
            (tmp_path / place / "lost+found").mkdir(exist_ok=True)
    assert snapshots.next_number() == 3
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == [".DS_Store", "00000002", "lost+found"]
    for target in ("snapshots/hello", "snapshots/00000099"):
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to(target)
        assert snapshots.current() is None
        assert snapshots.batch() == -1


def test_a_snapshot_of_the_first_format_has_no_rollups(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.publish(snapshots.draft(None, number=1).finish(Contents(3), TABLES), TABLES)
    about = tmp_path / "current" / "snapshot.json"
    about.write_text(about.read_text().replace('"format":2', '"format":1'))
    found = snapshots.current()
    assert found is not None
    assert (found.has_rollups, found.contents) == (False, Contents(3))
