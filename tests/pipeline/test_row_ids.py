"""Ids of rows that have none: the same whatever is remembered how."""

import random

import pytest

from waybill.pipeline import row_ids
from waybill.pipeline.row_ids import RowIds, digests


def contents(seed: int) -> list[list[bytes]]:
    """Blocks of rows, some of which say the same, within a block and in different ones."""
    chance = random.Random(seed)
    sizes = [chance.choice((1, 7, 150)) for _ in range(60)]
    return [[str(chance.randrange(2000)).encode() for _ in range(size)] for size in sizes]


def ids(blocks: list[list[bytes]]) -> list[str]:
    made = RowIds("a write")
    return [one for block in blocks for one in made.ids(digests(block))]


@pytest.mark.parametrize("seed", range(5))
def test_arrays_and_sets_remember_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    blocks = contents(seed)
    wanted = ids(blocks)
    assert len(set(wanted)) == len(wanted)
    monkeypatch.setattr(row_ids, "_RECENT_MAX", 50)
    monkeypatch.setattr(row_ids, "_AGAIN_MAX", 20)
    assert ids(blocks) == wanted
    # In another order, and in other blocks, the same rows have the same ids.
    rows = [row for block in blocks for row in block]
    random.Random(seed).shuffle(rows)
    assert sorted(ids([rows[:100], rows[100:]])) == sorted(wanted)


def test_arrays_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ids, "_RECENT_MAX", 10)
    made = RowIds("a write")
    for number in range(3000):
        made.ids([number * 7])
    runs = made._seen._runs
    assert len(runs) <= 9
    assert sum(map(len, runs)) + len(made._seen._recent) == 3000
