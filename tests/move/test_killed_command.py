"""`waybill move` as a process that is killed: the short form of `make soak-move`, between two of our brokers."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.move import one_way as soak
from waybill.broker import Broker


async def test_a_killed_move_moves_each_job_once_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "DELAY_SECONDS", 2.0)
    async with Broker(port=0, data_dir=tmp_path / "here") as here, Broker(port=0) as there:
        plan = soak.Plan(1200, 2, random.Random(7), tmp_path / "move.log")
        await soak.one_way(soak.Place(here.uri()), soak.Place(there.uri()), 0, plan)


def test_the_check_finds_what_is_lost_twice_or_out_of_order() -> None:
    taker = soak.Taker()
    taker.numbers = [1, 2, 3]
    taker.scheduled = [0]
    soak.check(taker, range(4))
    for numbers, text in (([1, 2, 3, 3], "twice"), ([1, 3], "lost"), ([2, 1, 3], "order")):
        taker.numbers = numbers
        with pytest.raises(soak.WrongError, match=text):
            soak.check(taker, range(4))
