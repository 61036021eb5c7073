"""Thousands of connections that are lost in one turn end in several; a few end at once."""

import asyncio

import pytest

from waybill.broker import departures
from waybill.broker.departures import Departures


async def test_a_few_leave_at_once() -> None:
    left: list[int] = []
    line = Departures()
    for number in range(3):
        line.add(lambda number=number: left.append(number))  # type: ignore[misc]
    assert left == [0, 1, 2]


async def test_many_leave_in_order_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "TURN_S", -1.0)
    left: list[int] = []
    line = Departures()
    for number in range(10):
        line.add(lambda number=number: left.append(number))  # type: ignore[misc]
    turns = 0
    while len(left) < 10:
        before = len(left)
        await asyncio.sleep(0)
        assert len(left) - before <= 1
        turns += 1
    assert left == list(range(10))
    assert turns >= 10


async def test_one_that_fails_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures, "TURN_S", -1.0)
    left: list[int] = []
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    line = Departures()

    def fail() -> None:
        raise RuntimeError("a fault")

    line.add(lambda: left.append(0))
    line.add(fail)
    line.add(lambda: left.append(2))
    while len(left) < 2:
        await asyncio.sleep(0)
    assert left == [0, 2]
    assert len(errors) == 1
