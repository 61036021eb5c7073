from pathlib import Path

import pytest

from scripts.conformance import PAGE, render, render_page
from tests.conformance.catalogue import (
    BINDING,
    BROKERS,
    CATALOGUE,
    Requirement,
    Tag,
    TagError,
    read_brokers,
    read_catalogue,
    read_notes,
    read_tags,
)
from tests.conformance.requirement import requirement


def test_every_tag_names_a_requirement_of_the_catalogue(repository: Path) -> None:
    known = {row.id for path in (CATALOGUE, BINDING) for row in read_catalogue(path)}
    unknown = [tag for tag in read_tags(repository / "tests") if tag.requirement_id not in known]
    assert unknown == []


def test_every_note_is_about_a_requirement_of_the_catalogue() -> None:
    assert set(read_notes()) <= {row.id for row in read_catalogue()}


def test_ids_of_the_catalogue_are_unique() -> None:
    ids = [row.id for path in (CATALOGUE, BINDING) for row in read_catalogue(path)]
    assert len(ids) == len(set(ids))


def test_the_page_is_up_to_date(repository: Path) -> None:
    page = render_page(repository / "tests")
    assert PAGE.read_text(encoding="utf-8") == page, "run `make docs`"


def test_every_row_of_the_binding_is_tested_on_both_brokers(repository: Path) -> None:
    tags, brokers = read_tags(repository / "tests"), read_brokers(repository / "tests")
    for row in read_catalogue(BINDING):
        tested = [brokers.get(tag.test, frozenset()) for tag in tags if tag.requirement_id == row.id]
        assert frozenset(BROKERS) in tested, row.id


def test_brokers_are_those_of_the_fixtures_that_a_test_reaches(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text(
        "@fixture(params=['rabbitmq', 'waybill'])\ndef uri(): ...\n@fixture\ndef eye(uri): ...\n"
    )
    (tmp_path / "tests" / "test_one.py").write_text(
        "def test_both(eye): ...\ndef test_none(other): ...\n"
        "@parametrize('broker', ['waybill'])\nasync def test_ours(broker): ...\n"
    )
    found = read_brokers(tmp_path / "tests")
    assert found["tests/test_one.py::test_both"] == {"rabbitmq", "waybill"}
    assert found["tests/test_one.py::test_none"] == set()
    assert found["tests/test_one.py::test_ours"] == {"waybill"}


def test_tags_are_found_on_functions_classes_methods_and_modules(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_example.py").write_text(
        "pytestmark = requirement('A-1')\n"
        "@requirement('A-2', 'A-3')\n"
        "async def test_one(): ...\n"
        "@requirement('A-4')\n"
        "class TestGroup:\n"
        "    @requirement('A-5')\n"
        "    def test_two(self): ...\n"
    )
    path = "tests/test_example.py"
    assert read_tags(tests) == [
        Tag("A-1", path),
        Tag("A-2", f"{path}::test_one"),
        Tag("A-3", f"{path}::test_one"),
        Tag("A-4", f"{path}::TestGroup"),
        Tag("A-5", f"{path}::TestGroup::test_two"),
    ]


def test_an_id_that_is_no_plain_string_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text("@requirement(NAME)\ndef test_one(): ...\n")
    with pytest.raises(TagError):
        read_tags(tmp_path)


def test_a_tag_without_ids_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        requirement()


def test_the_page_counts_and_lists_what_is_not_tested() -> None:
    rows = [Requirement("A-1", "doc", "1", "MUST", "x | y"), Requirement("A-2", "doc", "2", "MAY", "z")]
    page = render(rows, [Tag("A-1", "tests/test_a.py::test_b"), Tag("A-1", "tests/test_a.py::test_b")], {"A-2": "No."})
    assert "| doc | 2 | 1 | 1 of 1 | 0 |" in page
    assert "| A-1 | MUST | x \\| y (section 1) | `test_a.py::test_b` |" in page
    assert "| A-2 | MAY | z (section 2) | *No.* |" in page
    assert "**doc** (0): none" in page
    assert "**doc** (1): A-2" in render(rows, [Tag("A-1", "tests/test_a.py::test_b")], {})
