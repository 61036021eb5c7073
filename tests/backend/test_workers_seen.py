"""Workers are known by the time that has passed, however the system's clock is set."""

import time

import pytest

from waybill.backend.workers import FORGOTTEN_SECONDS, HttpWorkers

DAY = 86_400.0


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_worker_stays_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    workers = HttpWorkers()
    workers.record("w1", ["email"])
    workers.join("w1", "pool")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    [found] = workers.all()
    assert found.id == "w1"
    assert workers.members("pool") == {"w1"}


@pytest.mark.parametrize("jump", [0, -DAY])
def test_one_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    workers = HttpWorkers()
    workers.record("w1", ["email"])
    wall, steady = time.time, time.monotonic
    monkeypatch.setattr(time, "time", lambda: wall() + jump)
    monkeypatch.setattr(time, "monotonic", lambda: steady() + FORGOTTEN_SECONDS + 1)
    assert workers.all() == []
