"""How deep JSON is nested: found the same for every text, and in a time that its shape does not change."""

import random
import re
import time
import tracemalloc
from typing import Any

import msgspec
import pytest

from waybill.ojs.spec import nesting
from waybill.ojs.spec.nesting import MAX_NESTING, MAX_WEIGHT, count_values, is_nested_deeper, is_too_heavy

LIMITS = (3, 10, 16, 17, 30, 59)


def depth_of(text: bytes) -> int:
    depth = deepest = 0
    for octet in re.sub(rb'"[^"\\]*(?:\\.[^"\\]*)*"', b"", text):
        if octet in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif octet in b"]}":
            depth -= 1
    return deepest


def made(chance: random.Random, size: int, depth: int) -> str:
    parts = []
    while size > 0 and chance.random() < 0.97:
        inner = chance.randint(1, size) if depth and chance.random() < 0.6 else 1
        parts.append(made(chance, inner, depth - 1) if inner > 1 else chance.choice(["1", '"[{"', '"\\"]"', "{}"]))
        size -= inner
    return f"[{','.join(parts)}]"


def test_the_quick_count_is_that_of_a_slow_one() -> None:
    chance = random.Random(7)
    texts = [made(chance, chance.choice([10, 300]), chance.randint(1, 60)).encode() for _ in range(200)]
    # With so many brackets they are counted many at a time.
    texts += [made(chance, 30_000, 60).encode() + b" " * size for size in range(4)]
    texts += [(b"[" * depth + b"]" * depth) * 200 for depth in (3, 15, 16, 17, 59, 60)]
    for text in texts:
        found = depth_of(text)
        assert [is_nested_deeper(text, limit) for limit in LIMITS] == [found > limit for limit in LIMITS]


@pytest.mark.parametrize("levels", [1, MAX_NESTING // 2, MAX_NESTING])
def test_many_brackets_take_no_longer_for_their_depth(levels: int) -> None:
    """Once, each level took a look at all brackets: 16 s for a message of 32 MiB."""
    is_nested_deeper(b"[]" * 10_000)
    text = (b"[" * levels + b"]" * levels) * (1_000_000 // levels)
    began = time.process_time()
    assert not is_nested_deeper(text)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("end", [b"", b'"', b"\\", b']"'])
def test_what_is_no_json_takes_no_longer(end: bytes) -> None:
    """A string that is not closed was searched anew from each quote in it: an hour for a body of 1 MiB."""
    text = b"[" * 300 + b'"' + b'\\"' * 500_000 + end
    began = time.process_time()
    is_nested_deeper(text)
    is_too_heavy(text * 4)
    assert time.process_time() - began < 1.0


def test_values_are_counted_but_not_what_stands_in_texts() -> None:
    assert is_too_heavy(b"[" + b",".join([b"[]"] * (MAX_WEIGHT // 5 + 1)) + b"]")
    assert is_too_heavy(b"[" + b"1," * MAX_WEIGHT + b"1]")
    assert not is_too_heavy(b"[" + b",".join([b"{}"] * (MAX_WEIGHT // 5 - 4)) + b"]")
    assert not is_too_heavy(b'["\\"' + b"[,{" * MAX_WEIGHT + b'"]')


@pytest.mark.plain_source
def test_texts_are_left_out_wherever_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = random.Random(5)
    for _ in range(300):
        value = [
            chosen.choice(["", "\\", '"', "[,{", '\\"', {}, [[1]], {"[": ","}]) for _ in range(chosen.randrange(9))
        ]
        text = msgspec.json.encode(value)
        monkeypatch.setattr(nesting, "_WINDOW", 1 << 20)
        whole = count_values(text)
        for window in (1, 2, 3, 7):
            monkeypatch.setattr(nesting, "_WINDOW", window)
            assert count_values(text) == whole, text


def test_what_is_too_heavy_is_not_held_as_objects_to_find_it_out() -> None:
    text = b"[" + b'{"a":"b"},' * (2 * MAX_WEIGHT // 5) + b"1]"
    tracemalloc.start()
    try:
        assert is_too_heavy(text)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_no_more_strings_are_looked_at_than_an_allowed_text_has() -> None:
    """Strings without commas and brackets between them are no JSON: 32 MiB of them took 0.7 s."""
    assert is_too_heavy(b'","' * (3 * MAX_WEIGHT))
    names = b"{" + b",".join(b'"%d":"x"' % number for number in range(MAX_WEIGHT // 2)) + b"}"
    assert not is_too_heavy(names)
    assert is_too_heavy(names, MAX_WEIGHT // 2 - 1)


class Looked(bytes):
    """Counts the looks at a text."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.plain_source
def test_a_row_of_backslashes_is_not_looked_at_one_by_one() -> None:
    """It was: 30 MB of them took 1.7 s."""
    text = Looked(b'"' + b"," * (MAX_WEIGHT + 1) + b"\\" * (1 << 20))
    assert not is_too_heavy(text)
    assert text.looks <= 2 * len(text) / nesting._WINDOW + 2


def test_many_strings_are_not_held_to_find_the_depth_beside_them() -> None:
    """A text of 32 MiB took 4 s."""
    text = b"[" * 300 + b'"",' * (2 << 20)
    tracemalloc.start()
    try:
        assert is_nested_deeper(text)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
